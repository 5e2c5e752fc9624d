//! Why a connection did not come about, dug out of the errors that were wrapped around it on the way.

use std::collections::BTreeSet;
use std::error::Error;

use libp2p::swarm::DialError;

use super::admission::Denied;
use super::discovery::{Miss, without_peer};

/// What a failed dial means for the next.
pub fn miss(error: &DialError) -> Miss {
    if let Some(denied) = find_cause::<Denied>(error) {
        return Miss::Denied(denied.to_string());
    }
    match error {
        DialError::LocalPeerId { .. } => Miss::Denied("this is the participant itself".to_owned()),
        DialError::WrongPeerId { .. } => Miss::Silent("another peer is there now".to_owned()),
        DialError::DialPeerConditionFalse(_) => Miss::Silent("being dialled".to_owned()),
        DialError::Transport(failures) => {
            let causes: BTreeSet<String> = failures.iter().map(|(_, error)| innermost(error)).collect();
            let texts: Vec<String> = match causes.len() {
                1 => causes.into_iter().collect(),
                _ => failures
                    .iter()
                    .map(|(address, error)| format!("{}: {}", without_peer(&address.to_string()), innermost(error)))
                    .collect(),
            };
            Miss::Silent(texts.join(", "))
        }
        other => Miss::Silent(other.to_string().trim_end_matches('.').to_owned()),
    }
}

fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The first error of type `E` among the causes of `error`.
pub fn find_cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(found) = io.get_ref().and_then(|inner| find_cause::<E>(inner as &(dyn Error + 'static)))
        {
            return Some(found);
        }
        if let Some(DialError::Transport(failures)) = error.downcast_ref::<DialError>() {
            return failures.iter().find_map(|(_, error)| find_cause::<E>(error));
        }
        next = error.source();
    }
    None
}
