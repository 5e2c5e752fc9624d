//! The cost of the mesh, compared with the cost of its bare sockets. Run it by hand:
//! `cargo test --release --lib mesh::tests::speed -- --ignored --nocapture`

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libp2p::identity::Keypair;
use meshtf_tensor::Tensor;
use meshtf_tensor::ids::{PieceId, RequestId, SessionId};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::mesh::transport::tls::Tls;
use crate::mesh::*;
use crate::protocol::{Message, ToClient, ToMaster};

const ROUNDS: u64 = 20_000;
const TENSOR_BYTES: usize = 64 << 20;
const TRANSFERS: usize = 12;

/// Returns the messages that it gets, or counts rounds and tensors.
struct Ball {
    mesh: OnceLock<Mesh>,
    report: Option<Sender<Instant>>,
}

impl Inbox for Ball {
    fn joined(&self, mesh: &Mesh) {
        let _ = self.mesh.set(mesh.clone());
    }

    fn deliver(&self, from: &Peer, envelope: Envelope) {
        match (&self.report, &envelope.message) {
            (None, Message::ToMaster(ToMaster::Done { .. })) => {
                self.mesh.wait().send(from, envelope).expect("the other is there")
            }
            (None, _) => {
                drop(envelope);
                self.mesh.wait().send(from, round(0)).expect("the other is there");
            }
            (Some(report), _) => report.send(Instant::now()).expect("somebody measures"),
        }
    }

    fn up(&self, _: &Peer, _: &Hello) {}

    fn down(&self, peer: &Peer, _: Option<&Task>, why: &str) {
        eprintln!("{peer}: {why}");
    }
}

fn round(step: u64) -> Envelope {
    ToMaster::Done { piece: PieceId { session: SessionId(7), number: 1 }, step, count: 1 }.into()
}

/// A participant on a separate runtime, as in a separate process.
fn participant(
    folder: &std::path::Path,
    task: &str,
    report: Option<Sender<Instant>>,
    local: bool,
) -> (tokio::runtime::Runtime, Mesh) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = MeshConfig {
        task: Some(task.parse().unwrap()),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        registry: Some(folder.to_owned()),
        local,
        ..MeshConfig::new("lab", Admission::Key(MeshKey::from_bytes([1; 32])))
    };
    let ball = Arc::new(Ball { mesh: OnceLock::new(), report });
    let mesh = runtime.block_on(Mesh::join(config, ball)).unwrap();
    (runtime, mesh)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Processor time that this process has taken, in seconds; 0 if the system does not report it this way.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

fn best(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

fn rate(time: Duration) -> f64 {
    TENSOR_BYTES as f64 / 1e9 / time.as_secs_f64()
}

/// A round trip of 64 bytes on raw TCP, each side on a separate runtime.
fn raw_round_trip() -> Duration {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, there) = (runtime(), runtime());
    let listener = there.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    there.spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let mut bytes = [0; 64];
        while socket.read_exact(&mut bytes).await.is_ok() {
            socket.write_all(&bytes).await.unwrap();
        }
    });
    let work = here.spawn(async move {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let mut bytes = [0; 64];
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            socket.write_all(&bytes).await.unwrap();
            socket.read_exact(&mut bytes).await.unwrap();
            times.push(start.elapsed());
        }
        median(times)
    });
    let time = here.block_on(work).unwrap();
    there.shutdown_background();
    time
}

/// The same bytes over TLS on a bare socket, with rustls and tokio as they come.
fn bare_tls(ends: [Tls; 2]) -> Vec<Duration> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, there) = (runtime(), runtime());
    let listener = there.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let [ours, theirs] = ends.map(|end| end.bare());
    there.spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = theirs.1.accept(socket).await.unwrap();
        loop {
            let mut tensor = vec![0; TENSOR_BYTES];
            if stream.read_exact(&mut tensor).await.is_err() {
                return;
            }
            stream.write_all(&[1]).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    let work = here.spawn(async move {
        let socket = TcpStream::connect(address).await.unwrap();
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let mut stream = ours.0.connect(name, socket).await.unwrap();
        let tensor = vec![1u8; TENSOR_BYTES];
        let mut times = Vec::new();
        for _ in 0..TRANSFERS {
            let start = Instant::now();
            stream.write_all(&tensor).await.unwrap();
            stream.flush().await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            times.push(start.elapsed());
        }
        times
    });
    let times = here.block_on(work).unwrap();
    there.shutdown_background();
    times
}

#[test]
#[ignore = "a measurement"]
fn what_it_costs() {
    let tensor = Tensor::vector(vec![1u8; TENSOR_BYTES]);
    let pairs = [("TCP", false), ("Unix sockets", true)].map(|(way, local)| {
        let folder = temp_dir::TempDir::new().unwrap();
        let (report, reports) = channel();
        let there = participant(folder.path(), "local/1", None, local);
        (way, participant(folder.path(), "local/0", Some(report), local), there, reports)
    });
    for (pass, (way, (_own, here), (_other, there), reports)) in
        (0..3).flat_map(|pass| pairs.each_ref().map(|pair| (pass, pair)))
    {
        let mut times = Vec::new();
        for step in 0..ROUNDS {
            let start = Instant::now();
            here.send(there.peer(), round(step)).unwrap();
            times.push(reports.recv().unwrap() - start);
        }
        let (raw, small) = (raw_round_trip(), median(times));
        println!("pass {pass}: round trip over {way} {small:?}, raw TCP {raw:?}");
        let before = processor_seconds();
        let mut bulk = Vec::new();
        for _ in 0..TRANSFERS {
            let start = Instant::now();
            let message = ToClient::Fetched { id: RequestId(1), step: 1 };
            here.send(there.peer(), Envelope::new(message, vec![tensor.clone()])).unwrap();
            bulk.push(reports.recv().unwrap() - start);
        }
        let between = processor_seconds();
        let bare = bare_tls([(); 2].map(|()| Tls::new(&Keypair::generate_ed25519()).unwrap()));
        let gigabytes = (TRANSFERS * TENSOR_BYTES) as f64 / 1e9;
        for (what, times, seconds) in
            [("mesh", bulk, between - before), ("bare TLS", bare, processor_seconds() - between)]
        {
            println!(
                "pass {pass}: 64 MiB over {way} by {what}: {:.2} GB/s, at best {:.2}, {:.2} CPU-s/GB",
                rate(median(times.clone())),
                rate(best(&times)),
                seconds / gigabytes
            );
        }
    }
}
