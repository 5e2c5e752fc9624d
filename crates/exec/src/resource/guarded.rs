//! The resources of guarded sessions: a guarded session has a copy of its state kept elsewhere, so the table remembers which
//! resources its pieces name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::saved::{is_lasting, saved};
use super::{Dummy, Moment, Resource, ResourceKey, Resources, Saved, Version, changed_by_another};

/// A resource whose state cannot be saved, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaved {
    /// The resource.
    pub key: ResourceKey,
    /// Why, as a sentence that names it.
    pub why: String,
}

/// How often a resource is looked at while an op works on it.
const LOOKS: usize = 1000;

/// The state of resources.
type Copies = BTreeMap<ResourceKey, Arc<Saved>>;

impl Resources {
    /// Remembers from now on which resources the pieces of a session name, until the session is released. To be called before
    /// it registers a piece.
    pub fn guard(&self, session: SessionId) {
        lock(&self.table).guarded.entry(session).or_default();
    }

    /// The session has these resources, too, though no piece of it names them any more.
    pub fn guard_also<'a>(&self, session: SessionId, keys: impl Iterator<Item = &'a ResourceKey>) {
        lock(&self.table).guarded.entry(session).or_default().extend(keys.cloned());
    }

    /// A piece of the session names a resource.
    pub(in super::super) fn names(&self, session: SessionId, key: &ResourceKey) {
        if let Some(named) = lock(&self.table).guarded.get_mut(&session)
            && !named.contains(key)
        {
            named.insert(key.clone());
        }
    }

    /// The state of the resources that the pieces of a guarded session name, and the resources that cannot be saved. One whose
    /// version is that of its state in `before` is not saved again. Waits for the ops that work on them.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory; the failure of a device whose memory holds one.
    pub fn save_guarded(
        &self,
        session: SessionId,
        before: &BTreeMap<ResourceKey, Arc<Saved>>,
    ) -> Result<(Copies, Vec<Unsaved>)> {
        let (mut all, mut unsaved) = (BTreeMap::new(), Vec::new());
        for (key, resource) in self.guarded(session) {
            let known =
                before.get(&key).filter(|known| resource.version().map(Version::edition) == Some(known.version));
            if let Some(known) = known {
                all.insert(key, Arc::clone(known));
                continue;
            }
            match saved(&key, &*resource) {
                Ok(state) => {
                    all.insert(key, Arc::new(state));
                }
                Err(failure) if failure.code == Code::FailedPrecondition => {
                    unsaved.push(Unsaved { key, why: failure.message });
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok((all, unsaved))
    }

    /// The first of a guarded session's resources that a step of another session has changed since then. One on which an op of
    /// another session works for long counts.
    pub fn changed_by_others(&self, session: SessionId, since: Moment) -> Option<(ResourceKey, &'static str)> {
        let mut all = self.guarded(session).into_iter();
        let found = all.find(|(_, resource)| is_changed_by_others(&**resource, session, since));
        found.map(|(key, resource)| (key, resource.kind()))
    }

    /// Those of a guarded session's resources that exist and have a state.
    fn guarded(&self, session: SessionId) -> Vec<(ResourceKey, Arc<dyn Resource>)> {
        let table = lock(&self.table);
        let named = table.guarded.get(&session).into_iter().flatten();
        let existing = named.filter_map(|key| Some((key.clone(), Arc::clone(&table.resources.get(key)?.0))));
        existing.filter(|(_, resource)| !resource.is::<Dummy>()).collect()
    }

    /// Forgets those of a guarded session's resources that `keeps` does not admit and that the session made: it did so after its
    /// state was saved. Those that another session made stay.
    ///
    /// # Errors
    /// FailedPrecondition, with the name of the resource, if another session has changed one since, or if this one has changed
    /// one that another made. Then none is forgotten.
    pub fn drop_guarded(&self, session: SessionId, since: Moment, keeps: impl Fn(&ResourceKey) -> bool) -> Result<()> {
        let mut table = lock(&self.table);
        let named = table.guarded.get(&session).into_iter().flatten().filter(|key| !keeps(key));
        let mut gone: Vec<ResourceKey> = Vec::new();
        // Under the lock of the table, so that no session finds one between the look at it and its end.
        for (key, (resource, maker)) in named.filter_map(|key| Some((key, table.resources.get(key)?))) {
            let (kind, name) = (resource.kind(), &key.name);
            if is_changed_by_others(&**resource, session, since) {
                return Err(changed_by_another(kind, name));
            }
            match *maker == session {
                true => gone.push(key.clone()),
                false if is_changed(&**resource, |version| version.is_changed_by(session, since)) => {
                    let why =
                        format!("the newest copy does not have {kind} '{name}', which the session has changed since");
                    return Err(Failure::new(Code::FailedPrecondition, why));
                }
                false => {}
            }
        }
        gone.iter().for_each(|key| drop(table.resources.remove(key)));
        drop(table);
        if !gone.is_empty() {
            self.generation.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

/// Whether a step of another session has changed a resource since then. One on which an op works for long counts.
fn is_changed_by_others(resource: &dyn Resource, session: SessionId, since: Moment) -> bool {
    is_changed(resource, |version| version.is_changed_by_others(session, since))
}

/// Whether the version of a resource is one of these. One on which an op works for long counts.
fn is_changed(resource: &dyn Resource, is_so: impl Fn(Version) -> bool) -> bool {
    let look = |_| {
        let version = resource.version();
        if version.is_none() {
            std::thread::yield_now();
        }
        version
    };
    is_lasting(resource.kind()) && (0..LOOKS).find_map(look).is_none_or(is_so)
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::{DType, PartialShape, Tensor};

    use super::super::super::waiting::{Answer, WaitId, Waiter, Wake};
    use super::super::{Kind, Over, Queue, SessionTensors, Variable, on_behalf};
    use super::*;
    use meshtf_engine::Value;
    use meshtf_tensor::ids::StepId;

    fn key(name: &str) -> ResourceKey {
        ResourceKey { container: "c".into(), name: name.into(), session: None, device: (DeviceKind::Cpu, 0) }
    }

    fn variable(resources: &Resources, session: SessionId, name: &str, value: f32) -> Arc<Variable> {
        let make = || {
            let made: Arc<dyn Resource> = Arc::new(Variable::new(name.into(), DType::F32, PartialShape::UNKNOWN));
            Ok(made)
        };
        let made = resources.find_or_make(&key(name), session, make).and_then(|made| made.typed::<Variable>()).unwrap();
        made.hold().set(Value::Host(Tensor::scalar(value)));
        made
    }

    fn value(resources: &Resources, name: &str) -> Option<f32> {
        let found = resources.find(&key(name))?.typed::<Variable>().unwrap();
        found.read().unwrap().into_host().unwrap().item().ok()
    }

    #[test]
    fn the_state_of_a_guarded_session_is_what_its_pieces_name() -> Result<(), Failure> {
        let (resources, own, other) = (Resources::new(), SessionId(1), SessionId(2));
        let before = variable(&resources, other, "shared", 1.0);
        variable(&resources, other, "others", 5.0);
        resources.guard(own);
        // It names a variable of another session, one that does not exist yet, and a thing that cannot be saved.
        resources.names(own, &key("shared"));
        resources.names(own, &key("late"));
        resources.find_or_make(&key("tensors"), own, || Ok(Arc::new(SessionTensors::default())))?;
        let (first, unsaved) = resources.save_guarded(own, &BTreeMap::new())?;
        assert_eq!(first.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["shared"]);
        assert_eq!(unsaved.iter().map(|one| one.key.name.as_str()).collect::<Vec<_>>(), ["tensors"]);

        // Only changed states are taken anew.
        variable(&resources, own, "late", 2.0);
        let (second, _) = resources.save_guarded(own, &first)?;
        assert!(Arc::ptr_eq(&first[&key("shared")], &second[&key("shared")]));
        assert_eq!(second.len(), 2);
        before.hold().set(Value::Host(Tensor::scalar(9f32)));
        let (third, _) = resources.save_guarded(own, &second)?;
        assert!(!Arc::ptr_eq(&second[&key("shared")], &third[&key("shared")]));

        // Who changes what is known, since when.
        assert_eq!(resources.changed_by_others(own, Moment::default()), None);
        let since = Moment::now();
        on_behalf(own, || before.hold().set(Value::Host(Tensor::scalar(9f32))));
        assert_eq!(resources.changed_by_others(own, since), None);
        on_behalf(other, || before.hold().set(Value::Host(Tensor::scalar(9f32))));
        assert_eq!(resources.changed_by_others(own, since), Some((key("shared"), "variable")));
        assert_eq!(resources.changed_by_others(own, Moment::now()), None);

        // Back to the first state: a resource that was made later is gone, and others are untouched.
        resources.drop_guarded(own, since, |key| first.contains_key(key))?;
        for (key, saved) in &first {
            resources.load(key, own, saved)?;
        }
        assert_eq!((value(&resources, "shared"), value(&resources, "late")), (Some(1.0), None));
        assert_eq!(value(&resources, "others"), Some(5.0));
        resources.release(own);
        assert!(resources.save_guarded(own, &BTreeMap::new())?.0.is_empty());
        Ok(())
    }

    #[test]
    fn a_resource_that_is_made_in_the_place_of_another_is_saved_again() -> Result<(), Failure> {
        let (resources, own) = (Resources::new(), SessionId(1));
        resources.guard(own);
        resources.names(own, &key("v"));
        variable(&resources, own, "v", 1.0);
        let (first, _) = resources.save_guarded(own, &BTreeMap::new())?;
        // Each was changed once.
        resources.clear(&key("v").container);
        assert_eq!(value(&resources, "v"), None);
        variable(&resources, own, "v", 2.0);
        let (second, _) = resources.save_guarded(own, &first)?;
        assert_eq!(second[&key("v")].tensors, [Tensor::scalar(2f32)]);
        // The first state is put back over the second one.
        assert_ne!(resources.version(&key("v")), Some(first[&key("v")].version));
        Ok(())
    }

    #[test]
    fn a_change_of_another_session_is_not_undone() -> Result<(), Failure> {
        let (resources, own, other) = (Resources::new(), SessionId(1), SessionId(2));
        resources.guard(own);
        resources.names(own, &key("v"));
        resources.names(own, &key("late"));
        let made = variable(&resources, own, "v", 1.0);
        let (saved, _) = resources.save_guarded(own, &BTreeMap::new())?;
        let since = Moment::now();
        let put = || {
            let name = "v";
            resources.load_over(&key(name), own, &saved[&key(name)], Over::Own { session: own, since, name })
        };
        on_behalf(own, || made.hold().set(Value::Host(Tensor::scalar(2f32))));
        put()?;
        assert_eq!(value(&resources, "v"), Some(1.0));
        on_behalf(other, || made.hold().set(Value::Host(Tensor::scalar(3f32))));
        let refused = put().unwrap_err();
        assert_eq!((refused.code, value(&resources, "v")), (Code::FailedPrecondition, Some(3.0)));
        assert!(refused.message.contains("variable 'v'"), "{refused}");
        // Nor is a resource forgotten that another session has changed, or any beside it.
        variable(&resources, own, "late", 1.0);
        let refused = resources.drop_guarded(own, since, |_| false).unwrap_err();
        assert!(refused.message.contains("variable 'v'"), "{refused}");
        assert_eq!((value(&resources, "v"), value(&resources, "late")), (Some(3.0), Some(1.0)));
        resources.drop_guarded(own, since, |key| key.name == "v")?;
        assert_eq!((value(&resources, "v"), value(&resources, "late")), (Some(3.0), None));
        Ok(())
    }

    #[test]
    fn a_resource_that_another_session_made_stays() -> Result<(), Failure> {
        let (resources, own, other) = (Resources::new(), SessionId(1), SessionId(2));
        let made = variable(&resources, other, "v", 5.0);
        let since = Moment::now();
        resources.guard(own);
        // A plan that names it was registered after the state was saved.
        resources.names(own, &key("v"));
        variable(&resources, own, "late", 1.0);
        resources.names(own, &key("late"));
        resources.drop_guarded(own, since, |_| false)?;
        assert_eq!((value(&resources, "v"), value(&resources, "late")), (Some(5.0), None));
        // It has no state to which a change could be undone.
        on_behalf(own, || made.hold().set(Value::Host(Tensor::scalar(6f32))));
        let refused = resources.drop_guarded(own, since, |_| false).unwrap_err();
        assert!(refused.code == Code::FailedPrecondition && refused.message.contains("variable 'v'"), "{refused}");
        assert_eq!(value(&resources, "v"), Some(6.0));
        Ok(())
    }

    /// Notifies nobody.
    struct Silent;

    impl Wake for Silent {
        fn wake(&self, _wait: WaitId, _result: Result<Answer>) {}
    }

    #[test]
    fn an_element_that_waited_for_room_is_that_of_its_own_session() -> Result<()> {
        let (resources, own, other) = (Resources::new(), SessionId(1), SessionId(2));
        let queue = Arc::new(Queue::new("q".into(), Kind::Fifo, vec![DType::F32], Vec::new(), 1, None));
        let made: Arc<dyn Resource> = Arc::<Queue>::clone(&queue);
        resources.find_or_make(&key("q"), own, || Ok(made))?;
        resources.guard(own);
        resources.names(own, &key("q"));
        let waiter = |session| {
            let wait = WaitId { step: StepId { session, number: 1 }, number: 0 };
            Waiter { device: Arc::new(Silent), wait }
        };
        let enqueue =
            |session| on_behalf(session, || queue.enqueue(waiter(session), vec![Tensor::scalar(1f32)]).map(drop));
        enqueue(own)?;
        enqueue(other)?;
        let since = Moment::now();
        assert_eq!(resources.changed_by_others(own, since), None);
        on_behalf(own, || queue.dequeue(waiter(own)).map(drop))?;
        assert_eq!(resources.changed_by_others(own, since).map(|(key, _)| key), Some(key("q")));
        assert_eq!(queue.len(), 1);
        Ok(())
    }
}
