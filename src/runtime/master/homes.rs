//! The devices of variables and other resources that were placed by cost: a later session finds them where they are.

use std::collections::BTreeMap;
use std::sync::Mutex;

use meshtf_graph::plan::{ByCost, Plan, Why};
use meshtf_graph::{Graph, Node};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::lock::lock;

use crate::protocol::Cluster;

/// Most resources whose devices are remembered. More are placed anew by each plan, which gives the same device while the graph
/// and the nodes of the mesh are the same.
const MAX_KEPT: usize = 1 << 16;

/// The device of each resource by the name of its node, and the process that had it.
#[derive(Default)]
pub(super) struct Homes {
    kept: Mutex<BTreeMap<String, (DeviceName, Incarnation)>>,
}

impl Homes {
    /// The facts by which a graph is placed on a cluster. Resources of processes that are gone are forgotten.
    pub fn facts(&self, graph: &Graph, cluster: &Cluster) -> ByCost {
        let mut kept = lock(&self.kept);
        kept.retain(|_, (device, process)| {
            cluster.member(&device.task).is_some_and(|member| member.incarnation == *process)
        });
        let home = |node: &Node| Some((node.name.clone(), kept.get(&node.name)?.0.clone()));
        let homes = graph.nodes().filter_map(|(_, node)| home(node).filter(|_| makes_resource(node))).collect();
        ByCost { machines: cluster.machines(), homes }
    }

    /// Remembers the resources of a plan that were placed by cost.
    pub fn keep(&self, plan: &Plan, graph: &Graph, cluster: &Cluster) {
        let mut kept = lock(&self.kept);
        for placement in plan.placements.iter().filter(|placement| placement.why == Why::Cost) {
            let makes = graph.find(&placement.node).is_some_and(|id| makes_resource(graph.node(id)));
            if let Some(member) = cluster.member(&placement.device.task)
                && makes
                && (kept.len() < MAX_KEPT || kept.contains_key(&placement.node))
            {
                kept.insert(placement.node.clone(), (placement.device.clone(), member.incarnation));
            }
        }
    }
}

fn makes_resource(node: &Node) -> bool {
    node.op.makes_variable || node.outputs.iter().any(|output| output.dtype.is_handle())
}

#[cfg(test)]
mod tests {
    use meshtf_graph::plan::{PlanOptions, Signature, plan};
    use meshtf_graph::read;
    use meshtf_tensor::device::{DeviceKind, Task};

    use super::*;
    use crate::protocol::{DeviceInfo, Member, Peer};

    #[test]
    fn variables_stay_until_their_process_ends() {
        let tasks = [0, 1].map(|index| Task::new("t", index));
        let cluster = |second: u64| {
            let member = |task: &Task, process| Member {
                devices: vec![DeviceInfo::named(task.device(DeviceKind::Cpu, 0))],
                ..Member::bare(task.clone(), Peer::new(&*task.short()), Incarnation(process))
            };
            Cluster::new([member(&tasks[0], 1), member(&tasks[1], second)])
        };
        let text = r#"{"version": 1, "nodes": {
            "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [2]}},
            "y": {"op": "ReadVariableOp", "inputs": ["w"], "attrs": {"dtype": "float32"}}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let homes = Homes::default();
        // The device of `w` for a master on that task.
        let device = |cluster: &Cluster, task: &Task| {
            let by_cost = Some(homes.facts(&graph, cluster));
            let options =
                PlanOptions { default_device: task.device(DeviceKind::Cpu, 0), soft_placement: false, by_cost };
            let plan = plan(&graph, &cluster.facts(), &signature, &options).unwrap();
            homes.keep(&plan, &graph, cluster);
            plan.placements[0].device.task.clone()
        };
        assert_eq!(device(&cluster(1), &tasks[1]), tasks[1]);
        assert_eq!(device(&cluster(1), &tasks[0]), tasks[1], "it is there");
        assert_eq!(device(&cluster(2), &tasks[0]), tasks[0], "it went with its process");
    }
}
