//! Descriptions of a task's resources, for queries from outside of its graphs.

use std::ops::Bound;
use std::sync::Arc;

use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, PartialShape};

use super::{Edition, Resource, ResourceKey, Resources, Version};

/// A resource at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceInfo {
    /// Its key in the table.
    pub key: ResourceKey,
    /// `variable`, `queue`, `barrier`, `mutex`, `batch`, `parts of batches`, `accumulator`, `staging area`,
    /// `map of sparse tensors`, `session's tensors`, `iterator`, `lookup table`, `reader`, `summary writer`,
    /// `aggregator of statistics`, `ensemble of trees` or `streams of quantiles`.
    pub kind: &'static str,
    /// The session that made it.
    pub session: SessionId,
    /// Of a variable's value, of a queue's components, of a table's keys and values.
    pub dtypes: Vec<DType>,
    /// Of a variable's value, or as the graph states if it has none; of an accumulator's gradients, of a table's values.
    pub shape: PartialShape,
    /// Bytes of the elements that it holds, in the memory of any device; `None` while an op changes it.
    pub bytes: Option<usize>,
    /// Elements of a queue, gradients of an accumulator, entries of a table, trees of an ensemble; `None` while an op
    /// changes it.
    pub length: Option<usize>,
    /// The number of changes of a variable; `None` while an op changes it.
    pub version: Option<u64>,
}

/// The description that a resource gives of itself; fields not known at the moment are `None`.
#[derive(Default)]
pub(crate) struct Look {
    pub dtypes: Vec<DType>,
    pub shape: PartialShape,
    pub bytes: Option<usize>,
    pub length: Option<usize>,
    pub version: Option<u64>,
}

impl Resources {
    /// The number of resources.
    pub fn count(&self) -> usize {
        lock(&self.table).resources.len()
    }

    /// The version of a resource, which differs after each change of its contents, and stays while they are only read.
    /// `None` while an op works on it, and if there is no such resource. Never waits.
    pub fn version(&self, key: &ResourceKey) -> Option<Edition> {
        self.find(key)?.version().map(Version::edition)
    }

    /// The `most` resources that take most memory, the largest first.
    pub fn largest(&self, most: usize) -> Vec<ResourceInfo> {
        let table = lock(&self.table);
        let mut sizes: Vec<(usize, &ResourceKey)> =
            table.resources.iter().map(|(key, (resource, _))| (resource.look().bytes.unwrap_or(0), key)).collect();
        // The keys are in order, and stay so among resources of one size.
        sizes.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
        sizes.into_iter().take(most).map(|(_, key)| info(key, &table.resources[key])).collect()
    }

    /// A resource that sessions share.
    ///
    /// # Errors
    /// As [`Resources::devices_with`].
    pub(crate) fn shared(&self, device: (DeviceKind, u32), container: &str, name: &str) -> Result<Arc<dyn Resource>> {
        let key = ResourceKey { session: None, device, container: container.to_owned(), name: name.to_owned() };
        let found = lock(&self.table).resources.get(&key).map(|(resource, _)| resource.clone());
        found.ok_or_else(|| self.not_shared(container, name))
    }

    /// The devices that have a resource of that name which sessions share; one at least.
    ///
    /// # Errors
    /// NotFound; PermissionDenied if only isolated sessions have one.
    pub fn devices_with(&self, container: &str, name: &str) -> Result<Vec<(DeviceKind, u32)>> {
        let having: Vec<_> =
            self.named(container, name).into_iter().filter(|key| key.session.is_none()).map(|key| key.device).collect();
        if having.is_empty() { Err(self.not_shared(container, name)) } else { Ok(having) }
    }

    /// All resources of that name, those that sessions share first. No other part of the table is read.
    fn named(&self, container: &str, name: &str) -> Vec<ResourceKey> {
        let (container, name) = (container.to_owned(), name.to_owned());
        let first = ResourceKey { container, name, session: None, device: (DeviceKind::Cpu, 0) };
        let table = lock(&self.table);
        let following = table.resources.range(&first..).map(|(key, _)| key);
        following.take_while(|key| key.container == first.container && key.name == first.name).cloned().collect()
    }

    fn not_shared(&self, container: &str, name: &str) -> Failure {
        if self.named(container, name).iter().any(|key| key.session.is_some()) {
            let why = format!("'{name}' is of an isolated session, which alone can see it");
            return Failure::new(Code::PermissionDenied, why);
        }
        Failure::new(Code::NotFound, format!("there is no variable '{name}' in container '{container}'"))
    }

    /// The `most` resources that follow `after` in the order of their keys.
    pub fn after(&self, after: Option<&ResourceKey>, most: usize) -> Vec<ResourceInfo> {
        let table = lock(&self.table);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let following = table.resources.range::<ResourceKey, _>((from, Bound::Unbounded));
        following.take(most).map(|(key, resource)| info(key, resource)).collect()
    }
}

fn info(key: &ResourceKey, (resource, session): &(Arc<dyn Resource>, SessionId)) -> ResourceInfo {
    let Look { dtypes, shape, bytes, length, version } = resource.look();
    ResourceInfo { key: key.clone(), kind: resource.kind(), session: *session, dtypes, shape, bytes, length, version }
}

#[cfg(test)]
mod tests {
    use super::super::Variable;
    use super::*;

    #[test]
    fn a_name_is_found_on_its_devices_and_nowhere_else() {
        let resources = Resources::new();
        let (cpu, gpu) = (DeviceKind::Cpu, DeviceKind::Gpu);
        let isolated = Some(SessionId(3));
        let all = [
            (None, (gpu, 1), "localhost", "w"),
            (None, (cpu, 0), "localhost", "w"),
            (isolated, (cpu, 0), "localhost", "w"),
            (isolated, (gpu, 0), "localhost", "own"),
            // Neighbours of the name and of the container.
            (None, (cpu, 2), "localhost", "v"),
            (None, (cpu, 2), "localhost", "w2"),
            (None, (cpu, 3), "other", "w"),
            (None, (cpu, 4), "localhos", "w"),
        ];
        for (session, device, container, name) in all {
            let key = ResourceKey { container: container.to_owned(), name: name.to_owned(), session, device };
            let variable = Variable::new(name.to_owned(), DType::F32, PartialShape::UNKNOWN);
            let made = resources.find_or_make(&key, SessionId(3), || Ok(Arc::new(variable)));
            assert!(made.is_ok());
        }
        let devices = |container, name| resources.devices_with(container, name).map_err(|failure| failure.code);
        assert_eq!(devices("localhost", "w"), Ok(vec![(cpu, 0), (gpu, 1)]));
        assert_eq!(devices("other", "w"), Ok(vec![(cpu, 3)]));
        assert_eq!(devices("localhost", "w2"), Ok(vec![(cpu, 2)]));
        assert_eq!(devices("localhost", "own"), Err(Code::PermissionDenied));
        assert_eq!(devices("localhost", "x"), Err(Code::NotFound));
        assert_eq!(devices("localhost", ""), Err(Code::NotFound));
        // They are listed by container and name.
        let listed = resources.after(None, 99);
        let names: Vec<_> = listed.iter().map(|info| (&*info.key.container, &*info.key.name)).collect();
        assert!(names.is_sorted() && names.len() == all.len(), "{names:?}");
    }
}
