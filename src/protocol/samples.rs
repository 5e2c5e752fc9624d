//! Members and peers for tests.

use meshtf_tensor::device::Task;
use meshtf_tensor::ids::Incarnation;

use super::status::{LinkState, PeerStatus};
use super::{Member, Peer};

impl Member {
    /// A member without devices or addresses that started in 1970.
    pub fn bare(task: Task, peer: Peer, incarnation: Incarnation) -> Self {
        Member { task, peer, incarnation, devices: Vec::new(), addresses: Vec::new(), since_unix_ms: 0 }
    }
}

impl PeerStatus {
    /// A peer whose link is up and has carried nothing yet.
    pub fn quiet(task: Option<Task>) -> Self {
        PeerStatus {
            peer: Peer::new("p"),
            task,
            is_spare: false,
            address: String::new(),
            state: LinkState::Up,
            up_ms: 0,
            heard_ms: 0,
            round_trip_us: None,
            bulk_bytes_per_second: None,
            sent_bytes: 0,
            received_bytes: 0,
            sent_per_second: 0.0,
            received_per_second: 0.0,
        }
    }
}
