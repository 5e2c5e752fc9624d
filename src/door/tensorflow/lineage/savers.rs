//! The nodes that a TensorFlow Saver adds to a graph, as far as it is certain: the runs that restore variables, and nothing
//! else, from the checkpoint whose name they are fed, and the tensors that have such a name once a checkpoint is saved.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meshtf_exec::container_named;
use meshtf_graph::{NodeDef, split_tensor_name};
use meshtf_tensor::device::{DeviceSpec, Task};

/// The name of the variable that counts the steps, in a graph and in a checkpoint.
const GLOBAL_STEP: &str = "global_step";
/// Most targets within a target.
const MAX_DEPTH: usize = 8;
/// How often a node is looked at, on average: a saver's assignments, six or seven times, once for each target that they are in.
const LOOKS: usize = 64;

/// A variable of a task that sessions share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    pub task: Task,
    pub container: String,
    pub name: String,
}

/// A run that restores variables from a checkpoint, and does nothing else.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Restore {
    /// The placeholder of the checkpoint's name.
    pub prefix: String,
    /// All variables that it assigns.
    pub variables: BTreeSet<Placed>,
    /// The count of steps, and the tensor that has it as it is in the checkpoint.
    pub step: (Placed, String),
    /// A node of one of the variables of each task.
    pub nodes: BTreeMap<Task, String>,
}

impl Restore {
    /// The tasks of its variables.
    pub fn tasks(&self) -> BTreeSet<&Task> {
        self.variables.iter().map(|variable| &variable.task).collect()
    }
}

/// The savers of a graph.
#[derive(Debug, Default)]
pub(super) struct Savers {
    /// By their target.
    pub restores: BTreeMap<String, Restore>,
    /// Tensors that are there once a checkpoint is saved, with the placeholder of its name.
    pub saves: BTreeMap<String, String>,
    /// The nodes that have names of checkpoints, of whatever is restored.
    pub prefixes: BTreeSet<String>,
}

/// The effects of a target, as far as it was looked at.
#[derive(Clone, Default)]
struct Found {
    prefixes: BTreeSet<String>,
    variables: BTreeSet<Placed>,
    step: Option<(Placed, String)>,
    nodes: BTreeMap<Task, String>,
}

/// The nodes of a graph, and the number of nodes that may be looked at again: those that a client sends may lead from each to all
/// others.
struct Search<'n> {
    by_name: HashMap<&'n str, &'n NodeDef>,
    left: usize,
}

impl Savers {
    /// Those of a graph without cycles; none if it takes longer to find them than a graph with savers would.
    pub fn of(nodes: &[NodeDef]) -> Savers {
        let has_any = nodes.iter().any(|node| node.op == "RestoreV2");
        if !has_any {
            return Savers::default();
        }
        let by_name: HashMap<&str, &NodeDef> = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
        let mut search = Search { by_name, left: nodes.len().saturating_mul(LOOKS) };
        let mut savers = Savers::default();
        for node in nodes {
            match node.op.as_str() {
                "NoOp" => {
                    let found = search.target(node, 0);
                    if search.left == 0 {
                        return Savers::default();
                    }
                    let Some(Found { prefixes, variables, step: Some(step), nodes }) = found else { continue };
                    let mut prefixes = prefixes.into_iter();
                    if let (Some(prefix), None) = (prefixes.next(), prefixes.next()) {
                        savers.restores.insert(node.name.clone(), Restore { prefix, variables, step, nodes });
                    }
                }
                "Identity" => {
                    let is_saved = |input: &String| {
                        let saver = input.strip_prefix('^').and_then(|name| search.by_name.get(name));
                        saver.is_some_and(|node| ["SaveV2", "MergeV2Checkpoints"].contains(&node.op.as_str()))
                    };
                    if let Some((prefix, after)) = node.inputs.split_first()
                        && after.iter().any(is_saved)
                    {
                        savers.saves.insert(node.name.clone(), split_tensor_name(prefix).0.to_owned());
                    }
                }
                "RestoreV2" => {
                    let prefix = node.inputs.first().map(|input| split_tensor_name(input).0.to_owned());
                    savers.prefixes.extend(prefix);
                }
                _ => {}
            }
        }
        savers
    }

    /// All variables that are restored by the name that a node has.
    pub fn variables(&self, prefix: &str) -> BTreeSet<&Placed> {
        let own = self.restores.values().filter(|restore| restore.prefix == prefix);
        own.flat_map(|restore| &restore.variables).collect()
    }
}

