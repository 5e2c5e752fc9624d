//! The last steps that were traced on a node, of all its sessions.

use std::collections::VecDeque;
use std::sync::Mutex;

use meshtf_graph::trace::{DeviceTrace, StepPicture, Timeline};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::machine::Traced;

/// Most steps that are kept.
const MAX_KEPT: usize = 8;
/// Most bytes of one that is kept: some fifty thousand nodes.
const MAX_BYTES: usize = 4 << 20;

#[derive(Default)]
pub(super) struct Traces(Mutex<VecDeque<(SessionId, Traced)>>);

impl Traces {
    /// Keeps the last traced step of a session, unless it is too large.
    pub fn keep(&self, session: SessionId, traced: Traced) {
        let mut kept = lock(&self.0);
        kept.retain(|(of, _)| *of != session);
        if traced.1.iter().map(Tensor::byte_len).sum::<usize>() > MAX_BYTES {
            return;
        }
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((session, traced));
    }

    pub fn of(&self, session: SessionId) -> Option<Traced> {
        lock(&self.0).iter().find(|(of, _)| *of == session).map(|(_, traced)| traced.clone())
    }
}

/// A traced step as a picture.
///
/// # Errors
/// Internal if a device sent no trace.
pub(super) fn drawn(traces: &[Tensor]) -> Result<StepPicture> {
    let traces = traces.iter().map(DeviceTrace::from_tensor).collect::<Result<Vec<_>>>()?;
    Ok(Timeline::of(&traces).picture())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_of_a_few_sessions_is_kept() {
        let traces = Traces::default();
        let trace = |bytes: usize| vec![Tensor::scalar(vec![0u8; bytes])];
        traces.keep(SessionId(0), (1, trace(10)));
        traces.keep(SessionId(0), (2, trace(20)));
        assert_eq!(traces.of(SessionId(0)), Some((2, trace(20))));
        // A trace that is too large replaces none, and the one before is not the last any more.
        traces.keep(SessionId(0), (3, trace(MAX_BYTES + 1)));
        assert_eq!(traces.of(SessionId(0)), None);
        (0..MAX_KEPT as u64 + 1).for_each(|n| traces.keep(SessionId(n), (n, trace(1))));
        assert_eq!((traces.of(SessionId(0)), traces.of(SessionId(1))), (None, Some((1, trace(1)))));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(drawn(&[Tensor::scalar(1i32)]).is_err());
    }
}
