//! The door over sockets of this machine, with a node behind it: the bytes that a client of burn sends and receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::Client as _;
use burn_ir::{CustomOpIr, OperationIr};
use burn_std::{ExecutionError, TensorData};
use futures::{SinkExt, StreamExt};
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::{self, Budget};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::message::{RemoteMessage, SessionId, SessionInit, SessionRefusal, SessionTask};
use super::super::{MAX_SESSIONS, Serving, http, run};
use super::{TRAINING, add, exp, kept, last, new, read, scale, upload};
use crate::door::listener::Listener;
use crate::node::{Node, NodeConfig};

const TOKEN: &str = "0123456789abcdef";

impl Serving {
    /// The steps of all connected programs.
    fn counts(&self) -> run::Counts {
        let all = lock(&self.programs).all.iter().map(|known| known.running.counts()).collect::<Vec<_>>();
        let sum = |count: fn(&run::Counts) -> u64| all.iter().map(count).sum();
        run::Counts { steps: sum(|of| of.steps), parts: sum(|of| of.parts), planned: sum(|of| of.planned) }
    }
}

/// A node with task local/0, and its door.
struct Served {
    node: Arc<Node>,
    door: Arc<Serving>,
    address: SocketAddr,
    serving: JoinHandle<()>,
    _home: temp_dir::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Served {
    async fn new(token: Option<&str>) -> Served {
        Served::within(token, None).await
    }

    /// With a memory budget for the door alone.
    async fn within(token: Option<&str>, budget: Option<Arc<Budget>>) -> Served {
        let home = temp_dir::TempDir::new().unwrap();
        let node = Arc::new(node(&home, "local", Vec::new()).await);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut door = Serving::new(node.clone(), token);
        door.budget = budget.unwrap_or(door.budget);
        let door = Arc::new(door);
        let serving = tokio::spawn(http::serve(door.clone(), listener));
        Served { node, door, address, serving, _home: home }
    }

    async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (socket, _) =
            tokio_tungstenite::client_async(format!("ws://{}/session", self.address), stream).await.unwrap();
        Client { socket }
    }

    /// A session on a device.
    async fn session(&self, version: u16, device_index: u32, credential: &str) -> (Client, Content) {
        let mut client = self.connect().await;
        let authorization = credential.as_bytes().to_vec();
        let init = SessionInit { version, session_id: SessionId::default(), device_index, authorization };
        client.send(vec![RemoteMessage::Init(init)]).await;
        let answer = client.next().await.content;
        (client, answer)
    }

    /// The answer to a plain request, head and body.
    async fn get(&self, path: &str, header: &str) -> String {
        self.get_as("door", path, header).await
    }

