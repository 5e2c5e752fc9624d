//! The devices of variables and constants that sessions placed by cost: each later plan finds them where they are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use meshtf_graph::op::Role;
use meshtf_graph::plan::{ByCost, PlaceBy, Plan};
use meshtf_graph::{Graph, NodeId};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::lock::lock;

use crate::protocol::Cluster;

/// Most variables whose devices a master remembers for later sessions; a session remembers all of its own.
const MAX_KEPT: usize = 1 << 16;

/// The devices of the variables and constants that a session has planned, by the names of their nodes. They stay there, since
/// constants may be large and are sent once; a plan that takes the place of another may move constants.
#[derive(Debug, Default)]
pub(super) struct SessionHomes {
    kept: Mutex<BTreeMap<String, DeviceName>>,
}

impl SessionHomes {
    /// The constants of a plan that took the place of another are where it has them.
    pub fn move_constants<'a>(&self, placed: impl Iterator<Item = (NodeId, &'a DeviceName)>, graph: &Graph) {
        let mut kept = lock(&self.kept);
        for (id, device) in placed {
            let node = graph.node(id);
            if node.op.role == Role::Const {
                kept.insert(node.name.clone(), device.clone());
            }
        }
    }
}

/// The devices of variables that sessions have placed, with the process that had them. New sessions begin with them.
#[derive(Default)]
pub(super) struct Homes {
    kept: Mutex<BTreeMap<String, (DeviceName, Incarnation)>>,
}

impl Homes {
    /// The facts by which a graph is placed by a rule; `None` if names decide.
    pub fn facts(
        &self,
        graph: &Graph,
        cluster: &Cluster,
        rule: PlaceBy,
        session: Option<&SessionHomes>,
        placed: Option<&BTreeMap<String, DeviceName>>,
    ) -> Option<ByCost> {
        if rule == PlaceBy::Names {
            return None;
        }
        let of_session = session.map(|session| lock(&session.kept));
        let kept = lock(&self.kept);
        let home = |name: &String| {
            let own = of_session.as_ref().and_then(|own| own.get(name));
            let still = |(device, process): &&(DeviceName, Incarnation)| {
                cluster.member(&device.task).is_some_and(|member| member.incarnation == *process)
            };
            own.or_else(|| kept.get(name).filter(still).map(|(device, _)| device)).cloned()
        };
        let of_constant = |name: &String| of_session.as_ref()?.get(name).cloned();
        // A plan that takes the place of another may have constants elsewhere; those of other plans are where they are too.
        let mut placed = placed.cloned();
        let homes = graph.nodes().filter_map(|(_, node)| {
            let home = match node.op.role {
                Role::Const => {
                    let home = of_constant(&node.name)?;
                    match &mut placed {
                        None => home,
                        Some(placed) => {
                            placed.entry(node.name.clone()).or_insert(home);
                            return None;
                        }
                    }
                }
                _ if node.op.makes_variable => home(&node.name)?,
                _ => return None,
            };
            Some((node.name.clone(), home))
        });
        let homes = homes.collect();
        let overlaps = rule == PlaceBy::Throughput;
        let placed = placed.unwrap_or_default();
        Some(ByCost { machines: cluster.machines(), homes, placed, overlaps, ..ByCost::default() })
    }

    /// Remembers the variables of a plan of a session, and the constants for the session.
    pub fn keep(&self, plan: &Plan, graph: &Graph, cluster: &Cluster, session: &Arc<SessionHomes>) {
        let mut of_session = lock(&session.kept);
        let mut kept = lock(&self.kept);
        for placement in &plan.placements {
            let Some(op) = graph.find(&placement.node).map(|id| graph.node(id).op) else { continue };
            if op.role == Role::Const {
                // Its task may be down, and then it was sent to another one.
                of_session.insert(placement.node.clone(), placement.device.clone());
            }
            if !op.makes_variable {
                continue;
            }
            of_session.entry(placement.node.clone()).or_insert_with(|| placement.device.clone());
            let Some(member) = cluster.member(&placement.device.task) else { continue };
            if kept.len() >= MAX_KEPT {
                // Which one is forgotten does not matter: its session still knows it.
                kept.pop_first();
            }
            kept.insert(placement.node.clone(), (placement.device.clone(), member.incarnation));
        }
    }
}

#[cfg(test)]
mod tests {
    use meshtf_graph::plan::{PlanError, PlanOptions, Signature, plan};
    use meshtf_graph::read;
    use meshtf_tensor::device::{DeviceKind, Task};

