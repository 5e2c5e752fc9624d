//! The outbox of a step: values it pushes, gathered by receiver, so that one message carries the values of one turn for one
//! device.
//!
//! A training step sends each worker every variable; a message each would cost more than the step. Nothing is held back for
//! long: waiting values are sent with the end of the turn, when they are many, and before an op that may take long.

use std::time::{Duration, Instant};

use meshtf_tensor::device::DeviceName;
use meshtf_tensor::ids::StepId;

use super::sink::{Pushed, Sink};

/// Most bytes of values that are gathered for one device: together they are still one small message.
const MOST_BYTES: usize = 32 << 10;
/// Most devices that values are gathered for.
const MOST_DEVICES: usize = 64;
/// An op that took longer than this when it last ran is not waited for.
const QUICK: Duration = Duration::from_micros(100);
/// Longest time that a value waits for ops that are quick.
const PATIENCE: Duration = Duration::from_micros(300);

/// The outbox of one piece.
pub(super) struct Outbox {
    batches: Vec<Batch>,
    /// When a value was first seen to wait.
    since: Option<Instant>,
    /// By node: whether it was quick when it last ran while a value waited.
    is_quick: Vec<bool>,
}

struct Batch {
    to: DeviceName,
    values: Vec<Pushed>,
    bytes: usize,
}

impl Outbox {
    /// An empty outbox of a piece with `nodes` nodes.
    pub fn new(nodes: usize) -> Outbox {
        Outbox { batches: Vec::new(), since: None, is_quick: vec![false; nodes] }
    }

    pub fn push(&mut self, sink: &dyn Sink, step: StepId, to: &DeviceName, value: Pushed) {
        let bytes = value.value.as_ref().map_or(0, |tensor| tensor.byte_len());
        if bytes > MOST_BYTES {
            sink.push(step, to, vec![value]);
            return sink.flush();
        }
        if let Some(batch) = self.batches.iter_mut().find(|batch| batch.to == *to) {
            if batch.bytes + bytes > MOST_BYTES {
                sink.push(step, to, std::mem::take(&mut batch.values));
                sink.flush();
                batch.bytes = 0;
            }
            batch.bytes += bytes;
            batch.values.push(value);
            return;
        }
        if self.batches.len() == MOST_DEVICES {
            self.send(sink, step);
        }
        self.batches.push(Batch { to: to.clone(), values: vec![value], bytes });
    }

    /// To be called before a node runs that may compute. Sends the waiting values, unless the node is known to be quick. If
    /// values were waiting, returns the time, for [`Outbox::ran`].
    pub fn before(&mut self, sink: &dyn Sink, step: StepId, node: u32) -> Option<Instant> {
        if self.batches.is_empty() {
            return None;
        }
        let now = now();
        if !self.is_quick[node as usize] || now - *self.since.get_or_insert(now) > PATIENCE {
            self.send(sink, step);
        }
        Some(now)
    }

    /// To be called after the node has run.
    pub fn ran(&mut self, node: u32, since: Option<Instant>) {
        if let Some(since) = since {
            self.is_quick[node as usize] = now() - since < QUICK;
        }
    }

    /// To be called before the thread waits for kernels that run in parallel with it: sends the waiting values.
    pub fn empty(&mut self, sink: &dyn Sink, step: StepId) {
        if !self.batches.is_empty() {
            self.send(sink, step);
        }
    }

    /// Sends the waiting values.
    fn send(&mut self, sink: &dyn Sink, step: StepId) {
        self.hand_over(sink, step);
        sink.flush();
    }

    /// Passes the waiting values to the sink, which sends them when it is flushed.
    pub fn hand_over(&mut self, sink: &dyn Sink, step: StepId) {
        self.since = None;
        for batch in self.batches.drain(..) {
            sink.push(step, &batch.to, batch.values);
        }
    }

    /// Drops the waiting values: their step has failed, and nothing waits for it.
    pub fn clear(&mut self) {
        self.since = None;
        self.batches.clear();
    }
}

