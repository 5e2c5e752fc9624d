//! Iterators: positions in the elements of datasets. The saved state is the number of elements asked for, and the seeds that
//! the dataset has drawn. A restored iterator asks for as many elements again.

mod saved;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use prost::Message;

use super::super::dataset::{Dataset, Draws, Element, Elements, Pull, Spec};
use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version};
use saved::Loaded;
pub(crate) use saved::MadeAgain;

/// Most elements that a saved position may be at: counting further never overflows.
const MAX_ASKED: u64 = 1 << 62;

/// The pause between two attempts at an iterator that another thread asks for an element.
const WAIT: Duration = Duration::from_micros(100);

thread_local! {
    /// The iterators that this thread is asking for an element: functions that one of them calls may ask others.
    static UNDER_WAY: RefCell<Vec<*const Iterator>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Iterator {
    key: ResourceKey,
    spec: Spec,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until it is begun over a dataset.
    begun: Option<Begun>,
    /// A position that was loaded, until an op makes its dataset again.
    loaded: Option<Loaded>,
    version: Version,
}

impl State {
    fn begin(&mut self, begun: Begun) {
        (self.begun, self.loaded) = (Some(begun), None);
        self.version.raise();
    }

    fn bytes(&self) -> usize {
        self.begun.as_ref().map_or(0, Begun::bytes) + self.loaded.as_ref().map_or(0, Loaded::bytes)
    }
}

/// The position in a dataset.
struct Begun {
    dataset: Arc<Dataset>,
    elements: Box<dyn Elements>,
    /// The number of elements asked for.
    asked: u64,
    draws: Draws,
}

impl Begun {
    /// The position before the first element, with the seeds that were drawn before.
    fn new(dataset: Arc<Dataset>, draws: Draws, pull: &Pull) -> Result<Begun> {
        let elements = dataset.iterate(&Pull { draws: Some(&draws), ..*pull })?;
        Ok(Begun { dataset, elements, asked: 0, draws })
    }

    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        self.asked += 1;
        self.elements.next(&Pull { draws: Some(&self.draws), ..*pull })
    }

    /// The position that another iterator had.
    fn at(dataset: Arc<Dataset>, progress: &Progress, pull: &Pull) -> Result<Begun> {
        let (draws, _) = progress.draws.as_chunks::<3>();
        let mut again = Begun::new(dataset, Draws::again(draws.to_vec()), pull)?;
        turn::in_part(|| {
            while again.asked < progress.asked {
                turn::look();
                match again.next(pull) {
                    Ok(None) => again.asked = progress.asked,
                    Err(failure) if failure.code == Code::Cancelled => return Err(failure),
                    // An element that failed counts as asked for.
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            Ok(())
        })?;
        Ok(again)
    }

    /// # Errors
    /// FailedPrecondition if the dataset gives other elements when it is read again; ResourceExhausted if it has drawn too many
    /// seeds.
    fn progress(&self) -> Result<Progress> {
        self.dataset.check_repeatable()?;
        Ok(Progress { asked: self.asked, draws: self.draws.all()?.into_iter().flatten().collect() })
    }

    fn bytes(&self) -> usize {
        self.elements.bytes() + self.draws.bytes()
    }
}

/// The saved state.
#[derive(Clone, PartialEq, Message)]
struct Progress {
    #[prost(uint64, tag = "1")]
    asked: u64,
    /// Three numbers for each draw.
    #[prost(uint64, repeated, tag = "2")]
    draws: Vec<u64>,
}

impl Progress {
    fn is_right(&self) -> bool {
        self.asked <= MAX_ASKED && self.draws.len().is_multiple_of(3)
    }
}

/// An iterator's elements, held exclusively by this thread.
struct Held<'a>(MutexGuard<'a, State>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        UNDER_WAY.with_borrow_mut(Vec::pop);
    }
}

impl Resource for Iterator {
    fn wanted() -> &'static str {
        "iterator"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of the elements that it keeps; 0 while another thread asks for one.
    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes())
    }

    fn look(&self) -> Look {
        let bytes = self.state.try_lock().ok().map(|state| state.bytes());
        Look { dtypes: self.spec.types.clone(), bytes, ..Look::default() }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.state).map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        self.loaded(saved, over)
    }
}