    /// The answer to a plain request of a client that knows the door by this host name.
    async fn get_as(&self, host: &str, path: &str, header: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// A node with task 0 of a job, that dials these addresses.
async fn node(home: &temp_dir::TempDir, job: &str, peers: Vec<String>) -> Node {
    let config = NodeConfig {
        task: Some(meshtf_tensor::device::Task::new(job, 0)),
        backend: BackendChoice::Flex,
        listen: vec!["127.0.0.1:0".into()],
        peers,
        home: Some(home.path().to_owned()),
        mdns: false,
        ..NodeConfig::default()
    };
    Node::start(config).await.unwrap()
}

struct Client {
    socket: WebSocketStream<TcpStream>,
}

impl Client {
    async fn send(&mut self, messages: Vec<RemoteMessage>) {
        self.socket.send(Message::binary(rmp_serde::to_vec(&messages).unwrap())).await.unwrap();
    }

    async fn tasks(&mut self, tasks: Vec<SessionTask>) {
        self.send(tasks.into_iter().map(|task| RemoteMessage::Task(Box::new(task))).collect()).await;
    }

    async fn next(&mut self) -> Response {
        let Message::Binary(frame) = self.socket.next().await.unwrap().unwrap() else { panic!("not an answer") };
        rmp_serde::from_slice(&frame).unwrap()
    }

    /// The elements of a tensor of two.
    async fn read(&mut self) -> Result<Vec<f32>, String> {
        match self.next().await.content {
            Content::ReadTensor(Ok(data)) => Ok(data.as_slice::<f32>().unwrap().to_vec()),
            Content::ReadTensor(Err(error)) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Response {
    content: Content,
    id: u64,
}

#[derive(Debug, Deserialize)]
enum Content {
    /// Version, settings, count of devices, identity.
    Init((u16, IgnoredAny, u32, IgnoredAny)),
    ReadTensor(Result<TensorData, ExecutionError>),
    SyncBackend(Result<(), ExecutionError>),
    DTypeUsage(u32),
    InitRefused(SessionRefusal),
}

#[tokio::test]
async fn a_loop_is_planned_thrice() {
    const ITERATIONS: u64 = 1000;
    let served = Served::new(None).await;
    let (mut client, answer) = served.session(2, 0, "").await;
    assert!(matches!(answer, Content::Init((2, _, 1, _))), "{answer:?}");
    client.tasks(vec![upload(TRAINING, 1)]).await;
    let mut sum = 0.0;
    let mut most = 0;
    for i in 0..ITERATIONS {
        let id = |n: u64| 10 * (i + 1) + n;
        let parameter = if i == 0 { 1 } else { id(0) - 10 };
        let rate = 1.0 / (i + 1) as f64;
        sum += rate;
        client
            .tasks(vec![
                upload(TRAINING, id(1)),
                scale(last(id(1)), rate, id(2)),
                add(last(parameter), last(id(2)), id(0)),
            ])
            .await;
        if i % 10 == 9 {
            client.tasks(vec![read(i, kept(id(0)))]).await;
            let got = client.read().await.unwrap();
            // Each step adds the rate times what is uploaded, [1, 2], to [1, 2].
            let wanted = 1.0 + sum;
            assert!(
                (f64::from(got[0]) - wanted).abs() < 1e-4 && (f64::from(got[1]) - 2.0 * wanted).abs() < 2e-4,
                "{got:?}"
            );
            most = most.max(served.node.resources(None).await.unwrap().len());
        }
    }
    let counts = served.door.counts();
    assert!(counts.steps >= ITERATIONS / 10 && counts.steps - counts.planned <= 3, "{counts:?}");
    assert!(most <= 3, "{most} variables for one parameter");
    drop(client);
    while !served.node.resources(None).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_cannot_run_is_told_by_name_when_it_is_read() {
    let served = Served::new(None).await;
    let (mut client, _) = served.session(2, 0, "").await;
    let custom = OperationIr::Custom(CustomOpIr::new("my_kernel", &[kept(1)], &[new(2)]));
    client
        .tasks(vec![upload(TRAINING, 1), SessionTask::RegisterOperation(TRAINING, Box::new(custom)), exp(kept(2), 3)])
        .await;
    client.tasks(vec![exp(kept(1), 4), read(0, kept(3)), read(1, kept(4))]).await;
    let refused = client.read().await.unwrap_err();
    assert!(refused.contains("my_kernel"), "{refused}");
    let exponentials = client.read().await.unwrap();
    assert!(
        (exponentials[0] - 1f32.exp()).abs() < 1e-5 && (exponentials[1] - 2f32.exp()).abs() < 1e-4,
        "{exponentials:?}"
    );
    // A wrong argument fails where it is computed, and the program continues.
    client.tasks(vec![read(2, kept(99)), SessionTask::SyncBackend(3, TRAINING)]).await;
    assert!(client.read().await.unwrap_err().contains("does not exist"));
    let done = client.next().await;
    assert!(matches!(done, Response { content: Content::SyncBackend(Ok(())), id: 3 }), "{done:?}");
    client.tasks(vec![SessionTask::DTypeUsage(4, burn_std::DType::F32)]).await;
    assert!(matches!(client.next().await.content, Content::DTypeUsage(3)));
}

#[tokio::test]
async fn a_failure_is_told_by_the_next_read_and_the_next_sync() {
    use burn_ir::{BaseOperationIr, SelectOpIr};
    let served = Served::new(None).await;
    let (mut client, _) = served.session(2, 0, "").await;
    // Row 9 of two.
    let data = TensorData::new(vec![9i32], [1]);
    let index = burn_ir::TensorIr { shape: burn_std::Shape::new([1]), dtype: burn_std::DType::I32, ..kept(2) };
    let out = burn_ir::TensorIr { shape: burn_std::Shape::new([1]), ..new(3) };
    let select =
        BaseOperationIr::Select(SelectOpIr { tensor: kept(1), dim: 0, indices: index.clone(), out: out.clone() });
    client
        .tasks(vec![
            upload(TRAINING, 1),
            SessionTask::RegisterTensor(TRAINING, index.id, data),
            SessionTask::RegisterOperation(TRAINING, Box::new(OperationIr::BaseFloat(select))),
            SessionTask::ReadTensor(0, TRAINING, burn_ir::TensorIr { status: burn_ir::TensorStatus::ReadOnly, ..out }),
            SessionTask::SyncBackend(1, TRAINING),
            upload(TRAINING, 4),
            exp(kept(4), 5),
            read(2, kept(5)),
            SessionTask::SyncBackend(3, TRAINING),
        ])
        .await;
    let failure = client.read().await.unwrap_err();
    assert!(failure.contains('9'), "{failure}");
    assert!(matches!(client.next().await.content, Content::SyncBackend(Err(_))));
    assert!(client.read().await.is_ok());
    assert!(matches!(client.next().await.content, Content::SyncBackend(Ok(()))));
}

#[tokio::test]
async fn a_device_that_joins_later_is_appended_while_a_program_is_connected() {
    let served = Served::new(None).await;
    let (mut client, answer) = served.session(2, 0, "").await;
    assert!(matches!(answer, Content::Init((2, _, 1, _))), "{answer:?}");
    client.tasks(vec![upload(TRAINING, 1), read(0, kept(1))]).await;
    assert_eq!(client.read().await, Ok(vec![1.0, 2.0]));
    // Its device comes before the other by name.
    let later = node(&served._home, "earlier", served.node.addresses()).await;
    let all = ["/job:earlier/task:0/device:CPU:0", "/job:local/task:0/device:CPU:0"];
    while served.node.cluster().devices().len() < all.len() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let numbered = || {
        // As if no client had requested them lately.
        lock(&served.door.programs).asked = None;
        served.door.devices().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(numbered(), [all[1], all[0]]);
    // The program opens its second device, and continues with the first.
    let (mut second, answer) = served.session(2, 1, "").await;
    assert!(matches!(answer, Content::Init((2, _, 2, _))), "{answer:?}");
    second.tasks(vec![upload(TRAINING, 1), exp(kept(1), 2), read(0, kept(2))]).await;
    let exponentials = second.read().await.unwrap();
    assert!((exponentials[1] - 2f32.exp()).abs() < 1e-4, "{exponentials:?}");
    let on_it = later.resources(later.task()).await.unwrap();
    assert!(!on_it.is_empty(), "nothing is on the second device");
    client.tasks(vec![read(1, kept(1))]).await;
    assert_eq!(client.read().await, Ok(vec![1.0, 2.0]));
    drop((client, second));
    while !lock(&served.door.programs).all.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(numbered(), all, "the next program finds them in order");
}

#[tokio::test]
async fn only_those_who_may_pass_pass() {
    let served = Served::new(Some(TOKEN)).await;
    let refusal = |answer: Content| match answer {
        Content::InitRefused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    for (version, device, credential, wanted) in [
        (6, 0, TOKEN, SessionRefusal::IncompatibleProtocol { server_version: 2 }),
        (2, 0, "", SessionRefusal::Unauthorized),
        (2, 0, "0123456789abcdee", SessionRefusal::Unauthorized),
        (2, 7, "wrong", SessionRefusal::Unauthorized),
        (2, 7, TOKEN, SessionRefusal::NoSuchDevice { device_count: 1 }),
    ] {
        assert_eq!(refusal(served.session(version, device, credential).await.1), wanted);
    }
    for credential in [TOKEN, "0123456789abcdef#other"] {
        let (_client, answer) = served.session(2, 0, credential).await;
        assert!(matches!(answer, Content::Init(_)), "{answer:?}");
    }
    assert!(served.get("/devices", "").await.starts_with("HTTP/1.1 401"));
    let listed = served.get("/devices", &format!("authorization: Bearer {TOKEN}\r\n")).await;
    assert!(listed.contains(r#"{"index":0,"name":"/job:local/task:0/device:CPU:0"}"#), "{listed}");
    let page = format!("authorization: Bearer {TOKEN}\r\norigin: https://example.org\r\n");
    assert!(served.get("/devices", &page).await.starts_with("HTTP/1.1 403"), "no page of the web");
    assert!(served.get("/session", "").await.starts_with("HTTP/1.1 426"));
    assert!(served.get("/", "").await.starts_with("HTTP/1.1 404"));
}

/// A page of the web whose host name resolves to this machine is of the same origin for a browser, which then names no page.
#[tokio::test]
async fn a_host_name_that_leads_here_reads_nothing_without_a_token() {
    let open = Served::new(None).await;
    for path in ["/devices", "/session", "/"] {
        let answer = open.get_as("page.example", path, "").await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
        assert!(!answer.contains("/job:"), "{path}: {answer}");
    }
    let image = open.get_as("localhost", "/devices", "sec-fetch-site: cross-site\r\n").await;
    assert!(image.starts_with("HTTP/1.1 403"), "{image}");
    for host in ["127.0.0.1:3000", "localhost", "[::1]:3000"] {
        let listed = open.get_as(host, "/devices", "").await;
        assert!(listed.starts_with("HTTP/1.1 200") && listed.contains("/job:local/task:0"), "{host}: {listed}");
    }
    let guarded = Served::new(Some(TOKEN)).await;
    let shown = format!("authorization: Bearer {TOKEN}\r\n");
    assert!(guarded.get_as("gpu-box:3000", "/devices", &shown).await.starts_with("HTTP/1.1 200"));
}

/// A client shows an answer that it does not expect, and may try again. A refusal would blame its credential.
#[tokio::test]
async fn a_program_more_than_fit_gets_the_reason() {
    let served = Served::new(None).await;
    let client = super::super::Client {
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        process: super::super::Process { user: None, id: Some(1) },
        credential: blake3::hash(b""),
    };
    let open = || {
        let (sender, replies) = tokio::sync::mpsc::channel(1);
        served.door.open(client.clone(), 0, sender).map(|session| (session, replies))
    };
    let mut all: Vec<_> = (0..MAX_SESSIONS).map(|_| open().expect("there is a slot")).collect();
    let (mut refused, answer) = served.session(2, 0, "").await;
    let Content::SyncBackend(Err(error)) = answer else { panic!("{answer:?}") };
    assert!(error.to_string().contains("1024 sessions, which is the limit"), "{error}");
    assert!(matches!(refused.socket.next().await, Some(Ok(Message::Close(_)))));
    let ((running, session), _replies) = all.pop().unwrap();
    served.door.close(&running, session);
    let (_client, answer) = served.session(2, 0, "").await;
    assert!(matches!(answer, Content::Init(_)), "{answer:?}");
}

#[tokio::test]
async fn what_is_no_message_ends_the_session_alone() {
    let served = Served::new(None).await;
    let (mut bad, _) = served.session(2, 0, "").await;
    let (mut good, _) = served.session(2, 0, "").await;
    bad.socket.send(Message::binary(vec![0xc1, 0xff])).await.unwrap();
    assert!(bad.socket.next().await.is_none_or(|message| !matches!(message, Ok(Message::Binary(_)))));
    good.tasks(vec![upload(TRAINING, 1), read(0, kept(1))]).await;
    assert_eq!(good.read().await, Ok(vec![1.0, 2.0]));
    // A first message that is too large is refused.
    let mut large = served.connect().await;
    let sent = large.socket.send(Message::binary(vec![0u8; 1 << 20])).await;
    assert!(
        sent.is_err() || large.socket.next().await.is_none_or(|message| !matches!(message, Ok(Message::Binary(_))))
    );
}

#[tokio::test]
async fn a_message_without_memory_is_told_and_ends_its_session_alone() {
    let data = |id: u64, elements: usize| {
        let data = TensorData::new(vec![1f32; elements], [elements]);
        SessionTask::RegisterTensor(TRAINING, kept(id).id, data)
    };
    let served = Served::within(None, Some(Budget::of(memory::in_use() + 1_000_000))).await;
    let (mut client, _) = served.session(2, 0, "#one").await;
    let (mut other, _) = served.session(2, 0, "#other").await;
    client.tasks(vec![upload(TRAINING, 1), exp(kept(1), 2), read(0, kept(2))]).await;
    assert!(client.read().await.is_ok());
    other.tasks(vec![upload(TRAINING, 1), read(0, kept(1))]).await;
    assert!(other.read().await.is_ok());
    // The same amount again is reserved for the decoded message: 200 kB fit, 600 kB do not.
    client.tasks(vec![data(3, 50_000)]).await;
    client.tasks(vec![read(1, kept(1))]).await;
    assert_eq!(client.read().await, Ok(vec![1.0, 2.0]));
    client.tasks(vec![data(4, 150_000)]).await;
    client.tasks(vec![upload(TRAINING, 5), read(2, kept(5)), SessionTask::SyncBackend(3, TRAINING)]).await;
    let refused = client.read().await.unwrap_err();
    assert!(refused.contains("a message of 600 kB is refused: this takes 1.20 MB"), "{refused}");
    assert!(matches!(client.next().await, Response { content: Content::SyncBackend(Err(_)), id: 3 }));
    // The other session continues to work, and so does a new one.
    other.tasks(vec![exp(kept(1), 2), read(1, kept(2))]).await;
    assert!(other.read().await.is_ok());
    drop(client);
    let (mut client, _) = served.session(2, 0, "#one").await;
    client.tasks(vec![upload(TRAINING, 1), read(0, kept(1))]).await;
    assert_eq!(client.read().await, Ok(vec![1.0, 2.0]));
}

/// Messages of burn's own client and answers of burn's own server (`examples/burn/suite/src/bin/frames.rs`): frames, each with
/// a byte that identifies the sender, 0 for the client, and its length.
fn recorded(name: &str) -> Vec<(u8, Vec<u8>)> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/burn_frames").join(name);
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((&from, after)) = rest.split_first() {
        let (length, after) = after.split_first_chunk::<4>().unwrap();
        let (frame, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        frames.push((from, frame.to_vec()));
        rest = after;
    }
    frames
}

#[tokio::test]
async fn a_recorded_client_gets_what_burns_own_server_answered() {
    /// The tolerance of each loss and each parameter: flex and the mesh add up in different orders.
    const TOLERANCE: f64 = 1e-4;
    let values = |content: &Content| match content {
        Content::ReadTensor(Ok(data)) => (data.shape().to_vec(), data.iter::<f64>().collect::<Vec<_>>()),
        other => panic!("{other:?}"),
    };
    for (name, least) in [("mlp_adam.bin", 5), ("cnn_sgd.bin", 1), ("lstm_adam.bin", 4)] {
        let served = Served::new(None).await;
        let (mut client, _) = served.session(2, 0, "").await;
        let (mut asked, mut read) = (std::collections::BTreeMap::new(), 0);
        for (from, frame) in recorded(name) {
            if from == 0 {
                client.socket.send(Message::binary(frame)).await.unwrap();
                continue;
            }
            // The client waits for its answers before it continues.
            let wanted: Response = rmp_serde::from_slice(&frame).unwrap();
            while !asked.contains_key(&wanted.id) {
                let got = client.next().await;
                asked.insert(got.id, got.content);
            }
            let got = &asked[&wanted.id];
            match &wanted.content {
                Content::ReadTensor(_) => {
                    read += 1;
                    let ((shape, got), (wanted_shape, wanted)) = (values(got), values(&wanted.content));
                    assert_eq!(shape, wanted_shape, "{name}");
                    for (got, wanted) in got.iter().zip(&wanted) {
                        let off = (got - wanted).abs() / wanted.abs().max(1.0);
                        assert!(off <= TOLERANCE, "{name}: {got}, wanted {wanted}");
                    }
                }
                Content::SyncBackend(_) => assert!(matches!(got, Content::SyncBackend(Ok(()))), "{name}: {got:?}"),
                Content::DTypeUsage(_) => assert!(matches!(got, Content::DTypeUsage(_)), "{name}: {got:?}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(read >= least, "{name}: {read} values were read");
    }
}
