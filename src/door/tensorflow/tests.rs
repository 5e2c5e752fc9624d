//! The service without a network: requests as bytes.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::GraphBuilder;
use meshtf_graph::graphdef::{graph_def, tensor_to_proto};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Code;
use meshtf_tensor::{Shape, Tensor};
use prost::Message;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use super::grpc::{Answer, Calls};
use super::message::*;
use super::tensor::tests::Named;
use super::*;
use crate::node::NodeConfig;

const LIMIT: usize = 64 << 10;

#[derive(Clone, PartialEq, prost::Message)]
struct Feeds {
    #[prost(message, repeated, tag = "2")]
    feed: Vec<Named>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Fetched {
    #[prost(message, repeated, tag = "1")]
    tensor: Vec<Named>,
    #[prost(int32, tag = "3")]
    status_code: i32,
    #[prost(string, tag = "4")]
    status_error_message: String,
}

/// A node with task local/0, and its service.
struct TestDoor {
    calls: Calls,
    _home: temp_dir::TempDir,
}

impl TestDoor {
    async fn new(token: Option<&str>) -> TestDoor {
        let home = temp_dir::TempDir::new().unwrap();
        let config = NodeConfig {
            task: Some(Task::new("local", 0)),
            backend: BackendChoice::Flex,
            listen: vec!["127.0.0.1:0".into()],
            home: Some(home.path().to_owned()),
            mdns: false,
            ..NodeConfig::default()
        };
        let node = Arc::new(Node::start(config).await.unwrap());
        let service = Arc::new(MasterService::new(node, LIMIT, token, Default::default()));
        TestDoor { calls: Calls { service }, _home: home }
    }

    /// Calls a method; returns its response, or the code and text of its status.
    async fn ask<M: Message + Default>(&self, method: &str, message: &[u8]) -> Result<M, (Code, String)> {
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(message.len() as u32);
        framed.put_slice(message);
        self.raw(method, framed.freeze()).await
    }

    async fn raw<M: Message + Default>(&self, method: &str, body: Bytes) -> Result<M, (Code, String)> {
        let request = Request::post(format!("/tensorflow.MasterService/{method}"))
            .body(tonic::body::Body::new(Full::new(body).map_err(|never| match never {})))
            .unwrap();
        let response: Response<Answer> = self.calls.clone().call(request).await.unwrap();
        if let Some(status) = tonic::Status::from_header_map(response.headers()) {
            let code = Code::from_number(status.code() as i32 as u8).unwrap();
            return Err((code, status.message().to_owned()));
        }
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        Ok(M::decode(&collected.to_bytes()[5..]).unwrap())
    }

    /// Opens a session of y = x + 1, where x is fed.
    async fn session(&self) -> String {
        let mut graph = GraphBuilder::new();
        let dtype = meshtf_graph::Attr::Type(meshtf_tensor::DType::F32);
        let x = graph.op("Placeholder").name("x").attr("dtype", dtype).build().unwrap();
        let one = graph.constant("one", 1f32).unwrap();
        graph.op("AddV2").name("y").input(x).input(one).build().unwrap();
        let graph = graph_def(&graph.finish().unwrap().to_defs());
        let request = CreateSessionRequest { graph_def: Some(graph), config: None }.encode_to_vec();
        self.ask::<CreateSessionResponse>("CreateSession", &request).await.unwrap().session_handle
    }

