//! Whole meshes in one process, over loopback, found through registry folders that only they use.

mod in_memory;
mod links;
#[cfg(target_os = "linux")]
mod local;
mod speed;
mod wrong;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::Tensor;
use meshtf_tensor::device::{Capacity, DeviceKind, DeviceMemory, Rates};
use meshtf_tensor::ids::{RequestId, SessionId, StepId};
use smallvec::SmallVec;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::transport::tcp::socket_address;
use super::*;
use crate::protocol::{Message, PushedValue, Reply, ToClient, ToMaster, ToWorker, VERSION};

/// Nothing in these tests takes that long; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
enum Heard {
    Up(Peer),
    Down(Peer, String),
    Got(Peer, Box<Envelope>),
    /// The connection with a peer broke; the link with it continues.
    Broke,
    Mended,
}

struct Ear(UnboundedSender<Heard>);

impl Inbox for Ear {
    fn deliver(&self, from: &Peer, envelope: Envelope) {
        let _ = self.0.send(Heard::Got(from.clone(), Box::new(envelope)));
    }

    fn up(&self, peer: &Peer, _: &Hello) {
        let _ = self.0.send(Heard::Up(peer.clone()));
    }

    fn down(&self, peer: &Peer, _: Option<&Task>, why: &str) {
        let _ = self.0.send(Heard::Down(peer.clone(), why.to_owned()));
    }

    fn broke(&self, _: &Peer, _: &str) {
        let _ = self.0.send(Heard::Broke);
    }

    fn mended(&self, _: &Peer) {
        let _ = self.0.send(Heard::Mended);
    }
}

/// A participant and the events of its inbox.
struct Someone {
    mesh: Mesh,
    heard: UnboundedReceiver<Heard>,
}

impl Someone {
    async fn join(config: MeshConfig) -> Result<Someone, MeshError> {
        let (sender, heard) = unbounded_channel();
        Ok(Someone { mesh: Mesh::join(config, Arc::new(Ear(sender))).await?, heard })
    }

    fn peer(&self) -> &Peer {
        self.mesh.peer()
    }

    /// Waits for the cluster to have exactly these tasks.
    async fn sees(&self, tasks: &[&str]) {
        let mut cluster = self.mesh.watch();
        let seen = cluster.wait_for(|cluster| cluster.tasks().map(Task::short).eq(tasks.iter().copied()));
        let in_time = tokio::time::timeout(PATIENCE, seen).await.map(|seen| seen.is_ok());
        assert_eq!(in_time, Ok(true), "{tasks:?}: {:?}; tried {:?}", self.mesh.cluster(), self.mesh.tried());
    }

    async fn next(&mut self) -> Heard {
        tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("in time").expect("the mesh lives")
    }

    async fn got(&mut self) -> (Peer, Envelope) {
        loop {
            match self.next().await {
                Heard::Got(from, envelope) => return (from, *envelope),
                Heard::Up(_) | Heard::Broke | Heard::Mended => {}
                Heard::Down(peer, why) => panic!("{peer} went down: {why}"),
            }
        }
    }

    async fn down(&mut self) -> (Peer, String) {
        loop {
            if let Heard::Down(peer, why) = self.next().await {
                return (peer, why);
            }
        }
    }

    async fn up(&mut self) -> Peer {
        loop {
            if let Heard::Up(peer) = self.next().await {
                return peer;
            }
        }
    }
}

fn config(registry: &Path, task: &str) -> MeshConfig {
    MeshConfig {
        task: (!task.is_empty()).then(|| task.parse().unwrap()),
        listen: if task.is_empty() { vec![] } else { vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()] },
        registry: Some(registry.to_owned()),
        ..MeshConfig::new("lab", Admission::Key(MeshKey::from_bytes([1; 32])))
    }
}

fn address_of(someone: &Someone) -> Multiaddr {
    someone.mesh.addresses()[0].parse().unwrap()
}

fn number(number: u64) -> Envelope {
    let piece = meshtf_tensor::ids::PieceId { session: SessionId(0), number: 0 };
    ToMaster::Done { piece, step: number, count: 1 }.into()
}

