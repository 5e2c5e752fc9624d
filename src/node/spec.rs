//! A ClusterSpec: fixed addresses for tasks, as TensorFlow's programs write them.
//!
//! Three forms are read: JSON (`{"worker": ["a:2222"]}`), the text of TensorFlow's first servers
//! (`worker|a:2222;b:2222,ps|c:2222`), and the environment variable `TF_CONFIG`, which names the own task too.

use std::collections::BTreeMap;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{self, Fault, Kind, Path, Value};

/// The `host:port` of each task, for meshes whose nodes do not search for each other.
///
/// ```
/// use meshtf::{ClusterSpec, Task};
///
/// // The addresses of tasks 0 and 1, and of task 3 alone.
/// let spec = ClusterSpec::from_json(r#"{"worker": ["a:4001", "b:4001"], "ps": {"3": "c:4001"}}"#)?;
/// assert_eq!(spec.addresses()[&Task::new("worker", 1)], "b:4001");
/// assert_eq!(spec.addresses()[&Task::new("ps", 3)], "c:4001");
///
/// // The form of TensorFlow's servers.
/// let spec = ClusterSpec::from_flag("ps|c:4001,worker|a:4001;b:4001")?;
/// assert_eq!(spec.addresses()[&Task::new("worker", 1)], "b:4001");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSpec(BTreeMap<Task, String>);

impl ClusterSpec {
    /// Reads a ClusterSpec from JSON.
    ///
    /// # Errors
    /// InvalidArgument if it is not JSON of that form, a job's name is not valid, or an address occurs twice.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = json::parse(text).map_err(|fault| refused(text, fault))?;
        ClusterSpec::of(tasks(&value, Path::Root).map_err(|fault| refused(text, fault))?)
    }

    /// Reads a ClusterSpec in the form of the flag `--cluster_spec` of TensorFlow's servers: jobs with commas between them,
    /// each with its name, a bar, and its addresses with semicolons between them: `ps|a:2222,worker|b:2222;c:2222`. JSON is
    /// read, too.
    ///
    /// # Errors
    /// InvalidArgument as for [`ClusterSpec::from_json`], and for a part that is not of that form.
    pub fn from_flag(text: &str) -> Result<Self> {
        if text.trim_start().starts_with('{') {
            return ClusterSpec::from_json(text);
        }
        let mut all = Vec::new();
        for part in text.split(',') {
            let wrong = |why: &str| {
                Failure::invalid(format!("{part:?} {why}; expected jobs such as ps|a:2222,worker|b:2222;c:2222"))
            };
            let (job, addresses) = part.trim().split_once('|').ok_or_else(|| wrong("has no bar after a job's name"))?;
            for (i, address) in addresses.split(';').enumerate() {
                if address.trim().is_empty() {
                    return Err(wrong("has an empty address"));
                }
                all.push((format!("{job}/{i}"), address.trim().to_owned()));
            }
        }
        ClusterSpec::of(all)
    }

    /// Reads the environment variable `TF_CONFIG`: the cluster, and the task of the process, if it is one of the cluster's:
    /// `{"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}`.
    ///
    /// # Errors
    /// InvalidArgument as for [`ClusterSpec::from_json`], and if there is no cluster or the task is not of that form.
    pub fn from_tf_config(text: &str) -> Result<(Self, Option<Task>)> {
        let value = json::parse(text).map_err(|fault| refused(text, fault))?;
        let path = Path::Root;
        let read = || {
            value.object(path, "TF_CONFIG is an object with a cluster and a task")?;
            let cluster =
                value.get("cluster").ok_or_else(|| Fault::content(&value, path, "TF_CONFIG names no cluster"))?;
            let all = tasks(cluster, path.key("cluster"))?;
            let Some(task) = value.get("task") else { return Ok((all, None)) };
            let job = task.get("type").map(|job| job.text(path.key("task"))).transpose()?;
            let index = match task.get("index").map(|index| &index.kind) {
                None => "0".to_owned(),
                Some(Kind::Number(index)) => (*index).to_string(),
                Some(Kind::String(index)) => index.to_string(),
                Some(_) => return Err(Fault::content(task, path.key("task"), "the index of a task is a number")),
            };
            Ok((all, job.map(|job| format!("{job}/{index}"))))
        };
        let (all, task) = read().map_err(|fault| refused(text, fault))?;
        let task = task.map(|task| task.parse().map_err(|error| Failure::invalid(format!("{error}")))).transpose()?;
        Ok((ClusterSpec::of(all)?, task))
    }

    /// From tasks with their addresses; no address and no task may be listed twice.
    fn of(all: Vec<(String, String)>) -> Result<Self> {
        let mut addresses: BTreeMap<Task, String> = BTreeMap::new();
        for (task, address) in all {
            let task: Task = task.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
            if let Some((other, _)) = addresses.iter().find(|(_, known)| **known == address) {
                return Err(Failure::invalid(format!("{address} is the address of both {other} and {task}")));
            }
            if addresses.contains_key(&task) {
                return Err(Failure::invalid(format!("{task} is listed twice")));
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
fn tasks(value: &Value, path: Path) -> Result<Vec<(String, String)>, Fault> {
    let mut all = Vec::new();
    for job in value.object(path, "it is an object of jobs")? {
        let path = path.key(&job.key);
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

    #[test]
    fn the_flag_of_tensorflows_servers() {
        let spec =
            ClusterSpec::from_flag("master|localhost:2222,worker|localhost:2223;h:1, worker_|localhost:2224").unwrap();
        let shown = spec.addresses().into_iter().map(|(task, address)| format!("{} {address}", task.short()));
        let expected =
            ["master/0 localhost:2222", "worker/0 localhost:2223", "worker/1 h:1", "worker_/0 localhost:2224"];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(ClusterSpec::from_flag(r#" {"ps": ["a:1"]}"#).unwrap().addresses().len(), 1);
        for (bad, says) in [
            ("", "no bar"),
            ("worker", "no bar"),
            ("worker|", "an empty address"),
            ("worker|a:1;", "an empty address"),
            ("worker|a:1,worker|b:1", "twice"),
            ("ps|a:1,worker|a:1", "the address of both"),
            ("9|a:1", "9/0"),
        ] {
            let failure = ClusterSpec::from_flag(bad).expect_err(bad);
            assert!(failure.message.contains(says), "{bad}: {failure}");
        }
    }

    #[test]
    fn the_environment_of_estimators() {
        let text = r#"{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}, "environment": "cloud"}"#;
        let (spec, task) = ClusterSpec::from_tf_config(text).unwrap();
        assert_eq!(spec.addresses().len(), 2);
        assert_eq!(task, Some(Task::new("ps", 0)));
        let (_, task) = ClusterSpec::from_tf_config(r#"{"cluster": {"ps": ["b:1"]}}"#).unwrap();
        assert_eq!(task, None);
        for (bad, says) in [
            ("{}", "no cluster"),
            (r#"{"cluster": {"ps": "b:1"}}"#, "$.cluster.ps"),
            (r#"{"cluster": {"ps": ["b:1"]}, "task": {"type": "ps", "index": []}}"#, "is a number"),
            (r#"{"cluster": {"ps": ["b:1"]}, "task": {"type": "ps", "index": -1}}"#, "ps/-1"),
            ("[", "line 1"),
        ] {
            let failure = ClusterSpec::from_tf_config(bad).expect_err(bad);
            assert!(failure.message.contains(says), "{bad}: {failure}");
        }
    }
}
