//! Meshes over a transport without sockets: the layers above the transports know nothing of TCP, TLS or ports.

use meshtf_tensor::DType;

use super::super::clock::Stopped;
use super::super::transport::memory::{Memory, Network};
use super::*;

/// A participant on `network`, which dials the node at the first address.
pub(super) async fn join(network: &Arc<Network>, task: &str) -> Result<Someone, MeshError> {
    join_with(network, task, Admission::Key(MeshKey::from_bytes([1; 32]))).await
}

async fn join_with(network: &Arc<Network>, task: &str, admission: Admission) -> Result<Someone, MeshError> {
    join_as(network, task, admission, Speaks::own()).await
}

async fn join_as(
    network: &Arc<Network>,
    task: &str,
    admission: Admission,
    speaks: Speaks,
) -> Result<Someone, MeshError> {
    let first = "/memory/1".parse().unwrap();
    let config = MeshConfig {
        task: (!task.is_empty()).then(|| task.parse().unwrap()),
        peers: if task == "local/0" { vec![] } else { vec![first] },
        ..MeshConfig::new("lab", admission)
    };
    let memory = Memory { network: network.clone(), me: config.identity.public().to_peer_id() };
    let (sender, heard) = unbounded_channel();
    let mesh = Mesh::join_over(vec![Arc::new(memory)], config, Arc::new(Ear(sender)), speaks).await?;
    Ok(Someone { mesh, heard })
}

