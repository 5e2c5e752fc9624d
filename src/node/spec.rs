//! A ClusterSpec: fixed addresses for tasks, as TensorFlow's programs write them.

use std::collections::BTreeMap;

use crate::device::Task;
use crate::failure::{Failure, Result};
use crate::json::{self, Fault, Kind, Path, Value};

/// Which task is at which `host:port`. Read from JSON: `{"worker": ["a:4001", "b:4001"], "ps": {"3": "c:4001"}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec(BTreeMap<Task, String>);

impl ClusterSpec {
    /// Reads a ClusterSpec from JSON.
    ///
    /// # Errors
    /// InvalidArgument if it is not JSON of that form, a job's name is not valid, or an address stands twice.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = json::parse(text).map_err(|fault| refused(text, fault))?;
        let mut addresses: BTreeMap<Task, String> = BTreeMap::new();
        for (task, address) in tasks(&value).map_err(|fault| refused(text, fault))? {
            let task: Task = task.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
            if let Some((other, _)) = addresses.iter().find(|(_, known)| **known == address) {
                return Err(Failure::invalid(format!("{address} is the address of both {other} and {task}")));
            }
            if addresses.contains_key(&task) {
                return Err(Failure::invalid(format!("{task} stands there twice")));
            }
            addresses.insert(task, address);
        }
        Ok(ClusterSpec(addresses))
    }

    /// The address of each task.
    pub fn addresses(&self) -> BTreeMap<Task, String> {
        self.0.clone()
    }
}

/// `worker/0` and its address, for each task: a job's list begins at task 0, an object has the tasks' numbers as keys.
fn tasks(value: &Value) -> Result<Vec<(String, String)>, Fault> {
    let mut all = Vec::new();
    for job in value.object(Path::Root, "it is an object of jobs")? {
        let path = Path::Root.key(&job.key);
        match &job.value.kind {
            Kind::List(list) => {
                for (i, address) in list.iter().enumerate() {
                    all.push((format!("{}/{i}", job.key), address.text(path.index(i))?.to_owned()));
                }
            }
            Kind::Object(members) => {
                for member in members {
                    let address = member.value.text(path.key(&member.key))?.to_owned();
                    all.push((format!("{}/{}", job.key, member.key), address));
                }
            }
            _ => {
                let why = "a job is a list of addresses, or an object of addresses by task number";
                return Err(Fault::content(&job.value, path, format!("{why}, not {}", job.value.describe())));
            }
        }
    }
    Ok(all)
}

fn refused(text: &str, fault: Fault) -> Failure {
    let (line, column) = json::position(text, fault.at);
    let path = fault.path.map_or_else(String::new, |path| format!("{path} "));
    Failure::invalid(format!("{path}(line {line}, column {column}): {}", fault.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_and_mistakes() {
        let spec = ClusterSpec::from_json(r#"{"worker": ["a:1", "b:1"], "ps": {"3": "c:1"}}"#).unwrap();
        let tasks: Vec<String> = spec.addresses().keys().map(Task::short).collect();
        assert_eq!(tasks, ["ps/3", "worker/0", "worker/1"]);
        let check = |bad: &str, says: &str| {
            let failure = ClusterSpec::from_json(bad).expect_err(bad);
            assert!(failure.message.contains(says), "{bad}: {failure}");
        };
        check("[]", "an object of jobs, not a list");
        check(r#"{"worker": "a:1"}"#, "$.worker (line 1, column 12): a job is a list of addresses");
        check(r#"{"cluster": {"worker": ["a:1"]}}"#, "$.cluster.worker (line 1, column 24): expected a string");
        check(r#"{"9x": ["a:1"]}"#, "9x");
        check(r#"{"worker": ["a:1", "a:1"]}"#, "the address of both");
        check(r#"{"worker": ["a:1"], "worker": ["b:1"]}"#, "worker");
        check(r#"{"worker": {"0": "a:1", "00": "b:1"}}"#, "twice");
    }
}
