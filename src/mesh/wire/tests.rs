//! A model test of the wire: threads that push, the task that writes and a stream that takes few bytes, in every interleaving
//! with few interruptions.
//!
//! The threads of a run execute one at a time, from one switch point to the next. Which thread continues is a choice; the runs
//! take each sequence of choices once. loom and shuttle do more, but take the place of std's types in all that they run, tokio
//! and futures included.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::task::Wake;
use std::thread;

use super::*;

/// How often in a run another thread is scheduled while one could continue. If a thread has to wait, any other may continue.
const MOST_INTERRUPTIONS: usize = 2;
/// More runs than this are not a small model.
const MOST_RUNS: usize = 400_000;

/// The shared state of the threads of a run: whose turn it is, and the choices so far.
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Whether a thread can continue; `None` once it has ended.
    ready: Vec<Option<bool>>,
    turn: usize,
    choices: Choices,
    /// How often another thread was scheduled while one could continue.
    interrupted: usize,
    /// A thread has panicked: the other threads end, too.
    failed: bool,
}

/// A thread of a run, which reports its end.
struct Body(usize, Arc<Turns>);

impl Drop for Body {
    fn drop(&mut self) {
        let Body(me, turns) = self;
        let mut state = lock(&turns.state);
        state.ready[*me] = None;
        if thread::panicking() {
            state.failed = true;
            turns.changed.notify_all();
        } else {
            turns.go_on(&mut state);
        }
    }
}

/// The choices of this run, each with the number of its alternatives.
#[derive(Default)]
struct Choices {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, of));
        }
        let (choice, was) = self.made[self.at];
        assert_eq!(of, was, "the same choices lead elsewhere");
        self.at += 1;
        choice
    }

    /// The choices of the next run, if there is one.
    fn next(mut self) -> Option<Choices> {
        loop {
            let (choice, of) = self.made.pop()?;
            if choice + 1 < of {
                self.made.push((choice + 1, of));
                return Some(Choices { made: self.made, at: 0 });
            }
        }
    }
}

thread_local! {
    static ME: RefCell<Option<(usize, Arc<Turns>)>> = const { RefCell::new(None) };
}

/// A point at which another thread of the run may be scheduled.
pub(super) fn pause() {
    let Some((me, turns)) = ME.with_borrow(Option::clone) else { return };
    let mut state = lock(&turns.state);
    turns.go_on(&mut state);
    turns.wait_for(me, state);
}

/// Lets other threads run until a condition holds that only they can bring about.
pub(super) fn until(holds: impl Fn() -> bool) {
    let Some((me, turns)) = ME.with_borrow(Option::clone) else { return };
    while !holds() {
        let mut state = lock(&turns.state);
        // Asked again once another thread has run.
        state.ready[me] = Some(false);
        turns.pass_on(&mut state);
        turns.wait_for(me, state);
    }
}

impl Turns {
    /// Gives the turn to one of the threads that can continue, which may be this thread again.
    fn pass_on(&self, state: &mut State) {
        let is_able = |i: &usize| state.ready.get(*i) == Some(&Some(true));
        let others = (0..state.ready.len()).filter(|i| *i != state.turn && is_able(i));
        let able: Vec<usize> = match is_able(&state.turn) {
            // It is interrupted only a limited number of times.
            true if state.interrupted == MOST_INTERRUPTIONS => vec![state.turn],
            true => [state.turn].into_iter().chain(others).collect(),
            false => others.collect(),
        };
        if able.is_empty() {
            assert!(state.ready.iter().all(Option::is_none), "everybody waits for another");
            return;
        }
        let next = able[state.choices.choose(able.len())];
        state.interrupted += usize::from(able[0] == state.turn && next != state.turn);
        state.turn = next;
        self.changed.notify_all();
    }

    /// The same, after an action that other threads may have waited for.
    fn go_on(&self, state: &mut State) {
        state.ready.iter_mut().flatten().for_each(|ready| *ready = true);
        self.pass_on(state);
    }

