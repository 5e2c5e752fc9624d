//! The fate of links when their network is disturbed. The clock stands still unless a test advances it, and everything runs on
//! the test's thread, so that a limit is passed exactly when the test intends it.

use std::collections::BTreeMap;

use super::super::clock::Stopped;
use super::super::driver::SETTLED_AFTER;
use super::super::health::{DOUBT_AFTER, LINK_LIMIT};
use super::super::transport::memory::{Memory, Network};
use super::in_memory::join;
use super::*;

/// The clock advances by steps at which every driver runs, and each is shorter than the standstill limit of a driver.
const STEP: Duration = Duration::from_millis(100);
/// More turns than a task needs until its driver has run.
const TURNS: usize = 64;

/// Lets time pass for these participants.
async fn pass(clock: &Stopped, time: Duration, of: &[&Someone]) {
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(STEP);
        clock.pass(step);
        left -= step;
        of.iter().for_each(|someone| someone.mesh.roster.news.notify_one());
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }
}

/// Two nodes that know each other, and whose events of that are forgotten.
async fn pair(network: &Arc<Network>) -> (Someone, Someone) {
    let mut a = join(network, "local/0").await.unwrap();
    let mut b = join(network, "local/1").await.unwrap();
    assert_eq!((a.up().await, b.up().await), (b.peer().clone(), a.peer().clone()));
    (a, b)
}

