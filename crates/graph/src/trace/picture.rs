//! A traced step as a picture for people: its longest nodes as bars on the lines of their devices. Bounded in size.

use meshtf_tensor::device::DeviceName;
use serde::{Deserialize, Serialize};

use super::Timeline;

/// Most bars of a picture: those of the longest nodes.
pub const MAX_BARS: usize = 300;
/// Most transferred values in a picture.
pub const MAX_WAYS: usize = 150;

/// The picture of a step. Times are microseconds since its first node started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPicture {
    /// Its duration.
    pub took_us: f64,
    /// The devices, in the order of the traces.
    pub devices: Vec<DeviceName>,
    /// The nodes, by start time.
    pub bars: Vec<Bar>,
    /// The number of further nodes.
    pub more_bars: u64,
    /// The transferred values, by the time they were sent.
    pub ways: Vec<DrawnWay>,
}

/// A run of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// An index into [`StepPicture::devices`].
    pub device: u32,
    /// Its name.
    pub name: String,
    /// Its op.
    pub op: String,
    /// Its start.
    pub start_us: f64,
    /// Its duration.
    pub took_us: f64,
}

/// A transferred value, between two indices into [`StepPicture::devices`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnWay {
    /// The device that sent it.
    pub from: u32,
    /// The time at which it was sent.
    pub sent_us: f64,
    /// The device that received it.
    pub to: u32,
    /// The time at which it was received.
    pub received_us: f64,
}

impl Timeline {
    /// The picture of the step.
    pub fn picture(&self) -> StepPicture {
        let mut bars: Vec<Bar> = Vec::new();
        for (d, device) in self.devices.iter().enumerate() {
            bars.extend(device.nodes.iter().map(|node| Bar {
                device: d as u32,
                name: node.name.clone(),
                op: node.op.clone(),
                start_us: node.start_us,
                took_us: node.took_us,
            }));
        }
        bars.sort_by(|a, b| b.took_us.total_cmp(&a.took_us));
        let more_bars = bars.len().saturating_sub(MAX_BARS) as u64;
        bars.truncate(MAX_BARS);
        bars.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.device.cmp(&b.device)));
        let end = |(d, n): (usize, usize)| self.devices[d].nodes[n].start_us + self.devices[d].nodes[n].took_us;
        let mut ways: Vec<DrawnWay> = self
            .ways
            .iter()
            .map(|way| DrawnWay {
                from: way.from.0 as u32,
                sent_us: end(way.from),
                to: way.to.0 as u32,
                received_us: end(way.to),
            })
            .collect();
        ways.sort_by(|a, b| a.sent_us.total_cmp(&b.sent_us));
        ways.truncate(MAX_WAYS);
        let devices = self.devices.iter().map(|device| device.device.clone()).collect();
        StepPicture { took_us: self.took_us(), devices, bars, more_bars, ways }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceTrace, NodeTrace};
    use super::*;
    use meshtf_tensor::device::{DeviceKind, Task};

    fn node(name: &str, start_us: u64, took_us: u64) -> NodeTrace {
        NodeTrace {
            name: name.into(),
            op: "Neg".into(),
            start_ns: start_us * 1000,
            took_ns: took_us * 1000,
            ..NodeTrace::default()
        }
    }

    fn trace(task: u32, nodes: Vec<NodeTrace>) -> DeviceTrace {
        DeviceTrace { device: Task::new("t", task).device(DeviceKind::Cpu, 0), nodes }
    }

    #[test]
    fn the_longest_nodes_are_drawn_in_the_order_in_which_they_began() {
        let many = (0..MAX_BARS as u64 + 5).map(|n| node(&n.to_string(), n, n)).collect();
        let picture = Timeline::of(&[trace(0, many)]).picture();
        assert_eq!((picture.bars.len(), picture.more_bars), (MAX_BARS, 5));
        assert_eq!((&picture.bars[0].name[..], &picture.bars[MAX_BARS - 1].name[..]), ("5", "304"));
        assert_eq!(picture.took_us, 2.0 * 304.0);
    }

    #[test]
    fn a_value_that_travelled_is_drawn_between_its_devices() {
        let one = trace(0, vec![node("a", 0, 10), node("_Send/a/0", 10, 1)]);
        let other = trace(1, vec![node("_Recv/a/0", 20, 1), node("b", 21, 4)]);
        let picture = Timeline::of(&[one, other]).picture();
        assert_eq!(picture.ways, [DrawnWay { from: 0, sent_us: 11.0, to: 1, received_us: 21.0 }]);
        assert_eq!((picture.took_us, picture.devices.len()), (25.0, 2));
    }
}