fn fetched(id: u64, elements: usize) -> Envelope {
    let tensor = Tensor::vector((0..elements).map(|i| i as f32).collect::<Vec<_>>());
    Envelope::new(ToClient::Fetched { id: RequestId(id), step: 1 }, vec![tensor])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_meet_through_the_registry_and_speak() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut a = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    let mut b = Someone::join(config(folder.path(), "local/1")).await.unwrap();
    assert_eq!(b.mesh.cluster().len(), 2, "whom the folder names is met before join returns");
    a.sees(&["local/0", "local/1"]).await;

    let step = StepId { session: SessionId(3), number: 1 };
    let to = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let values = (0..3).map(|transfer| PushedValue { transfer, iterations: SmallVec::new(), is_dead: false }).collect();
    let push = Envelope {
        message: ToWorker::Push { step, to, values }.into(),
        tensors: vec![
            Tensor::vector(vec![true, false]),
            Tensor::vector(vec![b"greetings".to_vec(), vec![0xff]]),
            Tensor::from_vec([2, 0], Vec::<i64>::new()),
        ],
    };
    a.mesh.send(b.peer(), push.clone()).unwrap();
    assert_eq!(b.got().await, (a.peer().clone(), push));
    for elements in [10, 100_000, 3_000_000] {
        let big = fetched(1, elements);
        b.mesh.send(a.peer(), big.clone()).unwrap();
        let (from, envelope) = a.got().await;
        assert_eq!(from, *b.peer());
        assert!(envelope == big, "{elements} elements came over changed");
    }
    let flags = Envelope { tensors: vec![Tensor::from_vec([100_000], vec![true; 100_000])], ..fetched(2, 0) };
    a.mesh.send(b.peer(), flags.clone()).unwrap();
    assert!(b.got().await.1 == flags);
    a.mesh.send(a.peer(), number(5)).unwrap();
    assert_eq!(a.got().await, (a.peer().clone(), number(5)));
    let nobody = MeshConfig::new("lab", Admission::Open).identity.public().to_peer_id().to_string();
    assert!(matches!(a.mesh.send(&Peer::new(nobody), number(1)), Err(MeshError::NotConnected { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_meets_everybody_through_one() {
    let empty = || temp_dir::TempDir::new().unwrap();
    let (fa, fb, fc, fd) = (empty(), empty(), empty(), empty());
    let a = Someone::join(config(fa.path(), "w/0")).await.unwrap();
    let peers = || vec![address_of(&a)];
    let b = Someone::join(MeshConfig { peers: peers(), ..config(fb.path(), "w/1") }).await.unwrap();
    let c = Someone::join(MeshConfig { peers: peers(), ..config(fc.path(), "w/2") }).await.unwrap();
    let client = Someone::join(MeshConfig { peers: peers(), ..config(fd.path(), "") }).await.unwrap();
    for someone in [&a, &b, &c, &client] {
        someone.sees(&["w/0", "w/1", "w/2"]).await;
    }
    b.mesh.send(c.peer(), number(1)).unwrap();
    let device = DeviceInfo {
        name: Task::new("w", 1).device(DeviceKind::Gpu, 0),
        backend: "wgpu".into(),
        description: "an adapter".into(),
        capacity: Capacity {
            memory: Some(DeviceMemory { total: 8 << 30, free: 5 << 30 }),
            cores: Some(4),
            rates: Some(Rates { multiply_adds: 40_000_000_000, bytes: 9_000_000_000, streamed: None }),
        },
    };
    b.mesh.set_devices(vec![device.clone()]);
    let mut cluster = client.mesh.watch();
    let told =
        cluster.wait_for(|cluster| cluster.member(&Task::new("w", 1)).is_some_and(|m| m.devices == [device.clone()]));
    tokio::time::timeout(PATIENCE, told).await.expect("in time").unwrap();
    // A free byte less, and a total that no device has, which counts as unknown.
    for (total, free, known) in [(8 << 30, (5 << 30) - 1, true), (u64::MAX, 1, false)] {
        let memory = Some(DeviceMemory { total, free });
        b.mesh.change_devices(|device| device.capacity.memory = memory);
        let wanted = memory.filter(|_| known);
        let told = cluster.wait_for(|cluster| cluster.facts().iter().any(|facts| facts.capacity.memory == wanted));
        tokio::time::timeout(PATIENCE, told).await.expect("in time").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_one_holder() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut first = Someone::join(config(folder.path(), "ps/0")).await.unwrap();
    let second = Someone::join(config(folder.path(), "ps/0")).await;
    let Err(MeshError::TaskTaken { task, holder }) = second.map(|_| ()) else { panic!("ps/0 has two holders") };
    assert_eq!((task, &holder.peer, &holder.addresses), (Task::new("ps", 0), first.peer(), &first.mesh.addresses()));
    let witness = Someone::join(config(folder.path(), "")).await.unwrap();
    witness.sees(&["ps/0"]).await;
    first.mesh.send(witness.peer(), number(1)).unwrap_or(());
    while first.heard.try_recv().is_ok() {}
    first.mesh.leave().await;
    let third = Someone::join(config(folder.path(), "ps/0")).await.unwrap();
    third.sees(&["ps/0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_start_at_once_one_has_the_task() {
    let folder = temp_dir::TempDir::new().unwrap();
    for _ in 0..3 {
        let start = || Someone::join(config(folder.path(), "ps/0"));
        let (a, b) = tokio::join!(start(), start());
        match (a, b) {
            (Err(a), Err(b)) => panic!("nobody has it: {a}; {b}"),
            (Ok(a), Ok(b)) => tokio::time::timeout(PATIENCE, async {
                tokio::select! { error = a.mesh.lost() => error, error = b.mesh.lost() => error }
            })
            .await
            .map(|error| assert!(matches!(error, MeshError::TaskTaken { .. })))
            .expect("one loses"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_peers_are_told_why_and_stay_outside() {
    let (folder, elsewhere) = (temp_dir::TempDir::new().unwrap(), temp_dir::TempDir::new().unwrap());
    let keyed = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    let open =
        Someone::join(MeshConfig { admission: Admission::Open, ..config(folder.path(), "local/1") }).await.unwrap();
    let other_key = Admission::Key(MeshKey::from_bytes([2; 32]));
    for (to, admission, mesh, why) in [
        (&keyed, other_key.clone(), "lab", "another mesh key"),
        (&keyed, Admission::Open, "lab", "requires a mesh key"),
        (&open, other_key.clone(), "lab", "runs open"),
        (&keyed, Admission::Key(MeshKey::from_bytes([1; 32])), "den", "another mesh"),
    ] {
        let peers = vec![address_of(to)];
        let unauthenticated = MeshConfig { admission, peers, mesh: mesh.into(), ..config(elsewhere.path(), "") };
        let unauthenticated = Someone::join(unauthenticated).await.unwrap();
        assert!(unauthenticated.mesh.cluster().is_empty());
        let tried = || unauthenticated.mesh.tried().iter().map(Attempt::to_string).collect::<Vec<_>>().join("\n");
        // A client does not wait for a slow answer.
        let is_told = async {
            while !tried().contains(why) || !unauthenticated.mesh.is_turned_away() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let told = tokio::time::timeout(PATIENCE, is_told).await;
        assert!(told.is_ok(), "{why}, and nobody else is left to try: {}", tried());
    }
    assert_eq!((keyed.mesh.cluster().len(), open.mesh.cluster().len()), (1, 1), "one folder, two meshes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_is_hung_up_on() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = temp_dir::TempDir::new().unwrap();
    let node = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    let address = socket_address(&address_of(&node)).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0x16, 3, 1, 0xff, 0xff], &[0xff; 100_000]] {
        let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
        let _ = socket.write_all(garbage).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("it hangs up");
        assert!(answer.len() < 64, "nothing but an alert is answered");
    }
    let client = Someone::join(config(folder.path(), "")).await.unwrap();
    client.sees(&["local/0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_request_stay_in_order_whatever_their_size() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut node = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    // A client does not listen: large messages come over sockets that it was asked to dial.
    let mut client = Someone::join(config(folder.path(), "")).await.unwrap();
    client.sees(&["local/0"]).await;
    // The node knows of the client once it has heard of it.
    client.mesh.send(node.peer(), number(0)).unwrap();
    node.got().await;
    let (mesh, to) = (node.mesh.clone(), client.peer().clone());
    let mut everybody = node.mesh.watch();
    everybody.mark_unchanged();
    std::thread::spawn(move || {
        for request in 0..20 {
            mesh.send(&to, fetched(request, 400_000)).unwrap();
            mesh.send(&to, fetched(request, 4)).unwrap();
            let ran = Reply::Ran { steps: 1 };
            mesh.send(&to, ToClient::Reply { id: RequestId(request), result: Ok(ran) }.into()).unwrap();
        }
        for i in 0..5000 {
            mesh.send(&to, number(i)).unwrap();
        }
    })
    .join()
    .unwrap();
    let (mut requests, mut numbers) = (vec![Vec::new(); 20], Vec::new());
    for _ in 0..20 * 3 + 5000 {
        let (_, envelope) = client.got().await;
        match envelope.message {
            Message::ToClient(ToClient::Fetched { id, .. }) => requests[id.0 as usize].push(envelope.tensors[0].len()),
            Message::ToClient(ToClient::Reply { id, .. }) => requests[id.0 as usize].push(0),
            Message::ToMaster(ToMaster::Done { step, .. }) => numbers.push(step),
            other => panic!("{other:?}"),
        }
    }
    assert!(requests.iter().all(|sizes| *sizes == [400_000, 4, 0]), "{requests:?}");
    assert!(numbers.iter().copied().eq(0..5000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_is_missed_once_with_or_without_a_goodbye() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut a = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    let b = Someone::join(config(folder.path(), "local/1")).await.unwrap();
    let b_peer = b.peer().clone();
    assert_eq!(a.up().await, b_peer);
    b.mesh.leave().await;
    let (peer, why) = a.down().await;
    assert_eq!(peer, b_peer);
    assert!(why.contains("left"), "{why}");
    a.sees(&["local/0"]).await;

    // A process that is killed: its sockets close, without a goodbye.
    let registry = folder.path().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let c = runtime.spawn(async move { Someone::join(config(&registry, "local/1")).await.unwrap() }).await.unwrap();
    assert_eq!(a.up().await, *c.peer());
    runtime.shutdown_background();
    assert_eq!(a.down().await.0, *c.peer());
    a.sees(&["local/0"]).await;
    assert!(a.heard.try_recv().is_err(), "each was missed once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_hangs_is_noticed_and_welcome_when_it_wakes() {
    let folder = temp_dir::TempDir::new().unwrap();
    let mut a = Someone::join(config(folder.path(), "local/0")).await.unwrap();
    // Stopped as by SIGSTOP: nothing runs, and the kernel still acknowledges.
    let (joined, seen) = tokio::sync::oneshot::channel();
    let (wake, sleep) = std::sync::mpsc::channel::<()>();
    let (end, done) = tokio::sync::oneshot::channel::<()>();
    let registry = folder.path().to_owned();
    let sleeper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let b = Someone::join(config(&registry, "local/1")).await.unwrap();
            joined.send(b.peer().clone()).unwrap();
            sleep.recv().unwrap();
            let _ = done.await;
        });
    });
    let b = seen.await.unwrap();
    assert_eq!(a.up().await, b);
    let full = loop {
        if let Err(error) = a.mesh.send(&b, fetched(1, 10_000)) {
            break error;
        }
    };
    assert!(matches!(full, MeshError::QueueFull { .. }), "{full}");
    let asleep = std::time::Instant::now();
    let (peer, why) = a.down().await;
    assert_eq!(peer, b);
    assert!(asleep.elapsed() < health::LINK_LIMIT + Duration::from_secs(2), "{why} after {:?}", asleep.elapsed());
    wake.send(()).unwrap();
    assert_eq!(a.up().await, b);
    a.sees(&["local/0", "local/1"]).await;
    drop(end);
    sleeper.join().unwrap();
}

/// A proxy in front of one participant: its connections can be reset, or held back silently.
struct Proxy {
    address: std::net::SocketAddr,
    open: Arc<Mutex<Vec<std::net::TcpStream>>>,
    held: Arc<std::sync::atomic::AtomicBool>,
}

impl Proxy {
    fn before(target: std::net::SocketAddr) -> Proxy {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy { address: listener.local_addr().unwrap(), open: Arc::default(), held: Arc::default() };
        let (open, held) = (proxy.open.clone(), proxy.held.clone());
        // Ends with the process: a listener has no other way to be notified.
        std::thread::spawn(move || {
            for inward in listener.incoming().map_while(Result::ok) {
                let Ok(outward) = std::net::TcpStream::connect(target) else { continue };
                for (mut from, mut to) in [(&inward, &outward), (&outward, &inward)].map(|(a, b)| (clone(a), clone(b)))
                {
                    let held = held.clone();
                    std::thread::spawn(move || {
                        let mut bytes = vec![0; 64 << 10];
                        while let Ok(read @ 1..) = std::io::Read::read(&mut from, &mut bytes) {
                            while held.load(std::sync::atomic::Ordering::Relaxed) {
                                std::thread::park_timeout(Duration::from_millis(10));
                            }
                            if std::io::Write::write_all(&mut to, &bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
                lock(&open).extend([inward, outward]);
            }
        });
        proxy
    }

    /// Resets every connection through it.
    fn reset(&self) {
        for socket in lock(&self.open).drain(..) {
            let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn hold(&self, hold: bool) {
        self.held.store(hold, std::sync::atomic::Ordering::Relaxed);
    }
}

fn clone(socket: &std::net::TcpStream) -> std::net::TcpStream {
    socket.try_clone().unwrap()
}

/// Two participants that are connected through a proxy, and know of no other way at first.
async fn through_a_proxy(folders: &[temp_dir::TempDir; 2]) -> (Someone, Someone, Proxy) {
    let a = Someone::join(config(folders[0].path(), "local/0")).await.unwrap();
    let proxy = Proxy::before(socket_address(&address_of(&a)).unwrap());
    let peers = vec![parse_address(&proxy.address.to_string()).unwrap()];
    let b = Someone::join(MeshConfig { peers, ..config(folders[1].path(), "local/1") }).await.unwrap();
    for someone in [&a, &b] {
        someone.sees(&["local/0", "local/1"]).await;
    }
    (a, b, proxy)
}

/// Takes `count` messages of each kind: small ones in order from `from`, large ones with these ids, each once.
async fn take_round(ear: &mut Someone, from: u64, count: u64, large: std::ops::Range<u64>) {
    let mut small = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    while small.len() < count as usize || ids.len() < (large.end - large.start) as usize {
        match ear.got().await.1 {
            Envelope { message: Message::ToMaster(ToMaster::Done { step, .. }), .. } => small.push(step),
            Envelope { message: Message::ToClient(ToClient::Fetched { id, .. }), tensors } => {
                assert!(tensors[0].len() == 100_000 && ids.insert(id.0), "{id:?} came twice");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(small.iter().copied().eq(from..from + count), "{small:?} from {from}");
    assert!(ids.iter().copied().eq(large));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_survives_resets_once_and_in_order() {
    const SMALL: u64 = 300;
    const LARGE: u64 = 6;
    let (mut a, mut b, proxy) = through_a_proxy(&[(); 2].map(|()| temp_dir::TempDir::new().unwrap())).await;
    for round in 0..30 {
        let (first, large) = (round * SMALL, round * LARGE..(round + 1) * LARGE);
        for number_ in 0..SMALL {
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.mesh.send(to.peer(), number(first + number_)).unwrap();
                if number_ % (SMALL / LARGE) == 0 {
                    let id = large.start + number_ / (SMALL / LARGE);
                    from.mesh.send(to.peer(), fetched(id, 100_000)).unwrap();
                }
            }
            if number_ == round * 10 {
                proxy.reset();
            }
        }
        take_round(&mut a, first, SMALL, large.clone()).await;
        take_round(&mut b, first, SMALL, large).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_says_nothing_is_replaced() {
    let (mut a, mut b, proxy) = through_a_proxy(&[(); 2].map(|()| temp_dir::TempDir::new().unwrap())).await;
    // The way through the proxy is dead from now on; the direct one, of which both were notified, is not.
    proxy.hold(true);
    let start = std::time::Instant::now();
    for i in 0..100 {
        a.mesh.send(b.peer(), number(i)).unwrap();
        b.mesh.send(a.peer(), number(i)).unwrap();
    }
    take_round(&mut a, 0, 100, 0..0).await;
    take_round(&mut b, 0, 100, 0..0).await;
    assert!(start.elapsed() < health::LINK_LIMIT, "{:?}", start.elapsed());
    proxy.hold(false);
}