thread_local! {
    static STOPPED_AT: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// Stops time on this thread, so that what it sends repeats exactly.
pub(super) fn stop_time() {
    STOPPED_AT.set(Some(Instant::now()));
}

fn now() -> Instant {
    STOPPED_AT.get().unwrap_or_else(Instant::now)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use smallvec::SmallVec;

    use super::*;
    use meshtf_tensor::Tensor;
    use meshtf_tensor::device::{DeviceKind, Task};
    use meshtf_tensor::failure::Failure;
    use meshtf_tensor::ids::{PieceId, SessionId};

    /// Records which transfers each device was sent in one message.
    #[derive(Default)]
    struct Sent(Mutex<Vec<(u32, Vec<u32>)>>);

    impl Sink for Sent {
        fn push(&self, _: StepId, to: &DeviceName, values: Vec<Pushed>) {
            self.0.lock().unwrap().push((to.task.index, values.iter().map(|value| value.transfer).collect()));
        }

        fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

        fn done(&self, _: PieceId, _: StepId, _: Vec<Tensor>) {}

        fn failed(&self, _: StepId, _: Failure) {}
    }

    const STEP: StepId = StepId { session: SessionId(1), number: 1 };

    fn push(outbox: &mut Outbox, sent: &Sent, task: u32, transfer: u32, bytes: usize) {
        let value = Some(Tensor::vector(vec![0u8; bytes]));
        let to = Task::new("worker", task).device(DeviceKind::Cpu, 0);
        outbox.push(sent, STEP, &to, Pushed { transfer, iterations: SmallVec::new(), value });
    }

    fn check(outbox: &mut Outbox, sent: &Sent, expected: &[(u32, &[u32])]) {
        outbox.hand_over(sent, STEP);
        let expected: Vec<(u32, Vec<u32>)> = expected.iter().map(|(to, values)| (*to, values.to_vec())).collect();
        assert_eq!(std::mem::take(&mut *sent.0.lock().unwrap()), expected);
    }

    #[test]
    fn what_goes_to_one_device_goes_together_up_to_the_limit() {
        let (mut outbox, sent) = (Outbox::new(1), Sent::default());
        for (task, transfer) in [(0, 0), (1, 1), (0, 2)] {
            push(&mut outbox, &sent, task, transfer, 8);
        }
        check(&mut outbox, &sent, &[(0, &[0, 2]), (1, &[1])]);
        check(&mut outbox, &sent, &[]);

        for transfer in 0..3 {
            push(&mut outbox, &sent, 0, transfer, MOST_BYTES / 2);
        }
        push(&mut outbox, &sent, 0, 3, MOST_BYTES + 1);
        check(&mut outbox, &sent, &[(0, &[0, 1]), (0, &[3]), (0, &[2])]);

        push(&mut outbox, &sent, 0, 0, 8);
        outbox.clear();
        check(&mut outbox, &sent, &[]);
    }

    #[test]
    fn nothing_waits_for_an_op_that_may_be_slow() {
        let (mut outbox, sent) = (Outbox::new(2), Sent::default());
        assert_eq!(outbox.before(&sent, STEP, 0), None);
        push(&mut outbox, &sent, 0, 0, 8);
        // The node has never run.
        let since = outbox.before(&sent, STEP, 0);
        assert!(since.is_some() && outbox.batches.is_empty());
        // The first node seems to have begun long ago, the second to have ended as soon as it began.
        outbox.ran(0, since.and_then(|since| since.checked_sub(QUICK)));
        outbox.ran(1, since.map(|since| since + 1000 * QUICK));
        push(&mut outbox, &sent, 0, 1, 8);
        outbox.before(&sent, STEP, 1);
        assert!(!outbox.batches.is_empty());
        outbox.before(&sent, STEP, 0);
        assert!(outbox.batches.is_empty());
        check(&mut outbox, &sent, &[(0, &[0]), (0, &[1])]);
    }
}
