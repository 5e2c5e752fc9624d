//! A summary of a plan for people: the devices that take part, with some of their nodes, and the transfers. Bounded in size for
//! any plan, so that every reply can include it.

use std::collections::HashMap;

use meshtf_tensor::device::DeviceName;
use serde::{Deserialize, Serialize};

use super::{Plan, Transfer};

/// Most names of one device's nodes in a summary, and most transfers.
const NAMED: usize = 8;

/// The summary of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// One for each piece, in the order of the devices' names.
    pub devices: Vec<DeviceSummary>,
    /// The first transfers.
    pub transfers: Vec<Transfer>,
    /// The number of further transfers.
    pub more_transfers: u64,
}

/// The part of a plan on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// The device.
    pub device: DeviceName,
    /// The first of the nodes that run there, in the graph's order; empty if fed and fetched values only pass through.
    pub nodes: Vec<String>,
    /// The number of further nodes.
    pub more_nodes: u64,
}

impl Plan {
    /// The summary of the plan.
    pub fn summary(&self) -> Summary {
        let summary = |device: &DeviceName| DeviceSummary { device: device.clone(), nodes: Vec::new(), more_nodes: 0 };
        let mut devices: Vec<DeviceSummary> = self.pieces.iter().map(|piece| summary(&piece.device)).collect();
        let places: HashMap<&DeviceName, usize> = self.pieces.iter().map(|piece| &piece.device).zip(0..).collect();
        for placement in &self.placements {
            let Some(&place) = places.get(&placement.device) else { continue };
            let device = &mut devices[place];
            if device.nodes.len() < NAMED {
                device.nodes.push(placement.node.clone());
            } else {
                device.more_nodes += 1;
            }
        }
        let transfers: Vec<Transfer> = self.transfers.iter().take(NAMED).cloned().collect();
        let more_transfers = (self.transfers.len() - transfers.len()) as u64;
        Summary { devices, transfers, more_transfers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mode, Piece, Placement, Why};
    use meshtf_tensor::device::{DeviceKind, Task};

    #[test]
    fn a_large_plan_is_told_in_a_few_names() {
        let device = |task: u32| Task::new("t", task).device(DeviceKind::Cpu, 0);
        let placement = |n: u32| {
            let (node, op) = (format!("n{n}"), "Neg".to_owned());
            Placement { node, op, device: device(n % 3 % 2), why: Why::Default }
        };
        let transfer = |n: u32| {
            let tensor = format!("n{n}:0");
            Transfer { tensor, dtype: None, from: device(0), to: device(1), bytes: None }
        };
        let piece = |task: u32| Piece {
            device: device(task),
            nodes: vec![],
            frames: vec![],
            feeds: vec![],
            fetches: vec![],
            mode: Mode::Whole,
        };
        let plan = Plan {
            pieces: vec![piece(0), piece(1), piece(2)],
            transfers: (0..10).map(transfer).collect(),
            // Of 30 nodes, those whose number is 1 more than a multiple of 3 are on task 1.
            placements: (0..30).map(placement).collect(),
            feed_types: vec![],
            fetch_types: vec![],
            estimate: None,
        };
        let summary = plan.summary();
        let told: Vec<(u32, String, u64)> = summary
            .devices
            .iter()
            .map(|told| (told.device.task.index, told.nodes.join(" "), told.more_nodes))
            .collect();
        let expected = [(0, "n0 n2 n3 n5 n6 n8 n9 n11", 12), (1, "n1 n4 n7 n10 n13 n16 n19 n22", 2), (2, "", 0)];
        assert_eq!(told, expected.map(|(task, names, more)| (task, names.to_owned(), more)));
        assert_eq!((summary.transfers.len(), summary.more_transfers), (8, 2));
        assert_eq!(summary.transfers[..], plan.transfers[..8]);
    }
}
