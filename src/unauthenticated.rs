//! Unauthenticated peers, the sockets whose other side has proven nothing yet: their number, their addresses, and the choice of
//! the one to close when one more comes.
//!
//! A port keeps one table of them. A newcomer gets a slot. If none is free, another unauthenticated peer loses its slot: one
//! from the address that holds the most slots; among those, one that has progressed as far as most peers of that address; among
//! those, the one that has been at that stage the longest. So a crowd from one address costs that address its own slots, and at
//! whatever stage the crowd stops, a newcomer that progresses gets through. Some slots are kept for addresses from which the
//! key was proven before. The port decides what a proof is; this module reads no byte.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use meshtf_tensor::lock::lock;
use tokio::sync::Notify;

use crate::descriptors;

/// Fewest and most unauthenticated peers of one port. Between these limits there is one slot for every [`DESCRIPTORS_A_PLACE`]
/// descriptors: the rest is left for peers that have proven the key, and for files.
const FEWEST_PLACES: usize = 16;
const MOST_PLACES: usize = 256;
const DESCRIPTORS_A_PLACE: usize = 8;
/// Fewest slots that one address may hold; otherwise it is a quarter of them.
const FEWEST_OF_ONE: usize = 8;
/// Most addresses that are remembered because the key was proven from there.
const MAX_KNOWN: usize = 1024;
/// How often a lack of descriptors is logged.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// The function that is notified when a limit is reached.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// The unauthenticated peers of one port.
pub(crate) struct UnauthenticatedPeers {
    places: usize,
    table: Mutex<Table>,
    /// The report when one loses its slot to another, and the function that receives it.
    full: OnceLock<(String, Tell)>,
}

#[derive(Default)]
struct Table {
    /// The peers that have a slot, in the order they came.
    here: BTreeMap<u64, Place>,
    /// How many were asked to leave and have not left yet.
    leaving: usize,
    /// Counts the unauthenticated peers that came.
    came: u64,
    /// Counts each step of progress of any of them; the first step is to connect.
    steps: u64,
    /// The addresses from which the key was proven, and the count of arrivals at the last proof.
    known: BTreeMap<Origin, u64>,
    complained: Option<Instant>,
}

struct Place {
    from: Origin,
    progress: Progress,
    /// The number of the step that brought it to this stage.
    since: u64,
    go: Arc<Notify>,
}

/// How far an unauthenticated peer has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// It is connected, and has sent nothing.
    Silent,
    /// It has sent its first byte.
    Spoke,
    /// It speaks TLS, and has a PeerId.
    Secured,
}

/// The origin of an unauthenticated peer: an IPv4 address, or the /64 of an IPv6 address, since a machine that has one address
/// of a /64 can have all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(ip: IpAddr) -> Self {
        Origin(match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
            v4 => v4,
        })
    }
}

/// The ports of one node, for reports on how many unauthenticated peers wait at each.
pub(crate) struct Ports {
    all: Mutex<Vec<(&'static str, Weak<UnauthenticatedPeers>)>>,
    tell: Tell,
}

impl Ports {
    /// `tell` is called when unauthenticated peers at one of them lose their slots to others.
    pub fn new(tell: Tell) -> Self {
        Ports { all: Mutex::default(), tell }
    }

    /// A port has this table, for as long as the table is kept.
    pub fn add(&self, name: &'static str, unauthenticated_peers: &Arc<UnauthenticatedPeers>) {
        let text = format!("{name}: one was closed to make room for another, since their places are taken");
        let _first = unauthenticated_peers.full.set((text, Arc::clone(&self.tell)));
        let mut ports = lock(&self.all);
        ports.retain(|(_, unauthenticated_peers)| unauthenticated_peers.strong_count() > 0);
        ports.push((name, Arc::downgrade(unauthenticated_peers)));
    }