impl<'n> Search<'n> {
    /// The variables that a target restores; `None` if it does anything else.
    fn target(&mut self, node: &NodeDef, depth: usize) -> Option<Found> {
        if node.op != "NoOp" {
            return self.assigned(node);
        }
        if depth >= MAX_DEPTH || node.inputs.is_empty() {
            return None;
        }
        let mut all = Found::default();
        for input in &node.inputs {
            let input = self.look(input.strip_prefix('^')?)?;
            let found = self.target(input, depth + 1)?;
            // Each is copied once for each level.
            self.left = self.left.saturating_sub(found.variables.len());
            all.prefixes.extend(found.prefixes);
            all.variables.extend(found.variables);
            all.step = all.step.or(found.step);
            all.nodes.extend(found.nodes);
        }
        Some(all)
    }

    /// The variable that a node assigns from a checkpoint; `None` if it does anything else.
    fn assigned(&mut self, node: &NodeDef) -> Option<Found> {
        let ([variable, value], true) = (&node.inputs[..], ["Assign", "AssignVariableOp"].contains(&node.op.as_str()))
        else {
            return None;
        };
        let handle = self.look(split_tensor_name(variable).0)?;
        let variable = placed(handle)?;
        let mut value = value.as_str();
        let restore = loop {
            let node = self.look(split_tensor_name(value).0)?;
            match (node.op.as_str(), &node.inputs[..]) {
                ("RestoreV2", _) => break node,
                ("Identity", [from]) => value = from,
                _ => return None,
            }
        };
        let [prefix, names, slices] = &restore.inputs[..] else { return None };
        let prefix = split_tensor_name(prefix).0;
        if self.look(prefix)?.op != "PlaceholderWithDefault" {
            return None;
        }
        let port = split_tensor_name(value).1 as usize;
        let (name, slice) = (self.string(names, port)?, self.string(slices, port)?);
        let counts = name == GLOBAL_STEP.as_bytes() && slice.is_empty() && variable.name == GLOBAL_STEP;
        let step = counts.then(|| (variable.clone(), format!("{}:{port}", restore.name)));
        Some(Found {
            prefixes: BTreeSet::from([prefix.to_owned()]),
            nodes: BTreeMap::from([(variable.task.clone(), handle.name.clone())]),
            variables: BTreeSet::from([variable]),
            step,
        })
    }

    /// An element of a constant of strings.
    fn string(&mut self, tensor: &str, place: usize) -> Option<&'n [u8]> {
        let node = self.look(split_tensor_name(tensor).0).filter(|node| node.op == "Const")?;
        node.attrs.tensor("value").ok()?.slice::<Vec<u8>>().ok()?.get(place).map(Vec::as_slice)
    }

    fn look(&mut self, name: &str) -> Option<&'n NodeDef> {
        self.left = self.left.checked_sub(1)?;
        self.by_name.get(name).copied()
    }
}

/// A variable whose node names its task.
fn placed(node: &NodeDef) -> Option<Placed> {
    if !["VariableV2", "VarHandleOp"].contains(&node.op.as_str()) {
        return None;
    }
    let device: DeviceSpec = node.device.parse().ok()?;
    let task = Task::new(device.job?, device.task?);
    let stated = |name: &str| node.attrs.str(name).unwrap_or_default().to_owned();
    let (container, shared) = (stated("container"), stated("shared_name"));
    let name = if shared.is_empty() { node.name.clone() } else { shared };
    Some(Placed { task, container: container_named(&container).to_owned(), name })
}

#[cfg(test)]
pub(super) mod tests {
    use meshtf_graph::read;

    use super::*;

