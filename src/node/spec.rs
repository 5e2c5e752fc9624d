//! A ClusterSpec: fixed addresses for tasks, as TensorFlow's programs write them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::failure::{Failure, Result};
use crate::plan::Task;

/// Which task is at which `host:port`. Read from JSON: `{"worker": ["a:4001", "b:4001"], "ps": {"3": "c:4001"}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec(BTreeMap<Task, String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Tasks {
    /// From task 0 on.
    Dense(Vec<String>),
    /// By number, which JSON writes as text.
    Sparse(BTreeMap<String, String>),
}

impl ClusterSpec {
    /// Reads a ClusterSpec from JSON.
    ///
    /// # Errors
    /// InvalidArgument where it is not JSON of that form, a job's name is none, or an address stands twice.
    pub fn from_json(text: &str) -> Result<Self> {
        let jobs: BTreeMap<String, Tasks> = serde_json::from_str(text).map_err(|error| {
            Failure::invalid(format!("not a ClusterSpec: {error}; a job's value is a list of host:port addresses"))
        })?;
        let mut addresses = BTreeMap::new();
        for (job, tasks) in jobs {
            let tasks: Vec<(String, String)> = match tasks {
                Tasks::Dense(list) => list.into_iter().enumerate().map(|(i, at)| (i.to_string(), at)).collect(),
                Tasks::Sparse(map) => map.into_iter().collect(),
            };
            for (index, address) in tasks {
                let task: Task =
                    format!("{job}/{index}").parse().map_err(|error| Failure::invalid(format!("{error}")))?;
                if let Some((other, _)) = addresses.iter().find(|(_, known)| **known == address) {
                    return Err(Failure::invalid(format!("{address} is the address of both {other} and {task}")));
                }
                addresses.insert(task, address);
            }
        }
        Ok(ClusterSpec(addresses))
    }

    /// The address of each task.
    pub fn addresses(&self) -> BTreeMap<Task, String> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_and_mistakes() {
        let spec = ClusterSpec::from_json(r#"{"worker": ["a:1", "b:1"], "ps": {"3": "c:1"}}"#).unwrap();
        let tasks: Vec<String> = spec.addresses().keys().map(Task::short).collect();
        assert_eq!(tasks, ["ps/3", "worker/0", "worker/1"]);
        for bad in ["[]", r#"{"worker": "a:1"}"#, r#"{"9x": ["a:1"]}"#, r#"{"worker": ["a:1", "a:1"]}"#] {
            assert!(ClusterSpec::from_json(bad).is_err(), "{bad}");
        }
    }
}
