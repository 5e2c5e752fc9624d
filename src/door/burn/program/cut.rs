//! The part of a program's queues that becomes the next step.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::{Item, Key, Recorder, State, Work};

/// After this many steps without an operation of a stream, tensors that it drops are released with the next step.
const IDLE: u32 = 4;
/// After this many, a stream with an empty queue is forgotten: its thread may be gone.
const FORGOTTEN: u32 = 1024;

/// A step that is due: all items of a stream before a given one.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub stream: usize,
    pub before: u64,
    pub why: Why,
    /// The same of other streams.
    pub also: Vec<(usize, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A client reads.
    Read,
    /// The queue has reached its limit.
    Full,
    /// The stream continues with an upload.
    Over,
}

/// The end of each stream's items in a step, by stream.
type Cut = BTreeMap<usize, u64>;

impl Recorder {
    /// Takes the next step's items out of the queues, stream by stream, if a step is due that does not have to wait.
    pub fn cut(&mut self) -> Option<Vec<(usize, VecDeque<Item>)>> {
        let streams = &self.streams;
        self.marks.retain(|mark| {
            let stream = &streams[mark.stream];
            let left = mark.before.saturating_sub(stream.front) as usize;
            // Another step may have computed all items of this one.
            match mark.why {
                Why::Read | Why::Full => left > 0,
                Why::Over => stream.items.iter().take(left).any(|item| item.work.computes()),
            }
        });
        // A stream's marks are handled in turn; but a mark of a read does not wait for one that waits for another session to
        // take a tensor: that session may do so only when the read is answered.
        let mut waiting = HashSet::new();
        let ready = self.marks.iter().enumerate().find_map(|(i, mark)| {
            if mark.why == Why::Over && waiting.contains(&mark.stream) {
                return None;
            }
            let cut = self.closure(mark);
            if cut.is_none() {
                waiting.insert(mark.stream);
            }
            Some((i, cut?))
        });
        let Some((i, cut)) = ready else {
            self.waited_at = Some((self.arrivals, self.marks.len()));
            return None;
        };
        self.marks.remove(i);
        let mut cut = cut;
        self.pass(&mut cut);
        let taken = cut.into_iter().map(|(stream, before)| {
            let mut items = self.taken.pop().unwrap_or_default();
            self.streams[stream].take(before, &mut items);
            self.queued -= items.len();
            (stream, items)
        });
        Some(taken.collect())
    }

    /// Handles the streams that are not in a step: the tensors they dropped would stay forever if the streams are never read
    /// again.
    fn pass(&mut self, cut: &mut Cut) {
        for (i, stream) in self.streams.iter_mut().enumerate() {
            if cut.contains_key(&i) {
                stream.idle = 0;
                continue;
            }
            stream.idle = stream.idle.saturating_add(1);
            if stream.idle >= IDLE {
                let values = &self.values;
                let is_there = |key: &Key| !matches!(values[key].state, State::Awaited | State::Queued { .. });
                let ends =
                    |item: &&Item| matches!(item.work, Work::Drop) && item.inputs.iter().all(|(key, _)| is_there(key));
                let count = stream.items.iter().take_while(ends).count() as u64;
                if count > 0 {
                    cut.insert(i, stream.front + count);
                }
            }
            if stream.idle == FORGOTTEN
                && stream.items.is_empty()
                && let Some(own) = self.sessions.get_mut(&stream.session)
            {
                own.streams.retain(|_, known| *known != i);
                stream.items.shrink_to_fit();
                self.spare.push(i);
            }
        }
    }

    /// The end of each stream's items in the step of a mark; `None` if the mark has to wait.
    fn closure(&self, mark: &Mark) -> Option<Cut> {
        let mut cut = Cut::new();
        let mut open = mark.also.clone();
        open.push((mark.stream, mark.before));
        while let Some((stream, before)) = open.pop() {
            let queue = &self.streams[stream];
            let from = *cut.get(&stream).unwrap_or(&queue.front);
            if before <= from {
                continue;
            }
            cut.insert(stream, before);
            for at in from..before {
                for (key, _) in &queue.items[(at - queue.front) as usize].inputs {
                    match self.values.get(key).map(|value| &value.state) {
                        Some(State::Queued { stream: maker, at: made })
                            if *cut.get(maker).unwrap_or(&self.streams[*maker].front) <= *made =>
                        {
                            open.push((*maker, made + 1));
                        }
                        Some(State::Awaited) => return None,
                        _ => {}
                    }
                }
            }
        }
        // No client waits for this one: the tensors that it sends to another session are part of that session's step, which
        // will follow.
        let sends = |(&stream, &before): (&usize, &u64)| {
            let queue = &self.streams[stream];
            (queue.front..before).any(|at| {
                queue.items[(at - queue.front) as usize].outputs.iter().any(|key| {
                    let Key::Transfer(_) = key else { return false };
                    let taken = self.values.get(key).and_then(|value| value.taken);
                    taken.is_none_or(|(by, at)| cut.get(&by).is_none_or(|before| *before <= at))
                })
            })
        };
        if mark.why == Why::Over && cut.iter().any(sends) {
            return None;
        }
        Some(cut)
    }
}
