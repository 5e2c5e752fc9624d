//! The methods and messages of TensorFlow's `MasterService`, with its field numbers. Only fields that meshtf reads or writes
//! are defined; others are skipped.

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf_graph::graphdef::weigh::{Field, GRAPH, Schema};
use meshtf_graph::graphdef::{GraphDef, TensorShapeProto};
use meshtf_tensor::failure::{Code, Failure, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    CreateSession,
    ExtendSession,
    PartialRunSetup,
    RunStep,
    CloseSession,
    ListDevices,
    Reset,
    MakeCallable,
    RunCallable,
    ReleaseCallable,
}

impl Method {
    pub fn named(name: &str) -> Option<Method> {
        Some(match name {
            "CreateSession" => Method::CreateSession,
            "ExtendSession" => Method::ExtendSession,
            "PartialRunSetup" => Method::PartialRunSetup,
            "RunStep" => Method::RunStep,
            "CloseSession" => Method::CloseSession,
            "ListDevices" => Method::ListDevices,
            "Reset" => Method::Reset,
            "MakeCallable" => Method::MakeCallable,
            "RunCallable" => Method::RunCallable,
            "ReleaseCallable" => Method::ReleaseCallable,
            _ => return None,
        })
    }
}

/// The path of fields in a CreateSessionRequest to the session metadata's name, which holds the token.
pub const TOKEN_PATH: [u32; 4] = [2, 16, 11, 1];