    use super::*;
    use crate::protocol::{DeviceInfo, Member, Peer};

    fn member(index: u32, process: u64) -> Member {
        let task = Task::new("t", index);
        Member {
            devices: vec![DeviceInfo::named(task.device(DeviceKind::Cpu, 0))],
            ..Member::bare(task.clone(), Peer::new(&*task.short()), Incarnation(process))
        }
    }

    /// Plans a read of `w` for a master on a task; the task of `w`.
    fn planned(homes: &Homes, session: &Arc<SessionHomes>, cluster: &Cluster, master: u32) -> Result<u32, PlanError> {
        let text = r#"{"version": 1, "nodes": {
            "w": {"op": "VarHandleOp", "attrs": {"dtype": "float32", "shape": [2]}},
            "y": {"op": "ReadVariableOp", "inputs": ["w"], "attrs": {"dtype": "float32"}}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
        let by_cost = homes.facts(&graph, cluster, PlaceBy::Cost, Some(session), None);
        let default_device = Task::new("t", master).device(DeviceKind::Cpu, 0);
        let options = PlanOptions { default_device, soft_placement: false, by_cost };
        let plan = plan(&graph, &cluster.facts(), &signature, &options)?;
        homes.keep(&plan, &graph, cluster, session);
        Ok(plan.placements[0].device.task.index)
    }

    #[test]
    fn a_later_session_finds_variables_until_their_process_ends() {
        let homes = Homes::default();
        let of = |cluster: &Cluster, master| planned(&homes, &Arc::default(), cluster, master).unwrap();
        let both = Cluster::new([member(0, 1), member(1, 1)]);
        assert_eq!(of(&both, 1), 1);
        assert_eq!(of(&both, 0), 1, "it is there");
        assert_eq!(of(&Cluster::new([member(0, 1), member(1, 2)]), 0), 0, "it went with its process");
    }

    #[test]
    fn a_constant_stays_for_its_session_and_no_other() {
        let text = r#"{"version": 1, "nodes": {
            "w": {"op": "Const", "attrs": {"dtype": "float32", "value": 1.0}}, "y": {"op": "Neg", "inputs": ["w"]}}}"#;
        let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
        let both = Cluster::new([member(0, 1), member(1, 1)]);
        let (homes, session) = (Homes::default(), Arc::default());
        let of = |session: &Arc<SessionHomes>, cluster: &Cluster, master| {
            let signature = Signature { fetches: vec!["y".into()], ..Signature::default() };
            let by_cost = homes.facts(&graph, cluster, PlaceBy::Cost, Some(session), None);
            let default_device = Task::new("t", master).device(DeviceKind::Cpu, 0);
            let options = PlanOptions { default_device, soft_placement: false, by_cost };
            let plan = plan(&graph, &cluster.facts(), &signature, &options).unwrap();
            homes.keep(&plan, &graph, cluster, session);
            plan.placements.iter().map(|one| one.device.task.index).collect::<Vec<_>>()
        };
        assert_eq!(of(&session, &both, 1), [1, 1]);
        assert_eq!(of(&session, &both, 0), [1, 1], "where it was sent");
        assert_eq!(of(&Arc::default(), &both, 0), [0, 0]);
        assert_eq!(of(&session, &Cluster::new([member(0, 1)]), 0), [0, 0], "its task is down");
        assert_eq!(of(&session, &both, 1), [0, 0], "where it was sent then");
    }

    #[test]
    fn a_variable_stays_for_its_session() {
        let (homes, session) = (Homes::default(), Arc::default());
        let of = |cluster: &Cluster, master| planned(&homes, &session, cluster, master);
        // A node joins after the first plan.
        assert_eq!(of(&Cluster::new([member(1, 1)]), 1).unwrap(), 1);
        let both = Cluster::new([member(0, 1), member(1, 1)]);
        assert_eq!(of(&both, 0).unwrap(), 1);
        // Another session may have another master; neither changes the first.
        assert_eq!(planned(&homes, &Arc::default(), &Cluster::new([member(0, 1)]), 0).unwrap(), 0);
        assert_eq!(of(&both, 0).unwrap(), 1);
        // A task that is down is named, and its variables are there again with its next process.
        let down = of(&Cluster::new([member(0, 1)]), 0).unwrap_err();
        assert!(matches!(down, PlanError::NoSuchDevice { is_task_down: true, .. }), "{down}");
        assert_eq!(of(&Cluster::new([member(0, 1), member(1, 2)]), 0).unwrap(), 1);
    }
}