    /// A saver of two shards as TensorFlow makes it, and what is none.
    pub(in super::super) const GRAPH: &str = r#"{ "version": 1, "nodes": {
      "w": { "op": "VariableV2", "device": "/job:ps/task:0", "attrs": { "dtype": "float32", "shape": [] } },
      "global_step": { "op": "VarHandleOp", "device": "/job:ps/task:1/device:CPU:0",
        "attrs": { "dtype": "int64", "shape": [], "shared_name": "global_step" } },
      "nowhere": { "op": "VariableV2", "attrs": { "dtype": "float32", "shape": [] } },
      "filename": { "op": "Const", "attrs": { "value": { "dtype": "string", "value": "model" } } },
      "save/Const": { "op": "PlaceholderWithDefault", "inputs": ["filename"], "attrs": { "dtype": "string", "shape": [] } },
      "names": { "op": "Const", "attrs": { "value": { "dtype": "string", "value": ["a", "global_step"] } } },
      "slices": { "op": "Const", "attrs": { "value": { "dtype": "string", "value": ["", ""] } } },
      "save/RestoreV2": { "op": "RestoreV2", "inputs": ["save/Const", "names", "slices"],
        "attrs": { "dtypes": ["float32", "int64"] } },
      "through": { "op": "Identity", "inputs": ["save/RestoreV2:1"] },
      "set_w": { "op": "Assign", "inputs": ["w", "save/RestoreV2"] },
      "set_step": { "op": "AssignVariableOp", "inputs": ["global_step", "through"] },
      "set_nowhere": { "op": "Assign", "inputs": ["nowhere", "save/RestoreV2"] },
      "zero": { "op": "Const", "attrs": { "value": { "dtype": "float32", "value": 0 } } },
      "init_w": { "op": "Assign", "inputs": ["w", "zero"] },
      "shard_0": { "op": "NoOp", "control": ["set_w"] },
      "shard_1": { "op": "NoOp", "control": ["set_step"] },
      "restore_all": { "op": "NoOp", "control": ["shard_0", "shard_1"] },
      "with_init": { "op": "NoOp", "control": ["restore_all", "init_w"] },
      "with_nowhere": { "op": "NoOp", "control": ["restore_all", "set_nowhere"] },
      "save": { "op": "SaveV2", "inputs": ["save/Const", "names", "slices", "zero", "zero"],
        "attrs": { "dtypes": ["float32", "float32"] } },
      "save/control": { "op": "Identity", "inputs": ["save/Const"], "control": ["save"] },
      "only": { "op": "Identity", "inputs": ["save/Const"], "control": ["restore_all"] } } }"#;

    #[test]
    fn a_target_that_restores_variables_of_known_tasks_and_the_step_is_a_restore() {
        let savers = Savers::of(&read(GRAPH.as_bytes()).unwrap().nodes);
        // One without the step cannot be compared; one that does anything else is none.
        assert_eq!(savers.restores.keys().collect::<Vec<_>>(), ["restore_all", "shard_1"]);
        let placed = |task: u32, name: &str| Placed {
            task: Task::new("ps", task),
            container: "localhost".into(),
            name: name.into(),
        };
        let Restore { prefix, variables, step, nodes } = &savers.restores["restore_all"];
        assert_eq!(prefix, "save/Const");
        assert_eq!(*variables, BTreeSet::from([placed(0, "w"), placed(1, "global_step")]));
        assert_eq!(*step, (placed(1, "global_step"), "save/RestoreV2:1".to_owned()));
        assert_eq!(nodes.values().collect::<Vec<_>>(), ["w", "global_step"]);
        assert_eq!(savers.variables("save/Const"), variables.iter().collect());
        assert_eq!(savers.prefixes, BTreeSet::from(["save/Const".to_owned()]));
        let saves: Vec<_> = savers.saves.iter().map(|(fetch, prefix)| (fetch.as_str(), prefix.as_str())).collect();
        assert_eq!(saves, [("save/control", "save/Const")]);
    }

    #[test]
    fn graphs_that_lead_from_each_node_to_all_others_have_no_savers() {
        let of = |more: &str| {
            let text = GRAPH.replace("\"zero\": {", &format!("{more} \"zero\": {{"));
            Savers::of(&read(text.as_bytes()).unwrap().nodes)
        };
        assert!(!of("").restores.is_empty());
        // Eight levels of 16 targets, each with all of the next level: four thousand million ways.
        let mut levels = String::new();
        for level in 0..8 {
            let next: Vec<String> = match level {
                7 => vec!["\"set_w\"".into()],
                _ => (0..16).map(|i| format!("\"l{}_{i}\"", level + 1)).collect(),
            };
            for i in 0..16 {
                let next = next.join(", ");
                levels.push_str(&format!("\"l{level}_{i}\": {{ \"op\": \"NoOp\", \"control\": [{next}] }},"));
            }
        }
        assert_eq!(of(&levels).restores.len(), 0);
        // A value that is its own: the graph is refused after this.
        let mut nodes = read(GRAPH.as_bytes()).unwrap().nodes;
        nodes.iter_mut().find(|node| node.name == "through").unwrap().inputs = vec!["through".into()];
        assert_eq!(Savers::of(&nodes).restores.len(), 0);
    }
}