    fn wait_for(&self, me: usize, mut state: MutexGuard<'_, State>) {
        while state.turn != me {
            assert!(!state.failed, "another thread has failed");
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Threads, and the check after their end.
struct Run {
    bodies: Vec<Box<dyn FnOnce() + Send>>,
    check: Box<dyn FnOnce()>,
}

/// Executes the runs that `make` returns, one in each order; returns the number of orders.
fn in_every_order(make: impl Fn() -> Run) -> usize {
    let mut choices = Choices::default();
    for run in 1.. {
        assert!(run <= MOST_RUNS, "there is no end of orders");
        let Run { bodies, check } = make();
        let ready = vec![Some(true); bodies.len()];
        let turns = Arc::new(Turns {
            state: Mutex::new(State { ready, turn: usize::MAX, choices, interrupted: 0, failed: false }),
            changed: Condvar::new(),
        });
        thread::scope(|scope| {
            for (me, body) in bodies.into_iter().enumerate() {
                let turns = turns.clone();
                scope.spawn(move || {
                    ME.set(Some((me, turns.clone())));
                    let _ends = Body(me, turns.clone());
                    turns.wait_for(me, lock(&turns.state));
                    body();
                    ME.take();
                });
            }
            turns.pass_on(&mut lock(&turns.state));
        });
        check();
        let Some(turns) = Arc::into_inner(turns) else { panic!("a thread goes on") };
        match turns.state.into_inner().unwrap().choices.next() {
            Some(next) => choices = next,
            None => return run,
        }
    }
    unreachable!("the runs have an end")
}

/// A stream that takes a few bytes at a time, and records them.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    /// Its response to each write: takes this many bytes, or none for now. After that, it takes all of them.
    takes: VecDeque<Option<usize>>,
    waits: Option<Waker>,
    closed: bool,
}

impl AsyncRead for Sink {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }
}

impl AsyncWrite for Sink {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = lock(&self.0);
        assert!(!taken.closed, "written to after it was closed");
        match taken.takes.pop_front() {
            Some(None) => {
                taken.waits = Some(cx.waker().clone());
                Poll::Pending
            }
            some => {
                let count = some.flatten().unwrap_or(bytes.len()).min(bytes.len());
                taken.bytes.extend(&bytes[..count]);
                Poll::Ready(Ok(count))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).closed = true;
        Poll::Ready(Ok(()))
    }
}

/// A waker for the connection's task.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Threads that push these frames, the last of which closes the wire, and the task that writes until all of it has arrived.
fn check(frames: &[&[&'static str]], takes: &[Option<usize>], closes: bool) -> usize {
    in_every_order(|| {
        let wire = Arc::new(Wire::<Sink>::default());
        let sink = Sink::default();
        lock(&sink.0).takes = takes.iter().copied().collect();
        wire.connect(sink.clone());
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let mut bodies: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        let pushers = Arc::new(Mutex::new(frames.len()));
        for own in frames {
            let (wire, own, pushers) = (wire.clone(), own.to_vec(), pushers.clone());
            bodies.push(Box::new(move || {
                own.iter().for_each(|frame| wire.push(frame.as_bytes()).unwrap());
                let mut left = lock(&pushers);
                *left -= 1;
                let is_last = *left == 0;
                drop(left);
                if is_last && closes {
                    wire.close();
                }
            }));
        }
        let total: usize = frames.iter().flat_map(|own| own.iter()).map(|frame| frame.len()).sum();
        let (task_wire, task_sink, task_woken) = (wire.clone(), sink.clone(), woken);
        bodies.push(Box::new(move || {
            let is_done = || {
                let taken = lock(&task_sink.0);
                taken.bytes.len() == total && (taken.closed || !closes)
            };
            // Only a wake-up makes it poll again: a frame without one stays in the queue forever.
            while !is_done() {
                until(|| task_woken.0.load(Ordering::SeqCst) || is_done());
                if task_woken.0.swap(false, Ordering::SeqCst) {
                    let waker = task_woken.clone().into();
                    // As the connection's task does: first it registers its waker, then it polls.
                    task_wire.register(&waker);
                    pause();
                    let answer = task_wire.poll_write(&mut Context::from_waker(&waker));
                    assert!(answer.is_pending(), "the wire broke");
                    // The stream has room again, some time later.
                    if let Some(waits) = lock(&task_sink.0).waits.take() {
                        waits.wake();
                    }
                }
            }
        }));
        let frames: Vec<Vec<&'static str>> = frames.iter().map(|own| own.to_vec()).collect();
        let check = Box::new(move || {
            let taken = lock(&sink.0);
            let text = String::from_utf8(taken.bytes.clone()).unwrap();
            // Each thread's frames are whole and in its order.
            let mut left: Vec<VecDeque<&str>> = frames.iter().map(|own| own.iter().copied().collect()).collect();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let next = left.iter_mut().find_map(|own| {
                    let after = rest.strip_prefix(*own.front()?)?;
                    own.pop_front();
                    Some(after)
                });
                rest = next.unwrap_or_else(|| panic!("{text:?} is not made of whole frames in order: {rest:?}"));
            }
            assert!(left.iter().all(VecDeque::is_empty), "{text:?} lacks {left:?}");
        });
        Run { bodies, check }
    })
}

#[test]
fn frames_of_two_threads_leave_whole_and_in_order() {
    let orders = check(&[&["aa", "b"], &["XX"]], &[], false);
    assert!(orders > 100, "only {orders} orders");
}

#[test]
fn a_stream_that_takes_little_loses_no_frame() {
    for takes in [&[Some(1)][..], &[None], &[Some(1), None], &[None, None], &[Some(2), None, Some(1)]] {
        let orders = check(&[&["aa"], &["XXX"]], takes, false);
        assert!(orders > 50, "only {orders} orders of {takes:?}");
    }
}

#[test]
fn what_waits_is_written_before_the_stream_closes() {
    for takes in [&[][..], &[None], &[Some(1), None]] {
        let orders = check(&[&["aa"], &["X"]], takes, true);
        assert!(orders > 50, "only {orders} orders of {takes:?}");
    }
}

#[test]
fn a_closed_or_full_wire_takes_no_more() {
    let wire = Wire::<Sink>::default();
    assert_eq!(wire.push_soon(&vec![0; MAX_QUEUED_BYTES]), Ok(()));
    assert_eq!(wire.push_soon(&[0]), Err(NotTaken::Full));
    wire.close();
    assert_eq!(wire.push_soon(&[]), Err(NotTaken::Closed));
}