impl Someone {
    /// All events until now, without the messages: `up`, `down`, `broke` and `mended`.
    fn events(&mut self) -> Vec<&'static str> {
        let mut events = Vec::new();
        while let Ok(heard) = self.heard.try_recv() {
            events.extend(match heard {
                Heard::Up(_) => Some("up"),
                Heard::Down(..) => Some("down"),
                Heard::Broke => Some("broke"),
                Heard::Mended => Some("mended"),
                Heard::Got(..) => None,
            });
        }
        events
    }

    async fn mended(&mut self) {
        loop {
            match self.next().await {
                Heard::Mended => return,
                Heard::Down(_, why) => panic!("it went down: {why}"),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_peer_that_is_silent_for_longer_than_the_limit_is_given_up() {
    let (clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (mut a, mut b) = pair(&network).await;
    network.part(true);
    network.mute();
    pass(&clock, LINK_LIMIT - STEP, &[&a, &b]).await;
    assert_eq!((a.events(), b.events()), (vec![], vec![]), "before the limit");
    pass(&clock, STEP, &[&a, &b]).await;
    let peers = [b.peer().clone(), a.peer().clone()];
    for (someone, other) in [&mut a, &mut b].into_iter().zip(peers) {
        let (peer, why) = someone.down().await;
        assert_eq!((peer, why.as_str()), (other, "nothing was heard from it for 6 s"));
        assert_eq!(someone.events(), Vec::<&str>::new(), "it went down once");
    }
    let refused = a.mesh.send(b.peer(), number(1));
    assert!(matches!(refused, Err(MeshError::NotConnected { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_link_over_which_nothing_comes_goes_on_over_another_connection() {
    let (clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (mut a, mut b) = pair(&network).await;
    network.mute();
    a.mesh.send(b.peer(), number(1)).unwrap();
    let before = network.dialled().len();
    pass(&clock, DOUBT_AFTER - STEP, &[&a, &b]).await;
    assert_eq!(network.dialled().len(), before, "nobody doubts yet");
    pass(&clock, STEP, &[&a, &b]).await;
    assert!(network.dialled().len() > before, "both doubt now");
    assert_eq!(b.got().await.1, number(1), "what was said into the silence comes over the new connection");
    b.mesh.send(a.peer(), number(2)).unwrap();
    assert_eq!(a.got().await.1, number(2));
}

#[tokio::test]
async fn a_link_that_breaks_is_mended_up_to_the_limit() {
    let (clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (mut a, mut b) = pair(&network).await;
    network.part(true);
    network.cut();
    a.mesh.send(b.peer(), number(1)).unwrap();
    pass(&clock, LINK_LIMIT - STEP * 3, &[&a, &b]).await;
    assert_eq!((a.events(), b.events()), (vec!["broke"], vec!["broke"]));
    network.part(false);
    // The longest pause between two dials.
    pass(&clock, STEP * 2 + STEP / 2, &[&a, &b]).await;
    assert_eq!(b.got().await.1, number(1));
    a.mended().await;
    b.mesh.send(a.peer(), number(2)).unwrap();
    assert_eq!(a.got().await.1, number(2));
    assert_eq!((a.events(), b.events()), (vec![], vec![]), "nobody went down or came up again");
}

#[tokio::test]
async fn a_link_that_breaks_for_longer_begins_anew() {
    let (clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (mut a, mut b) = pair(&network).await;
    network.part(true);
    network.cut();
    a.mesh.send(b.peer(), number(1)).unwrap();
    pass(&clock, LINK_LIMIT, &[&a, &b]).await;
    for someone in [&mut a, &mut b] {
        let (_, why) = someone.down().await;
        assert!(why.ends_with(", and reconnecting failed"), "{why}");
    }
    network.part(false);
    // Discovery dials again after a pause.
    while b.mesh.cluster().len() < 2 {
        pass(&clock, STEP, &[&a, &b]).await;
    }
    assert_eq!((a.up().await, b.up().await), (b.peer().clone(), a.peer().clone()));
    a.mesh.send(b.peer(), number(2)).unwrap();
    assert_eq!(b.got().await.1, number(2), "what was sent on the old link is lost with it");
}

#[tokio::test]
async fn two_that_dial_each_other_at_once_have_one_link() {
    let (_clock, network) = (Stopped::here(), Arc::new(Network::default()));
    network.dial_together(2);
    let meet = async |own: u64, other: u64| {
        let address = |port: u64| vec![format!("/memory/{port}").parse().unwrap()];
        let config = MeshConfig {
            task: Some(Task::new("local", own as u32)),
            listen: address(own),
            peers: address(other),
            ..MeshConfig::new("lab", Admission::Key(MeshKey::from_bytes([1; 32])))
        };
        let memory = Memory { network: network.clone(), me: config.identity.public().to_peer_id() };
        let (sender, heard) = unbounded_channel();
        let mesh = Mesh::join_over(vec![Arc::new(memory)], config, Arc::new(Ear(sender)), Speaks::own()).await.unwrap();
        Someone { mesh, heard }
    };
    let (mut a, mut b) = tokio::join!(meet(1, 2), meet(2, 1));
    let dialled: Vec<String> = network.dialled().iter().take(2).map(ToString::to_string).collect();
    assert!([a.peer(), b.peer()].iter().all(|peer| dialled.contains(&peer.to_string())), "both dialled");
    for someone in [&a, &b] {
        someone.sees(&["local/1", "local/2"]).await;
    }
    for i in 0..100 {
        a.mesh.send(b.peer(), number(i)).unwrap();
        b.mesh.send(a.peer(), number(i)).unwrap();
    }
    for someone in [&mut a, &mut b] {
        assert!(matches!(someone.next().await, Heard::Up(_)));
        for i in 0..100 {
            let heard = someone.next().await;
            assert!(matches!(&heard, Heard::Got(_, envelope) if **envelope == number(i)), "{heard:?}, not {i}");
        }
        assert_eq!(someone.events(), Vec::<&str>::new());
    }
}

#[tokio::test]
async fn of_two_that_claim_one_task_at_once_one_has_it() {
    let (_clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let a = join(&network, "local/0").await.unwrap();
    let (one, other) = tokio::join!(join(&network, "local/1"), join(&network, "local/1"));
    let (holder, refused) = match (one, other) {
        (Ok(holder), Err(refused)) | (Err(refused), Ok(holder)) => (holder, refused),
        (Ok(one), Ok(other)) => tokio::select! {
            error = one.mesh.lost() => (other, error),
            error = other.mesh.lost() => (one, error),
        },
        (Err(one), Err(other)) => panic!("nobody has it: {one}; {other}"),
    };
    let MeshError::TaskTaken { task, holder: told } = refused else { panic!("{refused}") };
    assert_eq!((task, &told.peer), (Task::new("local", 1), holder.peer()));
    a.sees(&["local/0", "local/1"]).await;
    assert_eq!(a.mesh.cluster().member(&Task::new("local", 1)).unwrap().peer, *holder.peer());
}

#[tokio::test]
async fn the_successor_of_a_node_that_was_killed_is_not_refused_for_it() {
    for comes_back in [false, true] {
        let (clock, network) = (Stopped::here(), Arc::new(Network::default()));
        let (a, b) = pair(&network).await;
        while unix_ms() <= b.mesh.roster.own_hello().claims_since_unix_ms {
            tokio::task::yield_now().await;
        }
        // A holder that is as new as its successor would lose to it as soon as that is settled.
        clock.pass(SETTLED_AFTER);
        while !a.mesh.roster.link(b.peer()).is_some_and(|link| link.hello().settled) {
            tokio::task::yield_now().await;
        }
        network.cut_off(b.mesh.peer().as_str().parse().unwrap());
        pass(&clock, STEP, &[&a, &b]).await;
        let successor = join(&network, "local/1").await.unwrap();
        if comes_back {
            network.join_all();
            let all = [&a, &b, &successor];
            let lost = successor.mesh.lost();
            tokio::pin!(lost);
            let error = loop {
                tokio::select! { error = &mut lost => break error, () = pass(&clock, STEP, &all) => {} }
            };
            assert!(matches!(&error, MeshError::TaskTaken { holder, .. } if holder.peer == *b.peer()), "{error}");
        } else {
            let holds_it = || a.mesh.cluster().member(&Task::new("local", 1)).map(|member| member.peer.clone());
            for step in 2..LINK_LIMIT.as_millis() / STEP.as_millis() {
                assert_eq!(holds_it().as_ref(), Some(b.peer()), "the holder may still come back, after {step} steps");
                pass(&clock, STEP, &[&a, &b, &successor]).await;
            }
            while holds_it().as_ref() != Some(successor.peer()) {
                pass(&clock, STEP, &[&a, &b, &successor]).await;
            }
        }
    }
}

#[tokio::test]
async fn a_bulk_stream_that_breaks_in_the_middle_is_followed_by_another() {
    let (_clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (mut a, mut b) = pair(&network).await;
    // 4 MB of floats, of which a quarter comes at first.
    network.break_after(1_000_000);
    let before = network.dialled().len();
    let large = fetched(1, 1_000_000);
    a.mesh.send(b.peer(), large.clone()).unwrap();
    assert!(b.got().await.1 == large, "it came over changed");
    assert!(network.has_broken_one());
    assert_eq!(network.dialled().len(), before + 2, "a second stream brought it");
    a.mesh.send(b.peer(), fetched(2, 100_000)).unwrap();
    assert!(b.got().await.1 == fetched(2, 100_000), "it came twice, or the next did not come");
    assert_eq!((a.events(), b.events()), (vec![], vec![]), "the link never broke");
}

#[tokio::test]
async fn what_is_of_one_flow_stays_in_order_though_its_bulk_breaks() {
    let (_clock, network) = (Stopped::here(), Arc::new(Network::default()));
    let (a, mut b) = pair(&network).await;
    const REQUESTS: u64 = 3;
    // The small ones arrive long before the bulk stream is dialled again.
    network.break_after(1_000_000);
    for id in 0..REQUESTS {
        for elements in [400_000, 4, 300_000, 5] {
            a.mesh.send(b.peer(), fetched(id, elements)).unwrap();
        }
        let ran = ToClient::Reply { id: RequestId(id), result: Ok(Reply::Ran { steps: 1 }) };
        a.mesh.send(b.peer(), ran.into()).unwrap();
    }
    let mut of_requests: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for _ in 0..REQUESTS * 5 {
        match b.got().await.1 {
            Envelope { message: Message::ToClient(ToClient::Fetched { id, .. }), tensors } => {
                of_requests.entry(id.0).or_default().push(tensors[0].len());
            }
            Envelope { message: Message::ToClient(ToClient::Reply { id, .. }), .. } => {
                of_requests.entry(id.0).or_default().push(0);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(network.has_broken_one());
    let wanted = (0..REQUESTS).map(|id| (id, vec![400_000, 4, 300_000, 5, 0])).collect();
    assert_eq!(of_requests, wanted);
}
