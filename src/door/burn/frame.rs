//! The content of a frame.

use burn_std::id::StreamId;
use meshtf_tensor::failure::Result;

use super::form::Call;
use super::known::Operations;
use super::message::{self, RemoteMessage, SessionTask};
use super::messagepack::{length, unsigned};

/// The head of an operation: an array of the stream and the operation, in two maps with one entry each. The stream is an array of
/// its number.
const OPERATION: &[u8] = b"\x81\xa4Task\x81\xb1RegisterOperation\x92\x91";

/// A part of a frame: an operation, another task, or the end of the session.
#[derive(Debug)]
pub(super) enum Said {
    Operation(StreamId, Call),
    Task(Box<SessionTask>),
    /// The session ends.
    End,
}

/// Reads the frames of a session.
#[derive(Default)]
pub(super) struct Frames {
    pub(super) operations: Operations,
}

impl Frames {
    /// Appends the parts of a frame, in order.
    ///
    /// # Errors
    /// InvalidArgument if no client sends such a frame; nothing is appended then.
    pub fn read(&mut self, frame: &[u8], said: &mut Vec<Said>) -> Result<()> {
        let before = said.len();
        if self.read_known(frame, said).is_none() {
            said.truncate(before);
            said.extend(message::decode(frame)?.into_iter().map(Said::from));
        }
        Ok(())
    }

    /// The same for operations that are known by their bytes; `None` if the frame has to be decoded as a whole, or cannot be.
    fn read_known(&mut self, frame: &[u8], said: &mut Vec<Said>) -> Option<()> {
        let (mut rest, count) = match frame {
            [short @ 0x90..=0x9f, rest @ ..] => (rest, usize::from(short & 0x0f)),
            [0xdc, high, low, rest @ ..] => (rest, usize::from(u16::from_be_bytes([*high, *low]))),
            _ => return None,
        };
        for _ in 0..count {
            if let Some(operation) = rest.strip_prefix(OPERATION) {
                let (value, size) = unsigned(operation)?;
                let (call, length) = self.operations.read(&operation[size..])?;
                said.push(Said::Operation(StreamId { value }, call));
                rest = &operation[size + length..];
            } else {
                let (message, after) = rest.split_at(length(rest)?);
                said.push(Said::from(rmp_serde::from_slice::<RemoteMessage>(message).ok()?));
                rest = after;
            }
        }
        Some(())
    }
}

impl From<RemoteMessage> for Said {
    fn from(message: RemoteMessage) -> Said {
        match message {
            RemoteMessage::Task(task) => match *task {
                SessionTask::RegisterOperation(stream, operation) => Said::Operation(stream, Call::new(*operation)),
                task => Said::Task(Box::new(task)),
            },
            RemoteMessage::Close(_) | RemoteMessage::Init(_) => Said::End,
        }
    }
}
