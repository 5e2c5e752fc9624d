//! The reasons why a connection could not be made: the causes inside the errors that wrap them.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;

use libp2p::core::transport::TransportError;
use libp2p::swarm::DialError;

use super::address::{Multiaddr, without_peer};
use super::denied::Denied;
use super::discovery::{Miss, Verdict};
use super::frame::Refusal;

/// The consequence of a failed dial for the next attempt.
pub fn miss(error: &DialError) -> Miss {
    match error {
        DialError::LocalPeerId { .. } => Miss::new(Verdict::Itself, "this is the participant itself"),
        DialError::WrongPeerId { address, .. } => {
            let address = Some(without_peer(address.clone()));
            Miss { address, ..Miss::new(Verdict::Moved, "a different peer is there now") }
        }
        DialError::DialPeerConditionFalse(_) => Miss::new(Verdict::Pending, "being dialled"),
        DialError::Transport(failures) => of_addresses(failures),
        other => Miss::new(Verdict::Silent, other.to_string().trim_end_matches('.')),
    }
}

/// Of several addresses, the failure of the one that got furthest is the most informative; of those that got equally far, the
/// first.
fn of_addresses(failures: &[(Multiaddr, TransportError<io::Error>)]) -> Miss {
    let mut furthest: Option<(Verdict, &Multiaddr, Option<Denied>)> = None;
    for (address, error) in failures {
        let verdict = broken_at(error);
        if furthest.is_none_or(|(other, ..)| verdict > other) {
            furthest = Some((verdict, address, find_cause::<Denied>(error).copied()));
        }
    }
    let Some((verdict, address, denied)) = furthest else { return Miss::new(Verdict::Silent, "it has no address") };
    let speaks = if let Some(Denied::OtherVersion { theirs, .. }) = denied { Some(theirs) } else { None };
    let causes: BTreeSet<String> = failures.iter().map(|(_, error)| innermost(error)).collect();
    let why = match denied.filter(|denied| denied.is_final()) {
        Some(denied) => denied.to_string(),
        None if causes.len() == 1 => causes.into_iter().collect(),
        None => {
            let each = |(address, error): &(Multiaddr, TransportError<io::Error>)| {
                format!("{}: {}", without_peer(address.clone()), innermost(error))
            };
            failures.iter().map(each).collect::<Vec<_>>().join(", ")
        }
    };
    Miss { verdict, why, speaks, address: Some(without_peer(address.clone())) }
}

fn verdict_of(denied: Denied) -> Verdict {
    match denied {
        Denied::UnauthenticatedPeer => Verdict::NoNode,
        Denied::OtherVersion { .. } => Verdict::OtherVersion,
        Denied::OtherMesh => Verdict::OtherMesh,
        Denied::WrongKey => Verdict::OtherKey,
        Denied::KeyWanted => Verdict::KeyWanted,
        Denied::Open => Verdict::Open,
        Denied::OtherPeer => Verdict::Moved,
        Denied::Slow | Denied::Silent | Denied::Crowded => Verdict::Slow,
    }
}

/// The verdict for a refusal by a member of the mesh.
pub fn refused(refusal: &Refusal) -> Verdict {
    match refusal {
        Refusal::TaskTaken { .. } => Verdict::TaskTaken,
        Refusal::OtherMesh { .. } => Verdict::OtherMesh,
        Refusal::OtherVersion { .. } => Verdict::OtherVersion,
        Refusal::Crowded { .. } => Verdict::Full,
    }
}

/// How far a connection attempt came that failed with this error.
fn broken_at(error: &(dyn Error + 'static)) -> Verdict {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, NotFound, Other,
        PermissionDenied, TimedOut,
    };
    if let Some(denied) = find_cause::<Denied>(error) {
        return verdict_of(*denied);
    }
    let is_telling = |error: &io::Error| error.kind() != Other;
    match find::<io::Error>(error, &is_telling).map(io::Error::kind) {
        // A Unix socket that does not exist any more.
        Some(ConnectionRefused | NotFound) => Verdict::Refused,
        Some(TimedOut) => Verdict::Silent,
        Some(PermissionDenied) => Verdict::Forbidden,
        Some(AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable) => Verdict::Unreachable,
        _ if has_cause(error, |error: &io::Error| error.raw_os_error().is_some() && !is_end(error)) => {
            Verdict::Unreachable
        }
        _ => Verdict::HungUp,
    }
}

/// Why a connection or stream that was up ended. If the other end is gone, the text states so plainly: the text of TLS would
/// contain a web address.
pub fn broken(what: &str, error: &io::Error) -> String {
    if is_end(error) {
        format!("{what} ended without a goodbye; its process may have been killed, or the network was cut")
    } else {
        format!("{what} broke: {}", innermost(error))
    }
}

