//! The thread of a device.

use std::sync::Arc;

use super::Sink;
use super::engine::Engine;
use super::mailbox::{Inbox, Mailbox, Message};
use super::resource::Resources;
use crate::failure::{Code, Failure};
use crate::plan::DeviceName;

/// Most bytes of values that wait on one device for their step or their Recv.
pub const MAX_PARKED_BYTES: usize = 4 << 30;

pub(super) fn run(
    name: DeviceName,
    _engine: Box<dyn Engine>,
    _resources: Arc<Resources>,
    _sink: Arc<dyn Sink>,
    _own: Mailbox,
    inbox: Inbox,
) {
    while let Some(message) = inbox.wait() {
        match message {
            Message::Register { reply, .. } => {
                let refusal = Failure::new(Code::Unimplemented, format!("{name} does not run pieces yet"));
                let _ = reply.send(Err(refusal));
            }
            Message::Close => return,
            _ => {}
        }
    }
}