/// Sends messages of several sizes, small and bulk, one after the other, and takes them.
async fn exchange(from: &Someone, to: &mut Someone) {
    for elements in [10, 100_000, 1_000_000] {
        let message = fetched(1, elements);
        from.mesh.send(to.peer(), message.clone()).unwrap();
        let (peer, got) = to.got().await;
        assert_eq!(peer, *from.peer());
        assert!(got == message, "{elements} elements came over changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_and_bulk_messages_need_no_socket() {
    let network = Arc::new(Network::default());
    let mut a = join(&network, "local/0").await.unwrap();
    assert_eq!(a.mesh.addresses(), ["/memory/1"]);
    let mut b = join(&network, "local/1").await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    exchange(&a, &mut b).await;
    exchange(&b, &mut a).await;
    assert_eq!(b.mesh.cluster().member(&Task::new("local", 0)).unwrap().addresses, ["/memory/1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_has_the_rate_of_the_large_messages_that_it_carried() {
    let network = Arc::new(Network::default());
    let mut a = join(&network, "local/0").await.unwrap();
    let mut b = join(&network, "local/1").await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    let rate = |of: &Someone| of.mesh.status().peers[0].bulk_bytes_per_second;
    for (elements, is_large) in [(100_000, false), (1_000_000, true)] {
        let message = fetched(elements as u64, elements);
        a.mesh.send(b.peer(), message.clone()).unwrap();
        assert!(b.got().await.1 == message);
        // Its frame acknowledges.
        b.mesh.send(a.peer(), number(1)).unwrap();
        a.got().await;
        assert_eq!((rate(&a).is_some(), rate(&b)), (is_large, None), "{elements}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_of_every_dtype_comes_over_unchanged() {
    let network = Arc::new(Network::default());
    let a = join(&network, "local/0").await.unwrap();
    let mut b = join(&network, "local/1").await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    for dtype in DType::all().filter(|dtype| !dtype.is_handle()) {
        let count = 400_000;
        let tensor = match dtype.size() {
            Some(size) => {
                let bytes: Vec<u8> =
                    (0..count * size).map(|i| if dtype == DType::Bool { i % 2 } else { i % 61 } as u8).collect();
                Tensor::from_bytes(dtype, [count], &bytes).unwrap()
            }
            None => Tensor::vector(vec![b"text".to_vec(); count]),
        };
        let message = Envelope { tensors: vec![tensor], ..fetched(1, 1) };
        a.mesh.send(b.peer(), message.clone()).unwrap();
        let (_, got) = b.got().await;
        assert!(got == message, "{dtype} came over changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_listens_nowhere_is_sent_bulk_over_streams_that_it_dials() {
    let network = Arc::new(Network::default());
    let mut node = join(&network, "local/0").await.unwrap();
    let mut client = join(&network, "").await.unwrap();
    client.sees(&["local/0"]).await;
    client.mesh.send(node.peer(), number(1)).unwrap();
    assert_eq!(node.got().await.1, number(1));
    let before = network.dialled().len();
    exchange(&node, &mut client).await;
    assert!(network.dialled().len() > before, "the client dialled for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_survives_a_cut_once_and_in_order() {
    const SMALL: u64 = 100;
    let network = Arc::new(Network::default());
    let mut a = join(&network, "local/0").await.unwrap();
    let mut b = join(&network, "local/1").await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    for round in 0..10 {
        let (first, large) = (round * SMALL, round * 2..round * 2 + 2);
        for i in 0..SMALL {
            for (from, to) in [(&a, &b), (&b, &a)] {
                from.mesh.send(to.peer(), number(first + i)).unwrap();
                if i % (SMALL / 2) == 0 {
                    from.mesh.send(to.peer(), fetched(large.start + i / (SMALL / 2), 100_000)).unwrap();
                }
            }
            if i == 5 * round {
                network.cut();
            }
        }
        take_round(&mut a, first, SMALL, large.clone()).await;
        take_round(&mut b, first, SMALL, large).await;
    }
}

#[tokio::test]
async fn unauthenticated_peers_and_holders_of_a_task_are_told_apart_on_any_transport() {
    // A node does not wait for long before it takes its task: in this test it does.
    let (_clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let mut a = join(&network, "local/0").await.unwrap();
    let unauthenticated = join_with(&network, "", Admission::Key(MeshKey::from_bytes([2; 32]))).await.unwrap();
    assert!(unauthenticated.mesh.cluster().is_empty());
    let tried = unauthenticated.mesh.tried().iter().map(Attempt::to_string).collect::<Vec<_>>().join("\n");
    assert!(tried.contains("/memory/1") && tried.contains("another mesh key"), "{tried}");

    let b = join(&network, "local/1").await.unwrap();
    a.sees(&["local/0", "local/1"]).await;
    // If two claims are of the same millisecond, either node may have the task.
    let held = unix_ms();
    while unix_ms() <= held {
        tokio::task::yield_now().await;
    }
    let rival = join(&network, "local/1").await.map(|_| ());
    assert!(matches!(&rival, Err(MeshError::TaskTaken { task, .. }) if task.index == 1), "{rival:?}");
    let (peer, at) = (b.peer().clone(), std::time::Instant::now());
    b.mesh.leave().await;
    assert_eq!(a.down().await.0, peer);
    assert!(at.elapsed() < PATIENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_versions_say_so_on_both_sides() {
    let network = Arc::new(Network::default());
    let key = || Admission::Key(MeshKey::from_bytes([1; 32]));
    let old = join(&network, "local/0").await.unwrap();
    let speaks = Speaks { protocol: VERSION + 1, release: Release::new("0.9.0") };
    let new = join_as(&network, "local/1", key(), speaks).await.unwrap();
    // The old one is dialled, and dials no peer: it knows of the new one because that connected.
    let seen = async |someone: &Someone| {
        let looked = async {
            loop {
                let found = someone.mesh.tried().into_iter().find(|attempt| attempt.verdict == Verdict::OtherVersion);
                match found {
                    Some(attempt) => return attempt,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, looked).await.expect("in time")
    };
    let (by_new, by_old) = (seen(&new).await, seen(&old).await);
    assert_eq!((by_new.source, by_new.speaks), (Source::Configured, Some(Speaks::own())));
    assert_eq!((by_old.source, by_old.speaks), (Source::Caller, Some(speaks)));
    for (attempt, theirs, ours) in [(by_new, Speaks::own(), speaks), (by_old, speaks, Speaks::own())] {
        assert!(attempt.outcome.starts_with(&format!("it is {theirs}, this is {ours}")), "{}", attempt.outcome);
    }
    assert_eq!((old.mesh.cluster().len(), new.mesh.cluster().len()), (1, 1));
}