/// Whether the other end went away: the input ends too early, or the system reports so.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let is_end = |kind| matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected);
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        next = match error.downcast_ref::<io::Error>() {
            Some(io) if is_end(io.kind()) => return true,
            // `source` skips the error that an io::Error wraps.
            Some(io) => io.get_ref().map(|inner| inner as _),
            None => error.source(),
        };
    }
    false
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<io::Error>() {
        Some(io) if io.kind() == io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        _ => error.to_string(),
    }
}

/// The first error of type `E` among the causes of `error`.
pub fn find_cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    find(error, &|_| true)
}

/// Whether an error of type `E` for which `is_it` holds is among the causes of `error`.
pub fn has_cause<E: Error + 'static>(error: &(dyn Error + 'static), is_it: impl Fn(&E) -> bool) -> bool {
    find(error, &is_it).is_some()
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static), is_it: &dyn Fn(&E) -> bool) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>().filter(|found| is_it(found)) {
            return Some(found);
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(found) = io.get_ref().and_then(|inner| find::<E>(inner as &(dyn Error + 'static), is_it))
        {
            return Some(found);
        }
        if let Some(DialError::Transport(failures)) = error.downcast_ref::<DialError>() {
            return failures.iter().find_map(|(_, error)| find::<E>(error, is_it));
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_dial_came_is_told_from_its_errors() {
        use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, PermissionDenied, TimedOut};
        use rustix::io::Errno;
        let check = |errors: Vec<io::Error>, want: Verdict| {
            let address: libp2p::Multiaddr = "/ip4/10.0.0.1/tcp/7".parse().unwrap();
            let text = format!("{errors:?}");
            let failures = errors.into_iter().map(|error| (address.clone(), TransportError::Other(error)));
            assert_eq!(miss(&DialError::Transport(failures.collect())).verdict, want, "{text}");
        };
        check(vec![ConnectionRefused.into()], Verdict::Refused);
        check(vec![io::Error::other(io::Error::from(TimedOut))], Verdict::Silent);
        check(vec![HostUnreachable.into()], Verdict::Unreachable);
        check(vec![PermissionDenied.into()], Verdict::Forbidden);
        check(vec![ConnectionReset.into()], Verdict::HungUp);
        check(vec![Errno::CONNRESET.into()], Verdict::HungUp);
        check(vec![io::Error::new(io::ErrorKind::InvalidData, "not a handshake")], Verdict::HungUp);
        // An error of this machine's own system carries no information about the other machine: an address without its zone, no
        // descriptor.
        check(vec![Errno::INVAL.into()], Verdict::Unreachable);
        check(vec![io::Error::other(io::Error::from(Errno::MFILE))], Verdict::Unreachable);
        check(vec![Denied::WrongKey.into()], Verdict::OtherKey);
        check(vec![Denied::Slow.into()], Verdict::Slow);
        check(vec![HostUnreachable.into(), ConnectionRefused.into(), TimedOut.into()], Verdict::Refused);
        check(vec![TimedOut.into(), io::Error::other(io::Error::from(Denied::OtherMesh))], Verdict::OtherMesh);
    }

    #[test]
    fn the_address_that_got_furthest_is_told() {
        use io::ErrorKind::{ConnectionRefused, TimedOut};
        let check = |errors: Vec<(&str, io::Error)>, want: &str, why: &str| {
            let failures =
                errors.into_iter().map(|(address, error)| (address.parse().unwrap(), TransportError::Other(error)));
            let miss = miss(&DialError::Transport(failures.collect()));
            assert_eq!(miss.address, Some(want.parse().unwrap()), "{miss:?}");
            assert_eq!(miss.why, why);
        };
        let (lan, docker) = ("/ip4/192.168.1.7/tcp/4001", "/ip4/172.17.0.1/tcp/4001");
        let texts = [io::Error::from(TimedOut), ConnectionRefused.into()].map(|error| error.to_string());
        let each = format!("{lan}: {}, {docker}: {}", texts[0], texts[1]);
        check(vec![(lan, TimedOut.into()), (docker, ConnectionRefused.into())], docker, &each);
        check(vec![(lan, TimedOut.into()), (docker, TimedOut.into())], lan, &texts[0]);
        let denied = vec![(docker, Denied::Slow.into()), (lan, Denied::OtherMesh.into())];
        check(denied, lan, &Denied::OtherMesh.to_string());
    }

    #[test]
    fn an_end_is_told_in_plain_words() {
        const TLS: &str = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest";
        let eof = || io::Error::new(io::ErrorKind::UnexpectedEof, TLS);
        let gone = "its connection ended without a goodbye; its process may have been killed, or the network was cut";
        let check = |error: io::Error, want: &str| assert_eq!(broken("its connection", &error), want);
        check(eof(), gone);
        check(io::Error::other(eof()), gone);
        check(io::Error::other(io::Error::other(eof())), gone);
        check(io::Error::from(io::ErrorKind::ConnectionReset), gone);
        check(io::Error::other("a frame of no kind"), "its connection broke: a frame of no kind");
        assert_eq!(innermost(&eof()), "it hung up");
    }
}