    /// Each port by its name: how many of its slots are held, and how many it has.
    pub fn held(&self) -> Vec<(&'static str, usize, usize)> {
        let ports = lock(&self.all).clone();
        let open = ports
            .into_iter()
            .filter_map(|(name, unauthenticated_peers)| Some((name, unauthenticated_peers.upgrade()?)));
        open.map(|(name, unauthenticated_peers)| {
            (name, unauthenticated_peers.table().here.len(), unauthenticated_peers.places)
        })
        .collect()
    }
}

/// The slot of an unauthenticated peer; dropping it frees it.
pub(crate) struct UnauthenticatedPeer {
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
    number: u64,
    go: Arc<Notify>,
}

impl UnauthenticatedPeers {
    /// A table with as many slots as a port of this process can have, by its limit of descriptors.
    pub fn new() -> Arc<Self> {
        let places = (descriptors::limit() / DESCRIPTORS_A_PLACE).clamp(FEWEST_PLACES, MOST_PLACES);
        Arc::new(UnauthenticatedPeers::with_places(places))
    }

    fn with_places(places: usize) -> Self {
        UnauthenticatedPeers { places, table: Mutex::default(), full: OnceLock::new() }
    }

    /// A slot for a socket that has just been accepted. `None`: close it at once, as too many peers that were asked to leave
    /// have not left yet.
    pub fn admit(self: &Arc<Self>, from: IpAddr) -> Option<UnauthenticatedPeer> {
        let from = Origin::from(from);
        let mut table = self.table();
        if table.leaving >= self.places {
            return None;
        }
        let of_one = (self.places / 4).max(FEWEST_OF_ONE);
        let of_unknown = self.places - self.places / 4;
        let is_known = |origin: &Origin| table.known.contains_key(origin);
        let count = |counts: &dyn Fn(&Origin) -> bool| table.here.values().filter(|place| counts(&place.from)).count();
        let goes = if count(&|origin| *origin == from) >= of_one {
            table.first_to_go(|origin| *origin == from)
        } else if !is_known(&from) && count(&|origin| !is_known(origin)) >= of_unknown {
            table.first_to_go(|origin| !is_known(origin))
        } else if table.here.len() >= self.places {
            table.first_to_go(|_| true)
        } else {
            None
        };
        let is_full = goes.is_some();
        goes.into_iter().for_each(|number| table.tell_to_go(number));
        table.came += 1;
        table.steps += 1;
        let (number, since, go) = (table.came, table.steps, Arc::new(Notify::new()));
        table.here.insert(number, Place { from, progress: Progress::Silent, since, go: Arc::clone(&go) });
        drop(table);
        if let Some((text, tell)) = self.full.get().filter(|_| is_full) {
            tell(text);
        }
        Some(UnauthenticatedPeer { unauthenticated_peers: Arc::clone(self), number, go })
    }

