//! The messages of burn's remote protocol, version 2, which burn 0.22 speaks.
//!
//! They travel as MessagePack: structs as arrays, variants by name. The layout of an operation is that of `burn-ir`'s types,
//! whose fields are encoded by position, so this is the protocol of exactly one version of burn.

use burn_ir::{GraphBindings, GraphId, OperationIr, TensorId, TensorIr};
use burn_std::id::StreamId;
use burn_std::{BoolDType, DType, DeviceSettings, ExecutionError, FloatDType, IntDType, TensorData};
use meshtf_tensor::failure::{Failure, Result};
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub(super) const VERSION: u16 = 2;
/// The versions of burn that speak it.
pub(super) const BURN: &str = "0.22";

/// The number by which a client identifies the answer to a request.
pub(super) type RequestId = u64;

/// A message from a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RemoteMessage {
    Task(Box<SessionTask>),
    Init(SessionInit),
    Close(SessionId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionId {
    id: u64,
}

/// The message that opens a session.
#[derive(Serialize, Deserialize)]
pub(super) struct SessionInit {
    pub version: u16,
    pub session_id: SessionId,
    pub device_index: u32,
    /// The client's credential.
    #[serde(with = "serde_bytes")]
    pub authorization: Vec<u8>,
}

impl std::fmt::Debug for SessionInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the credential, which is a secret.
        let SessionInit { version, session_id, device_index, authorization: _ } = self;
        write!(f, "SessionInit {{ version: {version}, session_id: {}, device_index: {device_index} }}", session_id.id)
    }
}

/// The number of a tensor on its way from one session of a program to another.
pub(super) type TransferId = u64;

/// A task of a session; they run in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SessionTask {
    Seed(u64),
    RegisterOperation(StreamId, Box<OperationIr>),
    RegisterAndExecuteGraph {
        stream_id: StreamId,
        graph_id: GraphId,
        relative_graph: Vec<OperationIr>,
        bindings: GraphBindings,
    },
    ExecuteGraph {
        stream_id: StreamId,
        graph_id: GraphId,
        bindings: GraphBindings,
    },
    RegisterTensor(StreamId, TensorId, TensorData),
    RegisterAlias {
        stream_id: StreamId,
        new_id: TensorId,
        src_id: TensorId,
    },
    RegisterTensorRemote(StreamId, Ignored, TensorId),
    ExposeTensorRemote {
        stream_id: StreamId,
        tensor: TensorIr,
        count: u32,
        capability: Ignored,
        target: Ignored,
    },
    ExposeTensorLocal {
        stream_id: StreamId,
        tensor: TensorIr,
        transfer_id: TransferId,
    },
    RegisterTensorLocal {
        stream_id: StreamId,
        transfer_id: TransferId,
        new_id: TensorId,
    },
    ReadTensor(RequestId, StreamId, TensorIr),
    SyncBackend(RequestId, StreamId),
    DTypeUsage(RequestId, DType),
    ProfileStart(RequestId, StreamId),
    ProfileEnd(RequestId, StreamId, Ignored, Ignored),
    ProfileAbandon(StreamId, Ignored),
}

/// A part of a message that is ignored: of tensors between servers, and of profiling.
#[derive(Debug)]
pub(super) struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

impl Serialize for Ignored {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// The answer to a request.
#[derive(Debug, Serialize)]
pub(super) struct TaskResponse {
    pub content: TaskResponseContent,
    pub id: RequestId,
}

#[derive(Debug, Serialize)]
pub(super) enum TaskResponseContent {
    Init(SessionInfo),
    ReadTensor(Result<TensorData, ExecutionError>),
    SyncBackend(Result<(), ExecutionError>),
    /// The set of uses as bits: storage 1, arithmetic 2, accelerated 4.
    DTypeUsage(u32),
    /// No window was opened.
    ProfileStart(Result<Option<()>, ExecutionError>),
    ProfileEnd(Result<Option<()>, ExecutionError>),
    InitRefused(SessionRefusal),
}

/// The answer to the opening of a session.
#[derive(Debug, Serialize)]
pub(super) struct SessionInfo {
    version: u16,
    settings: DeviceSettings,
    device_count: u32,
    /// The server's identity, which a WebSocket does not have.
    peer_id: Option<()>,
}

impl SessionInfo {
    /// A program's tensors are float32, int32 and bool unless it states otherwise, as with burn's CPU backend, on any device.
    pub fn new(device_count: u32) -> SessionInfo {
        let settings = DeviceSettings::with_dtypes(FloatDType::F32, IntDType::I32, BoolDType::Native);
        SessionInfo { version: VERSION, settings, device_count, peer_id: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SessionRefusal {
    Unauthorized,
    NoSuchDevice { device_count: u32 },
    IncompatibleProtocol { server_version: u16 },
}

/// The messages of a frame.
///
/// # Errors
/// InvalidArgument if it is not such a message.
pub(super) fn decode(frame: &[u8]) -> Result<Vec<RemoteMessage>> {
    rmp_serde::from_slice(frame).map_err(|error| {
        Failure::invalid(format!("a frame is not what burn {BURN} sends (remote protocol version {VERSION}): {error}"))
    })
}

/// An answer as a frame.
pub(super) fn encode(response: &TaskResponse) -> Vec<u8> {
    rmp_serde::to_vec(response).expect("an answer has nothing that MessagePack lacks")
}

/// The first message of a session. The error is the version of the client's protocol, as far as its first frame shows it: that
/// of a version whose handshake has another form cannot be read.
pub(super) fn init(frame: &[u8]) -> Result<SessionInit, Option<u16>> {
    #[derive(Deserialize)]
    enum First {
        Init((u16,)),
    }
    match decode(frame) {
        Ok(messages) => match <[RemoteMessage; 1]>::try_from(messages) {
            Ok([RemoteMessage::Init(init)]) if init.version == VERSION => Ok(init),
            Ok([RemoteMessage::Init(init)]) => Err(Some(init.version)),
            _ => Err(None),
        },
        Err(_) => match rmp_serde::from_slice::<Vec<First>>(frame).ok().and_then(|mut first| first.pop()) {
            Some(First::Init((version,))) => Err(Some(version)),
            None => Err(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_form_that_every_version_of_burn_reads() {
        let refusal = SessionRefusal::IncompatibleProtocol { server_version: 2 };
        let response = TaskResponse { content: TaskResponseContent::InitRefused(refusal), id: 0 };
        // An array of two: a map with one entry for each variant, and the request's number.
        let wanted =
            [&[0x92, 0x81, 0xab][..], b"InitRefused", &[0x81, 0xb4], b"IncompatibleProtocol", &[0x91, 0x02, 0x00]]
                .concat();
        assert_eq!(encode(&response), wanted);
    }

    #[test]
    fn the_version_of_a_handshake_is_told() {
        let of = |version| {
            let init =
                SessionInit { version, session_id: SessionId { id: 7 }, device_index: 1, authorization: vec![1] };
            rmp_serde::to_vec(&vec![RemoteMessage::Init(init)]).unwrap()
        };
        assert_eq!(init(&of(2)).unwrap().device_index, 1);
        assert_eq!(init(&of(6)).unwrap_err(), Some(6));
        assert_eq!(init(b"GET / HTTP/1.1").unwrap_err(), None);
        let two = [RemoteMessage::Close(SessionId { id: 1 }), RemoteMessage::Close(SessionId { id: 1 })];
        assert_eq!(init(&rmp_serde::to_vec(&two).unwrap()).unwrap_err(), None);
    }
}
