//! Variables that sessions share by name, as data: they outlive sessions, and with a copy elsewhere their process, too.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;

use super::saved::saved;
use super::{Edition, Lasting, OUTSIDE, ResourceKey, Resources, Saved, Variable, Version};

/// The variables of a task that sessions share by name: each with its state, or with none if that is of the known version.
pub type SharedVariables = BTreeMap<ResourceKey, (Edition, Option<Saved>)>;

impl Resources {
    /// The initialized variables that sessions share by name, but for those of guarded sessions, whose state is copied with
    /// their steps. The state of one that has its `known` version is left out. Waits for the ops that work on them, one after
    /// the other: each state is whole, and they need not be of one moment.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory; the failure of a device whose memory holds one.
    pub fn save_shared(&self, known: &BTreeMap<ResourceKey, Edition>) -> Result<SharedVariables> {
        let all: Vec<_> = {
            let table = lock(&self.table);
            let shared = table.resources.iter().filter(|(key, (resource, _))| {
                let is_guarded = || table.guarded.values().any(|named| named.contains(key));
                key.session.is_none() && resource.is::<Variable>() && !is_guarded()
            });
            shared.map(|(key, (resource, _))| (key.clone(), resource.clone())).collect()
        };
        let mut found = SharedVariables::new();
        for (key, resource) in all {
            let now = resource.version().map(Version::edition);
            if let Some(edition) = now.filter(|edition| known.get(&key) == Some(edition)) {
                found.insert(key, (edition, None));
                continue;
            }
            let state = saved(&key, &*resource)?;
            // One without a value is the same as none.
            if !state.tensors.is_empty() {
                found.insert(key, (state.version, Some(state)));
            }
        }
        Ok(found)
    }

    /// Makes a variable of the state that another process had of it. It is nobody's change: a guarded session may put its own
    /// state in the place of this one.
    ///
    /// # Errors
    /// InvalidArgument if it is no variable that sessions share, or malformed; ResourceExhausted over a limit.
    pub fn load_shared(&self, key: &ResourceKey, saved: &Saved) -> Result<()> {
        if key.session.is_some() || saved.kind != Variable::KIND {
            return Err(Failure::invalid(format!("'{}' is no variable that sessions share", key.name)));
        }
        self.load(key, OUTSIDE, saved)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meshtf_engine::Value;
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::ids::SessionId;
    use meshtf_tensor::{DType, PartialShape, Tensor};

    use super::super::{Moment, Over, Resource, on_behalf};
    use super::*;

    fn key(name: &str, session: Option<SessionId>) -> ResourceKey {
        ResourceKey { container: "c".into(), name: name.into(), session, device: (DeviceKind::Cpu, 0) }
    }

    fn variable(resources: &Resources, key: &ResourceKey, value: Option<f32>) -> Arc<Variable> {
        let make = || {
            let made: Arc<dyn Resource> = Arc::new(Variable::new(key.name.clone(), DType::F32, PartialShape::UNKNOWN));
            Ok(made)
        };
        let made = resources.find_or_make(key, SessionId(1), make).and_then(|made| made.typed::<Variable>()).unwrap();
        value.into_iter().for_each(|value| made.hold().set(Value::Host(Tensor::scalar(value))));
        made
    }

    fn editions(found: &SharedVariables) -> BTreeMap<ResourceKey, Edition> {
        found.iter().map(|(key, (edition, _))| (key.clone(), *edition)).collect()
    }

    #[test]
    fn what_sessions_share_and_no_guarded_session_has_is_saved_once() -> Result<()> {
        let resources = Resources::new();
        let shared = variable(&resources, &key("v", None), Some(1.0));
        variable(&resources, &key("w", None), Some(2.0));
        variable(&resources, &key("empty", None), None);
        variable(&resources, &key("own", Some(SessionId(3))), Some(3.0));
        variable(&resources, &key("guarded", None), Some(4.0));
        resources.guard(SessionId(4));
        resources.guard_also(SessionId(4), [key("guarded", None)].iter());
        let first = resources.save_shared(&BTreeMap::new())?;
        assert_eq!(first.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["v", "w"]);
        shared.hold().set(Value::Host(Tensor::scalar(5f32)));
        let second = resources.save_shared(&editions(&first))?;
        let changed: Vec<_> = second.iter().filter(|(_, (_, state))| state.is_some()).collect();
        assert_eq!(changed.iter().map(|(key, _)| key.name.as_str()).collect::<Vec<_>>(), ["v"]);
        assert_eq!(second.len(), 2);
        // Once the guarded session is over, its variable is as the others.
        resources.release(SessionId(4));
        assert_eq!(resources.save_shared(&editions(&second))?.len(), 3);
        Ok(())
    }

    #[test]
    fn a_loaded_variable_has_its_version_and_is_nobodys_change() -> Result<()> {
        let (before, after) = (Resources::new(), Resources::new());
        variable(&before, &key("v", None), Some(1.0));
        let found = before.save_shared(&BTreeMap::new())?;
        for (key, (_, state)) in &found {
            after.load_shared(key, state.as_ref().unwrap())?;
        }
        // Only what changes afterwards is saved again.
        assert!(after.save_shared(&editions(&found))?.values().all(|(_, state)| state.is_none()));
        // A guarded session puts its own state in its place.
        let (own, name) = (SessionId(9), "v");
        after.guard_also(own, [key("v", None)].iter());
        assert_eq!(after.changed_by_others(own, Moment::default()), None);
        let cut = Saved { tensors: vec![Tensor::scalar(7f32)], ..found[&key("v", None)].1.clone().unwrap() };
        let over = Over::Own { session: own, since: Moment::default(), name };
        on_behalf(own, || after.load_over(&key("v", None), own, &cut, over))?;
        assert_eq!(after.save(&key("v", None))?.tensors, [Tensor::scalar(7f32)]);
        // Anything but a shared variable is refused.
        let state = found[&key("v", None)].1.clone().unwrap();
        assert!(after.load_shared(&key("v", Some(own)), &state).is_err());
        assert!(after.load_shared(&key("w", None), &Saved { kind: "queue".into(), ..state }).is_err());
        Ok(())
    }
}