    async fn run(&self, request: &RunStepRequest, feeds: &[(&str, Tensor)]) -> Result<Fetched, (Code, String)> {
        let feed = feeds
            .iter()
            .map(|(name, tensor)| Named { name: (*name).to_owned(), tensor: Some(tensor_to_proto(tensor)) })
            .collect();
        let mut bytes = Feeds { feed }.encode_to_vec();
        bytes.extend(request.encode_to_vec());
        self.ask("RunStep", &bytes).await
    }
}

#[tokio::test]
async fn a_session_runs_and_ends() {
    let door = TestDoor::new(None).await;
    let handle = door.session().await;
    let step =
        RunStepRequest { session_handle: handle.clone(), fetch: vec!["y:0".into()], ..RunStepRequest::default() };
    let feeds = [("x:0", Tensor::vector(vec![1f32, 2.0]))];
    let ran = door.run(&step, &feeds).await.unwrap();
    assert_eq!(ran.tensor[0].name, "y:0");
    let y = meshtf_graph::graphdef::tensor_from_proto(ran.tensor[0].tensor.clone().unwrap()).unwrap();
    assert_eq!(y, Tensor::vector(vec![2f32, 3.0]));

    // Errors are in the status, or in the body if the client requests that.
    assert_eq!(door.run(&step, &[]).await.unwrap_err().0, Code::InvalidArgument);
    let in_body = RunStepRequest { store_errors_in_response_body: true, ..step.clone() };
    let told = door.run(&in_body, &[]).await.unwrap();
    assert_eq!(told.status_code, i32::from(Code::InvalidArgument.number()));
    assert!(told.status_error_message.contains("feed"), "{}", told.status_error_message);

    let close = CloseSessionRequest { session_handle: handle }.encode_to_vec();
    door.ask::<Empty>("CloseSession", &close).await.unwrap();
    assert_eq!(door.run(&step, &feeds).await.unwrap_err().0, Code::Aborted);
}

#[tokio::test]
async fn the_watches_of_tfdbg_are_refused() {
    let door = TestDoor::new(None).await;
    let watch = DebugTensorWatch { node_name: "y".into() };
    let debug_options = Some(DebugOptions { debug_tensor_watch_opts: vec![watch] });
    let options = Some(RunOptions { debug_options, ..RunOptions::default() });
    let fetch = vec!["y:0".into()];
    let step = RunStepRequest { session_handle: door.session().await, fetch, options, ..RunStepRequest::default() };
    let refused = door.run(&step, &[("x:0", Tensor::vector(vec![1f32]))]).await.unwrap_err();
    assert_eq!(refused.0, Code::Unimplemented);
    assert!(refused.1.contains("tfdbg watches \"y\"") && refused.1.contains("fetch the tensor"), "{}", refused.1);
}

#[tokio::test]
async fn many_steps_are_taken_until_one_fails() {
    let door = TestDoor::new(None).await;
    let mut graph = GraphBuilder::new();
    let int = || meshtf_graph::Attr::Type(meshtf_tensor::DType::I32);
    let ints = || meshtf_graph::Attr::Types(vec![meshtf_tensor::DType::I32]);
    let one = graph.constant("one", 1i32).unwrap();
    let none = graph.constant("none", 0i32).unwrap();
    let queue = graph.op("FIFOQueueV2").name("queue").attr("component_types", ints()).build().unwrap();
    graph.op("QueueEnqueueV2").name("put").inputs([queue, one]).attr("Tcomponents", ints()).build().unwrap();
    graph.op("QueueCloseV2").name("close").input(queue).build().unwrap();
    let taken = graph.op("QueueDequeueV2").name("take").input(queue).attr("component_types", ints()).build().unwrap();
    let sum = graph.op("VarHandleOp").name("sum").attr("dtype", int()).attr("shape", Shape::scalar()).build().unwrap();
    graph.op("AssignVariableOp").name("init").inputs([sum, none]).attr("dtype", int()).build().unwrap();
    graph.op("AssignAddVariableOp").name("add").inputs([sum, taken]).attr("dtype", int()).build().unwrap();
    graph.op("ReadVariableOp").name("read").input(sum).attr("dtype", int()).build().unwrap();
    let graph_def = graph_def(&graph.finish().unwrap().to_defs());

    // With a time limit, each step has it.
    for timeout_in_ms in [0, 60_000] {
        let config = ConfigProto { isolate_session_state: true, ..ConfigProto::default() };
        let request = CreateSessionRequest { graph_def: Some(graph_def.clone()), config: Some(config) };
        let created = door.ask::<CreateSessionResponse>("CreateSession", &request.encode_to_vec()).await.unwrap();
        let run = async |target: &[&str], fetch: &[&str], steps: i32| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let inter_op_thread_pool = MANY_STEPS - steps;
            let options = Some(RunOptions { inter_op_thread_pool, timeout_in_ms, ..RunOptions::default() });
            let session_handle = created.session_handle.clone();
            let (target, fetch) = (names(target), names(fetch));
            door.run(&RunStepRequest { session_handle, target, fetch, options, ..RunStepRequest::default() }, &[]).await
        };
        run(&["init"], &[], 1).await.unwrap();
        run(&["put"], &[], 40).await.unwrap();
        run(&["close"], &[], 0).await.unwrap();
        run(&["add"], &[], 30).await.unwrap();
        let over = run(&["add"], &[], 1000).await.unwrap_err();
        assert_eq!(over.0, Code::OutOfRange, "{}", over.1);
        let fetched = run(&[], &["read:0"], 1).await.unwrap();
        let read = meshtf_graph::graphdef::tensor_from_proto(fetched.tensor[0].tensor.clone().unwrap()).unwrap();
        assert_eq!(read, Tensor::scalar(40i32));
        let refused = run(&[], &["read:0"], 2).await.unwrap_err();
        assert_eq!(refused.0, Code::InvalidArgument);
        assert!(refused.1.contains("a run of many steps has targets, and no feeds, fetches or trace"), "{}", refused.1);
        assert_eq!(run(&[], &[], 2).await.unwrap_err().0, Code::InvalidArgument);
        let refused = run(&["add"], &[], 20_000).await.unwrap_err();
        assert_eq!(refused.0, Code::InvalidArgument);
        assert!(refused.1.contains("20000 steps; it has 10000 at most"), "{}", refused.1);
    }
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let door = TestDoor::new(None).await;
    let check = async |method: &str, body: &[u8], code: Code| {
        let refused = door.raw::<Empty>(method, Bytes::copy_from_slice(body)).await.unwrap_err();
        assert_eq!(refused.0, code, "{method} {body:?}: {}", refused.1);
    };
    check("CreateSession", &[], Code::InvalidArgument).await;
    check("CreateSession", &[0, 0, 0], Code::InvalidArgument).await;
    check("CreateSession", &[0, 0, 0, 0, 9, 1], Code::InvalidArgument).await;
    check("CreateSession", &[0, 0, 0, 0, 3, 0xff, 0xff, 0xff], Code::InvalidArgument).await;
    check("RunStep", &[0, 0, 0, 0, 3, 0x12, 0x7f, 0], Code::InvalidArgument).await;
    check("RunStep", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Code::InvalidArgument).await;
    check("CreateSession", &[1, 0, 0, 0, 0], Code::Unimplemented).await;
    check("RunGraph", &[0, 0, 0, 0, 0], Code::Unimplemented).await;
    // Refused by its announced length, before it is received.
    check("RunStep", &[0, 0x7f, 0, 0, 0], Code::ResourceExhausted).await;
    check("ListDevices", &[0, 0, 0, 0, 3, 0x0a, 1, b'x'], Code::Aborted).await;
    assert!(door.ask::<ListDevicesResponse>("ListDevices", &[]).await.unwrap().local_device.len() == 1);
}