/// The memory that messages with graphs take when decoded.
pub static CREATE_SESSION: Schema = Schema(&[(1, Field::One(&GRAPH)), (2, Field::One(&CONFIG))]);
pub static EXTEND_SESSION: Schema = Schema(&[(1, Field::Text), (2, Field::One(&GRAPH))]);
static CONFIG: Schema = Schema(&[(4, Field::Texts), (14, Field::One(&CLUSTER)), (16, Field::One(&EXPERIMENTAL))]);
static CLUSTER: Schema = Schema(&[(1, Field::Many(size_of::<JobDef>(), &JOB))]);
static JOB: Schema = Schema(&[(1, Field::Text), (2, Field::Entries(size_of::<(i32, String)>(), &TASK))]);
static TASK: Schema = Schema(&[(2, Field::Text)]);
static EXPERIMENTAL: Schema = Schema(&[(11, Field::One(&METADATA))]);
static METADATA: Schema = Schema(&[(1, Field::Text)]);

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSessionRequest {
    #[prost(message, optional, tag = "1")]
    pub graph_def: Option<GraphDef>,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ConfigProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSessionResponse {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(int64, tag = "2")]
    pub graph_version: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfigProto {
    /// Prefixes of device names; a session sees only devices that match one.
    #[prost(string, repeated, tag = "4")]
    pub device_filters: Vec<String>,
    #[prost(bool, tag = "7")]
    pub allow_soft_placement: bool,
    #[prost(bool, tag = "8")]
    pub log_device_placement: bool,
    /// Time limit of an operation on the session in milliseconds; 0 for no limit.
    #[prost(int64, tag = "11")]
    pub operation_timeout_in_ms: i64,
    /// The session's own names of tasks.
    #[prost(message, optional, tag = "14")]
    pub cluster_def: Option<ClusterDef>,
    #[prost(bool, tag = "15")]
    pub isolate_session_state: bool,
    #[prost(message, optional, tag = "16")]
    pub experimental: Option<Experimental>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterDef {
    #[prost(message, repeated, tag = "1")]
    pub job: Vec<JobDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct JobDef {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The address of each task.
    #[prost(btree_map = "int32, string", tag = "2")]
    pub tasks: BTreeMap<i32, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Experimental {
    #[prost(message, optional, tag = "11")]
    pub session_metadata: Option<SessionMetadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExtendSessionRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(message, optional, tag = "2")]
    pub graph_def: Option<GraphDef>,
    #[prost(int64, tag = "3")]
    pub current_graph_version: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExtendSessionResponse {
    #[prost(int64, tag = "4")]
    pub new_graph_version: i64,
}

/// A RunStep without its feeds (field 2), which are read separately.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunStepRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(string, repeated, tag = "3")]
    pub fetch: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub target: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub options: Option<RunOptions>,
    #[prost(string, tag = "6")]
    pub partial_run_handle: String,
    #[prost(bool, tag = "7")]
    pub store_errors_in_response_body: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunOptions {
    /// 0: none; 3: everything.
    #[prost(int32, tag = "1")]
    pub trace_level: i32,
    #[prost(int64, tag = "2")]
    pub timeout_in_ms: i64,
    /// A pool of threads, which sessions on servers do not have; a value below [`MANY_STEPS`] is a number of steps: see there.
    #[prost(int32, tag = "3")]
    pub inter_op_thread_pool: i32,
    #[prost(bool, tag = "5")]
    pub output_partition_graphs: bool,
    /// tfdbg's.
    #[prost(message, optional, tag = "6")]
    pub debug_options: Option<DebugOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugOptions {
    #[prost(message, repeated, tag = "4")]
    pub debug_tensor_watch_opts: Vec<DebugTensorWatch>,
}

/// A tensor that tfdbg has written to a file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugTensorWatch {
    #[prost(string, tag = "1")]
    pub node_name: String,
}

/// A run takes as many steps, one after the other, as its pool of threads is less than this. So programs under `meshtf tf`
/// request the steps of a queue runner: clients of every age pass that field on, and TensorFlow's servers ignore it.
pub const MANY_STEPS: i32 = -733_100_000;

impl RunOptions {
    /// How many steps to take.
    pub fn steps(&self) -> u64 {
        let less = i64::from(MANY_STEPS) - i64::from(self.inter_op_thread_pool);
        u64::try_from(less).unwrap_or(0).max(1)
    }

    /// Checks that a node can do what they ask for.
    ///
    /// # Errors
    /// Unimplemented for tfdbg's watches.
    pub fn check(&self) -> Result<()> {
        let watch = self.debug_options.iter().flat_map(|debug| &debug.debug_tensor_watch_opts).next();
        let Some(watch) = watch else { return Ok(()) };
        let why = format!(
            "tfdbg watches {:?}, and a node writes no values for tfdbg: fetch the tensor with session.run, trace the step with \
             RunOptions(trace_level=RunOptions.FULL_TRACE), or find values that are not finite with tf.add_check_numerics_ops()",
            watch.node_name
        );
        Err(Failure::new(Code::Unimplemented, why))
    }

    /// Whether the client requests a trace.
    pub fn is_traced(&self) -> bool {
        self.trace_level > 0 || self.output_partition_graphs
    }
}

/// A RunStepResponse without its tensors (field 1), which are written separately.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunStepResponse {
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<RunMetadata>,
    #[prost(int32, tag = "3")]
    pub status_code: i32,
    #[prost(string, tag = "4")]
    pub status_error_message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RunMetadata {
    #[prost(message, optional, tag = "1")]
    pub step_stats: Option<StepStats>,
    /// The nodes that each device ran, as a graph.
    #[prost(message, repeated, tag = "3")]
    pub partition_graphs: Vec<GraphDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StepStats {
    #[prost(message, repeated, tag = "1")]
    pub dev_stats: Vec<DeviceStepStats>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceStepStats {
    #[prost(string, tag = "1")]
    pub device: String,
    #[prost(message, repeated, tag = "2")]
    pub node_stats: Vec<NodeExecStats>,
}

/// Times are in microseconds; the first counts from 1970, the others from the first.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeExecStats {
    #[prost(string, tag = "1")]
    pub node_name: String,
    #[prost(int64, tag = "2")]
    pub all_start_micros: i64,
    #[prost(int64, tag = "3")]
    pub op_start_rel_micros: i64,
    #[prost(int64, tag = "4")]
    pub op_end_rel_micros: i64,
    #[prost(int64, tag = "5")]
    pub all_end_rel_micros: i64,
    #[prost(message, repeated, tag = "6")]
    pub memory: Vec<AllocatorMemoryUsed>,
    #[prost(message, repeated, tag = "7")]
    pub output: Vec<NodeOutput>,
    #[prost(string, tag = "8")]
    pub timeline_label: String,
    #[prost(int64, tag = "9")]
    pub scheduled_micros: i64,
}

/// The memory that a node has taken from an allocator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatorMemoryUsed {
    #[prost(string, tag = "1")]
    pub allocator_name: String,
    #[prost(int64, tag = "2")]
    pub total_bytes: i64,
    #[prost(int64, tag = "3")]
    pub peak_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeOutput {
    #[prost(int32, tag = "1")]
    pub slot: i32,
    #[prost(message, optional, tag = "3")]
    pub tensor_description: Option<TensorDescription>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorDescription {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
    #[prost(message, optional, tag = "4")]
    pub allocation_description: Option<AllocationDescription>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocationDescription {
    #[prost(int64, tag = "1")]
    pub requested_bytes: i64,
    #[prost(int64, tag = "2")]
    pub allocated_bytes: i64,
    #[prost(string, tag = "3")]
    pub allocator_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PartialRunSetupRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(string, repeated, tag = "2")]
    pub feed: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub fetch: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub target: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PartialRunSetupResponse {
    #[prost(string, tag = "1")]
    pub partial_run_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseSessionRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResetRequest {
    #[prost(string, repeated, tag = "1")]
    pub container: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub device_filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListDevicesRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListDevicesResponse {
    #[prost(message, repeated, tag = "1")]
    pub local_device: Vec<DeviceAttributes>,
    #[prost(message, repeated, tag = "2")]
    pub remote_device: Vec<DeviceAttributes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceAttributes {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub device_type: String,
    #[prost(fixed64, tag = "6")]
    pub incarnation: u64,
    #[prost(string, tag = "7")]
    pub physical_device_desc: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeCallableRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(message, optional, tag = "2")]
    pub options: Option<CallableOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CallableOptions {
    #[prost(string, repeated, tag = "1")]
    pub feed: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub fetch: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub target: Vec<String>,
    #[prost(message, optional, tag = "4")]
    pub run_options: Option<RunOptions>,
    #[prost(message, repeated, tag = "5")]
    pub tensor_connection: Vec<TensorConnection>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorConnection {
    #[prost(string, tag = "1")]
    pub from_tensor: String,
    #[prost(string, tag = "2")]
    pub to_tensor: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MakeCallableResponse {
    #[prost(int64, tag = "1")]
    pub handle: i64,
}

/// A RunCallable without its feeds (field 3), which are read separately.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunCallableRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(int64, tag = "2")]
    pub handle: i64,
}

/// A RunCallableResponse without its tensors (field 1), which are written separately.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunCallableResponse {
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<RunMetadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseCallableRequest {
    #[prost(string, tag = "1")]
    pub session_handle: String,
    #[prost(int64, tag = "2")]
    pub handle: i64,
}

/// The answer to CloseSession, Reset and ReleaseCallable.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// A limit as TensorFlow states it; none is 0.
pub(super) fn milliseconds(limit: i64) -> Option<Duration> {
    u64::try_from(limit).ok().filter(|&limit| limit > 0).map(Duration::from_millis)
}

/// The failure's text as TensorFlow's clients read it: they search for the node between its double braces.
pub(super) fn described(failure: &Failure) -> String {
    let mut text = failure.message.clone();
    let place = [failure.op.as_deref().map(|op| format!("op {op}")), failure.device.clone().or(failure.task.clone())];
    let place: Vec<String> = place.into_iter().flatten().collect();
    if !place.is_empty() {
        text += &format!(" ({})", place.join(" on "));
    }
    if let Some(node) = &failure.node {
        text += &format!("\n\t [[{{{{node {node}}}}}]]");
    }
    text
}