impl Iterator {
    /// An iterator over no dataset yet.
    pub fn new(key: ResourceKey, spec: Spec) -> Iterator {
        Iterator { key, spec, state: Mutex::default() }
    }

    /// Its key in the resource table.
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    /// The dtypes and shapes of its elements.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Waits for exclusive access to its elements; may be cancelled meanwhile.
    ///
    /// # Errors
    /// FailedPrecondition if a function of its own dataset asks for them.
    fn hold(&self) -> Result<Held<'_>> {
        let own: *const Iterator = self;
        if UNDER_WAY.with_borrow(|all| all.contains(&own)) {
            let why =
                "a function of an iterator's dataset cannot use the same iterator: its element would be made of itself";
            return Err(Failure::new(Code::FailedPrecondition, why));
        }
        let state = patiently(&self.state);
        UNDER_WAY.with_borrow_mut(|all| all.push(own));
        Ok(Held(state))
    }

    /// Begins with the first element of a dataset.
    ///
    /// # Errors
    /// InvalidArgument if its elements differ from the iterator's in dtypes or shapes; FailedPrecondition if a function of its
    /// dataset calls this; an error if a function that it calls cannot run.
    pub fn begin(&self, dataset: Arc<Dataset>, pull: &Pull) -> Result<()> {
        dataset.spec.check_against(&self.spec)?;
        let begun = Begun::new(dataset, Draws::default(), pull)?;
        self.hold()?.0.begin(begun);
        Ok(())
    }

    /// Begins with the first element of a dataset that `make` makes, unless the iterator has begun.
    ///
    /// # Errors
    /// The failure of `make`; else as [`Iterator::begin`].
    pub fn begin_once(&self, pull: &Pull, make: impl FnOnce() -> Result<Arc<Dataset>>) -> Result<()> {
        let mut held = self.hold()?;
        let state = &mut *held.0;
        if state.begun.is_none() && state.loaded.is_none() {
            let dataset = make()?;
            dataset.spec.check_against(&self.spec)?;
            state.begin(Begun::new(dataset, Draws::default(), pull)?);
        }
        Ok(())
    }

    /// The next element; `None` at the end. May be cancelled between two elements that it reads.
    ///
    /// # Errors
    /// FailedPrecondition if it is over no dataset, or a function of its dataset calls this; the failure of the element.
    pub fn next(&self, pull: &Pull, again: MadeAgain) -> Result<Option<Element>> {
        let mut held = self.hold()?;
        self.take_up(&mut held.0, pull, again)?;
        let State { begun: Some(begun), version, .. } = &mut *held.0 else {
            let why = "GetNext() failed because the iterator has not been initialized. Ensure that you have run the initializer \
                       operation for this iterator before getting the next element.";
            return Err(Failure::new(Code::FailedPrecondition, why));
        };
        version.raise();
        turn::in_part(|| begun.next(pull))
    }

    /// The position, for [`Iterator::restore`], without its dataset.
    ///
    /// # Errors
    /// FailedPrecondition if it is over no dataset, or over one that gives other elements when it is read again;
    /// ResourceExhausted if its dataset has drawn too many seeds.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let held = self.hold()?;
        if let Some(loaded) = &held.0.loaded {
            return Ok(loaded.progress.encode_to_vec());
        }
        let begun = held.0.begun.as_ref().ok_or_else(|| not_begun("Save", "saving"))?;
        Ok(begun.progress()?.encode_to_vec())
    }

    /// Restores the position of this iterator, or of another over the same dataset, by asking for as many elements from the
    /// first on.
    ///
    /// # Errors
    /// FailedPrecondition if it is over no dataset; InvalidArgument if `saved` is not such a state.
    pub fn restore(&self, saved: &[u8], pull: &Pull, again: MadeAgain) -> Result<()> {
        let wrong = || Failure::invalid("what is to be restored is not the state of an iterator");
        let progress = Progress::decode(saved).ok().filter(Progress::is_right).ok_or_else(wrong)?;
        let mut held = self.hold()?;
        self.take_up(&mut held.0, pull, again)?;
        let begun = held.0.begun.as_ref().ok_or_else(|| not_begun("Restore", "restoring"))?;
        let again = Begun::at(Arc::clone(&begun.dataset), &progress, pull)?;
        held.0.begin(again);
        Ok(())
    }
}