#[tokio::test]
async fn a_door_with_a_token_requires_it() {
    let door = TestDoor::new(Some("0123456789abcdef")).await;
    let create = |name: &str| {
        let meta = SessionMetadata { name: name.into() };
        let experimental = Some(Experimental { session_metadata: Some(meta) });
        let config = Some(ConfigProto { experimental, ..ConfigProto::default() });
        CreateSessionRequest { graph_def: None, config }.encode_to_vec()
    };
    for wrong in ["", "0123456789abcde", "0123456789abcdef0"] {
        let refused = door.ask::<CreateSessionResponse>("CreateSession", &create(wrong)).await.unwrap_err();
        assert_eq!(refused.0, Code::Unauthenticated);
    }
    let created = door.ask::<CreateSessionResponse>("CreateSession", &create("0123456789abcdef")).await;
    assert_eq!(created.unwrap().session_handle.len(), 32);
    assert_eq!(door.ask::<Empty>("Reset", &[]).await.unwrap_err().0, Code::Unauthenticated);
}

#[tokio::test]
async fn an_unguarded_door_does_not_open() {
    let home = temp_dir::TempDir::new().unwrap();
    let config = NodeConfig {
        home: Some(home.path().to_owned()),
        listen: vec!["127.0.0.1:0".into()],
        mdns: false,
        open: true,
        ..NodeConfig::default()
    };
    let node = Arc::new(Node::start(config).await.unwrap());
    let open_at = |ip: Ipv4Addr, token: Option<&str>| {
        let address = SocketAddr::from((ip, 0));
        let token = token.map(str::to_owned);
        open(Arc::clone(&node), DoorConfig { address, token }, LIMIT)
    };
    let refused = open_at(Ipv4Addr::UNSPECIFIED, None).await.unwrap_err();
    assert!(matches!(refused, DoorError::Unguarded { flag: "--grpc", .. }), "{refused}");
    assert!(
        refused.to_string().contains("can run graphs on the mesh: set a token with --grpc-token-file"),
        "{refused}"
    );
    let door = open_at(Ipv4Addr::LOCALHOST, None).await.unwrap();
    let taken = DoorConfig { address: door.address(), token: None };
    assert!(matches!(open(Arc::clone(&node), taken, LIMIT).await.unwrap_err(), DoorError::Address { .. }));
}
