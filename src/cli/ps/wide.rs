//! `meshtf ps --wide`: the devices with their memory and measured rates, and the links between the nodes.

use std::collections::BTreeMap;

use meshtf::protocol::Member;
use meshtf::protocol::status::PeerStatus;
use meshtf_tensor::device::{DeviceMemory, Rates, Task};
use meshtf_tensor::memory::Bytes;

use super::super::paint::Paint;
use super::super::table::wide_table;

/// The links of each node with others, as it sees them.
pub(super) type Links = BTreeMap<Task, Vec<PeerStatus>>;

/// A table of devices, and one of links if there are any.
pub(super) fn tables(paint: Paint, members: &[&Member], links: &Links) -> String {
    let mut text = devices(paint, members);
    let of_node =
        |(from, peers): (&Task, &Vec<PeerStatus>)| -> Vec<_> { peers.iter().filter_map(|to| link(from, to)).collect() };
    let rows: Vec<Vec<String>> = links.iter().flat_map(of_node).collect();
    if !rows.is_empty() {
        text.push_str("\n\n");
        text.push_str(&wide_table(paint, &["FROM", "TO", "ROUND TRIP", "CARRIES"], rows));
    }
    text
}

fn devices(paint: Paint, members: &[&Member]) -> String {
    let rows = members.iter().flat_map(|member| &member.devices).map(|device| {
        let capacity = &device.capacity;
        let memory =
            |part: fn(&DeviceMemory) -> u64| capacity.memory.as_ref().map_or_else(unknown, |memory| size(part(memory)));
        let rate = |of: &dyn Fn(&Rates) -> Option<u64>| capacity.rates.as_ref().and_then(of);
        vec![
            device.name.to_string(),
            device.backend.clone(),
            capacity.cores.map_or_else(unknown, |cores| cores.to_string()),
            memory(|memory| memory.total),
            memory(|memory| memory.free),
            rate(&|rates| Some(rates.multiply_adds))
                .map_or_else(unknown, |adds| format!("{:.1} G/s", adds as f64 / 1e9)),
            rate(&|rates| Some(rates.bytes)).map_or_else(unknown, per_second),
            rate(&|rates| Some(rates.streamed?.kept)).map_or_else(unknown, per_second),
            rate(&|rates| Some(rates.streamed?.memory)).map_or_else(unknown, per_second),
        ]
    });
    let header = ["DEVICE", "BACKEND", "CORES", "MEMORY", "FREE", "MULTIPLY-ADDS", "CACHED", "KEPT", "STREAMED"];
    wide_table(paint, &header, rows)
}

/// The row of a link with another task.
fn link(from: &Task, to: &PeerStatus) -> Option<Vec<String>> {
    let time = |us: u64| format!("{:.2} ms", us as f64 / 1000.0);
    Some(vec![
        from.short(),
        to.task.as_ref()?.short(),
        to.round_trip_us.map_or_else(unknown, time),
        to.bulk_bytes_per_second.map_or_else(unknown, per_second),
    ])
}

fn per_second(bytes: u64) -> String {
    format!("{}/s", size(bytes))
}

fn size(bytes: u64) -> String {
    Bytes(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}

fn unknown() -> String {
    "?".to_owned()
}

#[cfg(test)]
mod tests {
    use meshtf::protocol::status::LinkState;
    use meshtf::protocol::{DeviceInfo, Incarnation, Peer};
    use meshtf_tensor::device::{Capacity, DeviceKind, Streamed};

    use super::*;

    #[test]
    fn what_was_measured_has_a_column_and_the_rest_a_question_mark() {
        let task = Task::new("worker", 0);
        let device = |index, capacity| DeviceInfo {
            name: task.device(DeviceKind::Cpu, index),
            backend: "flex".into(),
            description: String::new(),
            capacity,
        };
        let memory = Some(DeviceMemory { total: 8_000_000_000, free: 1_500_000_000 });
        let rates = Some(Rates {
            multiply_adds: 59_040_000_000,
            bytes: 40_000_000_000,
            streamed: Some(Streamed { kept: 30_000_000_000, memory: 12_000_000_000 }),
        });
        let known = Capacity { memory, cores: Some(2), rates };
        let member = Member {
            task: task.clone(),
            peer: Peer::new("p"),
            incarnation: Incarnation(1),
            devices: vec![device(0, known), device(1, Capacity::default())],
            addresses: Vec::new(),
            since_unix_ms: 0,
        };
        let link = |task, round_trip_us, bulk_bytes_per_second| PeerStatus {
            peer: Peer::new("p"),
            task,
            is_spare: false,
            address: String::new(),
            state: LinkState::Up,
            up_ms: 0,
            heard_ms: 0,
            round_trip_us,
            bulk_bytes_per_second,
            sent_bytes: 0,
            received_bytes: 0,
            sent_per_second: 0.0,
            received_per_second: 0.0,
        };
        let to = link(Some(Task::new("ps", 0)), Some(250), Some(110_000_000));
        let links = Links::from([(task, vec![to, link(None, Some(1), None)])]);
        let text = tables(Paint::OFF, &[&member], &links);
        let rows: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows[1..],
            [
                "/job:worker/task:0/device:CPU:0 flex 2 8.00 GB 1.50 GB 59.0 G/s 40.0 GB/s 30.0 GB/s 12.0 GB/s",
                "/job:worker/task:0/device:CPU:1 flex ? ? ? ? ? ? ?",
                "",
                "FROM TO ROUND TRIP CARRIES",
                "worker/0 ps/0 0.25 ms 110 MB/s",
            ]
        );
        // A client is no other node.
        let links = Links::from([(Task::new("a", 0), vec![link(None, Some(1), None)])]);
        assert!(!tables(Paint::OFF, &[&member], &links).contains("FROM"));
    }
}