/// Waits for a lock that another thread may hold for as long as an element takes; may be cancelled meanwhile.
pub(super) fn patiently<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(held) => return held,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                turn::in_part(turn::look);
                thread::sleep(WAIT);
            }
        }
    }
}

fn not_begun(what: &str, doing: &str) -> Failure {
    let why = format!(
        "{what}() failed because the iterator has not been initialized. Ensure that you have run the initializer operation for \
         this iterator before {doing} it."
    );
    Failure::new(Code::FailedPrecondition, why)
}

#[cfg(test)]
mod tests {
    use super::super::super::dataset::{Parts, Pull, UNKNOWN};
    use super::super::super::mailbox;
    use super::super::super::waiting::Wake;
    use super::*;
    use meshtf_engine::host::HostEngine;
    use meshtf_graph::Function;
    use meshtf_tensor::Tensor;
    use meshtf_tensor::device::DeviceKind;

    fn never(_: &Function, _: Vec<Tensor>, _: &Pull) -> Result<Arc<Dataset>> {
        unreachable!("no position was loaded")
    }

    /// A dataset with the elements of an iterator.
    struct Of(Arc<Iterator>);

    impl Elements for Of {
        fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
            self.0.next(pull, &never)
        }
    }

    fn iterator() -> Arc<Iterator> {
        let key =
            ResourceKey { container: String::new(), name: String::new(), session: None, device: (DeviceKind::Cpu, 0) };
        Arc::new(Iterator::new(key, Spec { types: Vec::new(), shapes: Vec::new() }))
    }

    fn over(of: &Arc<Iterator>) -> Arc<Dataset> {
        let of = Arc::clone(of);
        let parts = Parts::new(UNKNOWN, move |_| Ok(Box::new(Of(Arc::clone(&of))) as Box<dyn Elements>));
        Arc::new(Dataset::new(Spec { types: Vec::new(), shapes: Vec::new() }, Vec::new(), parts).unwrap())
    }

    #[test]
    fn an_iterator_that_asks_itself_fails_and_is_free_again() {
        let (mailbox, _inbox) = mailbox::open::<()>();
        let device: Arc<dyn Wake> = Arc::new(mailbox);
        let pull = Pull { engine: &HostEngine, device: &device, draws: None, statistics: None };
        let (first, second) = (iterator(), iterator());
        first.begin(over(&second), &pull).unwrap();
        second.begin(over(&first), &pull).unwrap();
        for _ in 0..2 {
            for asked in [&first, &second] {
                let Err(failure) = asked.next(&pull, &never) else { panic!("an element was made of itself") };
                assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
                assert!(failure.message.contains("the same iterator"), "{failure}");
            }
        }
        let fails = first.begin_once(&pull, || unreachable!("it has begun"));
        fails.unwrap();
        let own = iterator();
        let again = own
            .begin_once(&pull, || own.begin_once(&pull, || unreachable!("it is under way")).map(|()| unreachable!()));
        assert_eq!(again.unwrap_err().code, Code::FailedPrecondition);
    }

    #[test]
    fn a_step_that_waits_for_an_iterator_is_given_up() {
        let (mailbox, _inbox) = mailbox::open::<()>();
        let device: Arc<dyn Wake> = Arc::new(mailbox);
        let iterator = iterator();
        let _held = iterator.hold().unwrap();
        let ended = thread::scope(|scope| {
            let wait = || {
                let signal = Arc::new(turn::Signal::default());
                signal.stop();
                turn::within(&signal, || {
                    turn::whole(|| {
                        let pull = Pull { engine: &HostEngine, device: &device, draws: None, statistics: None };
                        drop(iterator.next(&pull, &never));
                    })
                });
            };
            scope.spawn(wait).join()
        });
        assert!(ended.is_err_and(|panic| turn::is_stop(&*panic)));
    }
}