    /// A socket could not be accepted. If there was no descriptor left, half of the unauthenticated peers have to give theirs
    /// back, and a warning is logged once a minute at most. The caller has to pause before the next attempt.
    pub fn could_not_accept(&self, error: &io::Error) {
        if !descriptors::are_exhausted(error) {
            return;
        }
        let mut table = self.table();
        for _ in 0..table.here.len().div_ceil(2) {
            let goes = table.first_to_go(|_| true);
            goes.into_iter().for_each(|number| table.tell_to_go(number));
        }
        if table.complained.is_none_or(|last| last.elapsed() >= COMPLAINTS) {
            table.complained = Some(Instant::now());
            drop(table);
            tracing::warn!(
                "no file descriptor is left ({error}; the limit is {}): connections wait until others end; `ulimit -n` \
                 raises it",
                descriptors::limit()
            );
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    /// The first one to leave of those from `among`.
    fn first_to_go(&self, among: impl Fn(&Origin) -> bool) -> Option<u64> {
        let mut held: BTreeMap<Origin, usize> = BTreeMap::new();
        let mut alike: BTreeMap<(Origin, Progress), usize> = BTreeMap::new();
        let candidates = || self.here.iter().filter(|(_, place)| among(&place.from));
        for (_, place) in candidates() {
            *held.entry(place.from).or_default() += 1;
            *alike.entry((place.from, place.progress)).or_default() += 1;
        }
        let order = |place: &Place| {
            let alike = alike[&(place.from, place.progress)];
            (Reverse(held[&place.from]), Reverse(alike), place.progress, place.since)
        };
        candidates().min_by_key(|(_, place)| order(place)).map(|(number, _)| *number)
    }

    fn tell_to_go(&mut self, number: u64) {
        if let Some(place) = self.here.remove(&number) {
            self.leaving += 1;
            place.go.notify_one();
        }
    }

    fn know(&mut self, origin: Origin) {
        self.known.insert(origin, self.came);
        if self.known.len() > MAX_KNOWN
            && let Some(oldest) = self.known.iter().min_by_key(|(_, last)| **last).map(|(origin, _)| *origin)
        {
            self.known.remove(&oldest);
        }
    }
}

impl UnauthenticatedPeer {
    /// Notes its progress.
    pub fn is_at(&self, progress: Progress) {
        let mut table = self.unauthenticated_peers.table();
        table.steps += 1;
        let since = table.steps;
        if let Some(place) = table.here.get_mut(&self.number)
            && place.progress != progress
        {
            (place.progress, place.since) = (progress, since);
        }
    }

    /// It has proven the key and is no longer unauthenticated: its address is known from now on.
    pub fn proved(self) {
        let mut table = self.unauthenticated_peers.table();
        if let Some(from) = table.here.get(&self.number).map(|place| place.from) {
            table.know(from);
        }
    }

    /// Ready once it has to leave, so that another gets its slot.
    pub fn told_to_go(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.go).notified_owned()
    }
}

impl Drop for UnauthenticatedPeer {
    fn drop(&mut self) {
        let mut table = self.unauthenticated_peers.table();
        if table.here.remove(&self.number).is_none() {
            table.leaving = table.leaving.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// A crowd of unauthenticated peers, each with its address.
    struct Crowd {
        unauthenticated_peers: Arc<UnauthenticatedPeers>,
        here: Vec<(String, UnauthenticatedPeer)>,
    }

    impl Crowd {
        fn new(places: usize) -> Self {
            Crowd { unauthenticated_peers: Arc::new(UnauthenticatedPeers::with_places(places)), here: Vec::new() }
        }

        /// Peers come, and those who are asked to leave do so.
        fn come(&mut self, from: &str, count: usize) {
            for _ in 0..count {
                let unauthenticated = self.unauthenticated_peers.admit(from.parse().unwrap()).expect("a place");
                self.here.push((from.to_owned(), unauthenticated));
                self.go();
            }
        }

        fn go(&mut self) {
            self.here.retain(|(_, unauthenticated)| unauthenticated.told_to_go().now_or_never().is_none());
        }

        /// How many of an address hold a slot.
        fn count(&self, from: &str) -> usize {
            self.here.iter().filter(|(other, _)| other == from).count()
        }

        fn prove(&self, from: &str) {
            self.unauthenticated_peers.admit(from.parse().unwrap()).expect("a place").proved();
        }
    }

    #[test]
    fn a_crowd_from_one_address_costs_that_address_its_own_places() {
        let mut crowd = Crowd::new(64);
        crowd.come("10.0.0.1", 3);
        crowd.come("10.0.0.66", 300);
        assert_eq!((crowd.count("10.0.0.66"), crowd.count("10.0.0.1")), (16, 3));
        // The last one, of that same address, has a slot.
        assert_eq!(crowd.here.last().map(|(_, last)| last.number), Some(303));
    }

    #[test]
    fn a_port_tells_its_places_while_it_is_open() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&told);
        let ports = Ports::new(Arc::new(move |what: &str| lock(&heard).push(what.to_owned())));
        let (mut mesh, door) = (Crowd::new(64), Crowd::new(16));
        ports.add("mesh", &mesh.unauthenticated_peers);
        ports.add("door", &door.unauthenticated_peers);
        mesh.come("10.0.0.1", 3);
        assert_eq!(ports.held(), [("mesh", 3, 64), ("door", 0, 16)]);
        // One address may hold a quarter of the slots; its next peer takes the slot of another.
        mesh.come("10.0.0.9", 16);
        assert!(lock(&told).is_empty());
        mesh.come("10.0.0.9", 1);
        assert_eq!(*lock(&told), ["mesh: one was closed to make room for another, since their places are taken"]);
        mesh.here.retain(|(from, _)| from != "10.0.0.9");
        // One that leaves, and one that proves the key, free their slots.
        mesh.here.pop();
        mesh.prove("10.0.0.2");
        assert_eq!(ports.held()[0], ("mesh", 2, 64));
        drop(door);
        assert_eq!(ports.held(), [("mesh", 2, 64)]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let check = |a: &str, b: &str, same: bool| {
            let [a, b] = [a, b].map(|text| Origin::from(text.parse::<IpAddr>().unwrap()));
            assert_eq!(a == b, same, "{a:?} {b:?}");
        };
        check("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true);
        check("2001:db8:1:2::1", "2001:db8:1:3::1", false);
        check("::ffff:10.0.0.1", "10.0.0.1", true);
        check("10.0.0.1", "10.0.0.2", false);
        check("::1", "::2", true);
    }

    #[test]
    fn places_are_kept_for_addresses_that_proved_themselves() {
        let mut crowd = Crowd::new(64);
        crowd.prove("10.0.0.1");
        for host in 0..100 {
            crowd.come(&format!("10.0.1.{host}"), 2);
        }
        crowd.come("10.0.0.1", 16);
        assert_eq!(crowd.count("10.0.0.1"), 16);
        assert_eq!(crowd.here.len(), 64, "48 of the unknown and 16 of the known");
        // An unknown one can still come: another unknown one leaves for it.
        crowd.come("10.9.9.9", 1);
        assert_eq!((crowd.count("10.9.9.9"), crowd.count("10.0.0.1")), (1, 16));
    }

    #[test]
    fn who_stands_with_the_crowd_goes_first() {
        let numbers =
            |crowd: &Crowd| crowd.here.iter().map(|(_, unauthenticated)| unauthenticated.number).collect::<Vec<_>>();
        let stages = [Progress::Silent, Progress::Spoke, Progress::Secured];
        // The first three are at one stage each, and the crowd, which has sixteen slots, is at one of them.
        for stops in stages {
            let mut crowd = Crowd::new(64);
            crowd.come("10.0.0.1", 3);
            for (unauthenticated, at) in crowd.here.iter().zip(stages) {
                unauthenticated.1.is_at(at);
            }
            for _ in 0..100 {
                crowd.come("10.0.0.1", 1);
                crowd.here.last().unwrap().1.is_at(stops);
            }
            let mut left: Vec<u64> = (1..=3).filter(|number| stages[*number as usize - 1] != stops).collect();
            left.extend(90..=103);
            assert_eq!(numbers(&crowd), left, "{stops:?}");
            // One that progresses passes the crowd, at whatever stage the crowd stops.
            crowd.come("10.0.0.1", 1);
            for at in stages {
                crowd.here.iter().find(|(_, unauthenticated)| unauthenticated.number == 104).unwrap().1.is_at(at);
                for _ in 0..10 {
                    crowd.come("10.0.0.1", 1);
                    crowd.here.last().unwrap().1.is_at(stops);
                }
                assert!(numbers(&crowd).contains(&104), "{stops:?}: gone at {at:?}");
            }
        }
    }

    #[test]
    fn one_that_does_not_go_is_counted() {
        let unauthenticated_peers = Arc::new(UnauthenticatedPeers::with_places(16));
        let from = "10.0.0.1".parse().unwrap();
        let kept: Vec<UnauthenticatedPeer> =
            std::iter::from_fn(|| unauthenticated_peers.admit(from)).take(1000).collect();
        // Eight hold a slot, and sixteen were asked to leave and did not.
        assert_eq!(kept.len(), 8 + 16);
        drop(kept);
        assert!(unauthenticated_peers.admit(from).is_some());
        let table = unauthenticated_peers.table();
        assert_eq!((table.here.len(), table.leaving), (0, 0));
    }

    #[test]
    fn a_lack_of_descriptors_costs_half_of_the_unauthenticated_peers() {
        let mut crowd = Crowd::new(64);
        crowd.come("10.0.0.1", 9);
        crowd.unauthenticated_peers.could_not_accept(&io::ErrorKind::ConnectionAborted.into());
        assert_eq!(crowd.count("10.0.0.1"), 9);
        crowd.unauthenticated_peers.could_not_accept(&rustix::io::Errno::MFILE.into());
        crowd.go();
        assert_eq!(crowd.count("10.0.0.1"), 4);
    }

    #[test]
    fn only_so_many_known_addresses_are_remembered() {
        let crowd = Crowd::new(64);
        for host in 0..=MAX_KNOWN as u32 {
            crowd.prove(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + host).to_string());
        }
        let table = crowd.unauthenticated_peers.table();
        assert_eq!(table.known.len(), MAX_KNOWN);
        assert!(!table.known.contains_key(&Origin("10.0.0.0".parse().unwrap())));
    }
}
