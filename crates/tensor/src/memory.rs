//! Memory budgets: how much the heap of the process holds, and whether more may be allocated.
//!
//! Memory in use is measured: the command's allocator counts the bytes that it allocates and frees, whichever code asked for
//! them. Before memory is allocated for a result, a message or a stored value, one of the functions below is called. If the
//! budget is exceeded, the function refuses, and a step fails instead of the process being killed. By default there is no
//! limit.
//!
//! | function | for |
//! |---|---|
//! | [`admit`] | memory that is allocated at once: a result, a copy |
//! | [`grow`] | containers of values: a queue, a list, a tensor array |
//! | [`Budget::reserve`] | data that arrives in parts, with a reliable length: a message, a feed, a file |
//! | [`Budget::keep`] | data that arrives in parts from peers that may announce any length |
//!
//! A [`Budget`] belongs to a node or a cluster, and several of them may be in one process. Code that has one calls its methods.
//! Kernels, and readers of formats, have none: they call the functions of this module, for which the budget is the one in force
//! on their thread. A thread of a node has its budget in force for as long as it works for it.
//!
//! Nothing in this module reads a file or waits. Its checks do not allocate.

mod heap;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use heap::{HEAP, PROMISED, SHARE, SMALL};
pub use heap::{gave, in_use, tell_all, took};

use crate::failure::{Code, Failure, Held, Refusal, Result};
use crate::lock::lock;

/// Most holders that are asked for their largest item.
const MAX_HOLDERS: usize = 4096;

/// A limit of the process's heap, and the holders of memory that are asked when it refuses.
///
/// The heap is the process's, so two budgets measure the same memory in use, each against its own limit. The default has no
/// limit.
pub struct Budget {
    /// In bytes; the greatest number if there is none.
    limit: usize,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { limit: usize::MAX, holders: Mutex::default() }
    }
}

thread_local! {
    /// The budget in force on this thread. It cannot be an argument: every kernel, and every reader of a format, would have to
    /// pass it to each function that makes a tensor.
    static CURRENT: RefCell<Option<Arc<Budget>>> = const { RefCell::new(None) };
    /// Its limit, which each check reads.
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Puts a budget in force on this thread; returns the one that was.
fn put(budget: Option<Arc<Budget>>) -> Option<Arc<Budget>> {
    LIMIT.set(budget.as_ref().map_or(usize::MAX, |budget| budget.limit));
    CURRENT.replace(budget)
}

/// Puts the budget that was in force before back.
struct Entered {
    /// `None` if that was the same one.
    around: Option<Option<Arc<Budget>>>,
}

impl Entered {
    #[inline]
    fn within(budget: &Arc<Budget>) -> Entered {
        let is_same = CURRENT.with_borrow(|known| known.as_ref().is_some_and(|known| Arc::ptr_eq(known, budget)));
        Entered { around: (!is_same).then(|| put(Some(Arc::clone(budget)))) }
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(around) = self.around.take() {
            put(around);
        }
    }
}

impl Budget {
    /// A budget of this many bytes. It takes effect only in programs whose global allocator is meshtf's `Allocator`.
    pub fn of(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { limit: bytes, ..Budget::default() })
    }

    /// The budget in force on this thread; a new one without a limit if there is none.
    pub fn current() -> Arc<Budget> {
        CURRENT.with_borrow(Option::clone).unwrap_or_default()
    }

    /// Runs something with this budget in force on this thread.
    pub fn run<T>(self: &Arc<Budget>, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::within(self);
        work()
    }

    /// Puts this budget in force on this thread until it ends.
    pub fn for_thread(self: &Arc<Budget>) {
        put(Some(Arc::clone(self)));
    }

    /// How many bytes the heap of this process may hold; `None` without a limit.
    pub fn limit(&self) -> Option<usize> {
        Some(self.limit).filter(|&limit| limit < usize::MAX)
    }

    /// How many more bytes it may hold; `None` without a limit.
    pub fn free(&self) -> Option<usize> {
        self.limit().map(|limit| limit.saturating_sub(in_use()))
    }

    /// Registers a holder, to be asked when the budget refuses.
    pub fn watch(&self, holder: Weak<dyn Holder>) {
        let mut holders = lock(&self.holders);
        holders.retain(|holder| holder.strong_count() > 0);
        if holders.len() < MAX_HOLDERS {
            holders.push(holder);
        }
    }

    /// The largest item of all holders.
    fn most(&self) -> Option<Held> {
        let holders = lock(&self.holders).clone();
        let known = holders.iter().filter_map(Weak::upgrade).filter_map(|holder| holder.most());
        known.max_by_key(|held| held.bytes)
    }

    /// As [`admit`], by this budget.
    ///
    /// # Errors
    /// As [`admit`].
    pub fn admit(self: &Arc<Budget>, bytes: usize) -> Result<()> {
        if admits(self.limit, bytes) { Ok(()) } else { Err(self.refuse(bytes)) }
    }

    /// Admits the next part of a message of which these bytes have arrived and are in use. Small messages are admitted like
    /// small results; large ones stop when containers stop growing.
    ///
    /// # Errors
    /// ResourceExhausted if too much of the budget is in use or reserved; names the largest holder.
    pub fn keep(self: &Arc<Budget>, bytes: usize) -> Result<()> {
        if HEAP.may_keep(self.limit, bytes) { Ok(()) } else { Err(self.refuse(0).with_holder()) }
    }

    /// Whether the budget is exhausted, and these queued bytes are a significant part of it.
    pub fn is_crowded_by(&self, waiting: usize) -> bool {
        let share = self.limit / SHARE;
        waiting > share && in_use() > self.limit - share
    }

    /// The error when nothing more can be kept.
    pub fn refusal(self: &Arc<Budget>) -> Failure {
        self.refuse(0)
    }

    /// Reserves memory for bytes that will arrive in parts. [`Reservation::taken`] reports how many of them have been allocated;
    /// the rest is released on drop.
    ///
    /// # Errors
    /// ResourceExhausted if that exceeds the budget; names the largest holder.
    pub fn reserve(self: &Arc<Budget>, bytes: usize) -> Result<Reservation> {
        self.try_reserve(bytes).map_err(Failure::with_holder)
    }

    /// Like [`Budget::reserve`], for callers that find the largest holder themselves.
    ///
    /// # Errors
    /// ResourceExhausted if that exceeds the budget.
    pub fn try_reserve(self: &Arc<Budget>, bytes: usize) -> Result<Reservation> {
        if self.limit == usize::MAX {
            return Ok(Reservation { bytes: 0 });
        }
        if HEAP.try_reserve(self.limit, bytes) { Ok(Reservation { bytes }) } else { Err(self.refuse(bytes)) }
    }

    fn refuse(self: &Arc<Budget>, bytes: usize) -> Failure {
        let refusal = Refusal { worked_on: None, budget: Arc::downgrade(self) };
        let why = refused(in_use(), self.limit, bytes);
        Failure { refusal: Some(refusal), ..Failure::new(Code::ResourceExhausted, why) }
    }
}

/// Why a request of this many bytes is refused.
fn refused(in_use: usize, limit: usize, bytes: usize) -> String {
    let what = match bytes {
        0 => "no more can be kept".to_owned(),
        _ => format!("this takes {}", Bytes(bytes)),
    };
    format!("{what}, but the process has {} of its {} (--memory) in use", Bytes(in_use), Bytes(limit))
}

#[inline]
fn admits(limit: usize, bytes: usize) -> bool {
    if bytes < SMALL { HEAP.fits(limit, bytes) } else { HEAP.promise(limit, bytes) }
}

#[cold]
fn refuse(bytes: usize) -> Failure {
    Budget::current().refuse(bytes)
}

/// Admits a result or a copy of this many bytes.
///
/// # Errors
/// ResourceExhausted if that exceeds the budget.
#[inline]
pub fn admit(bytes: usize) -> Result<()> {
    if admits(LIMIT.get(), bytes) { Ok(()) } else { Err(refuse(bytes)) }
}

/// Admits an op, whatever it produces.
///
/// # Errors
/// ResourceExhausted if the budget is exhausted, including what small results may take beyond it.
#[inline]
pub fn go_on() -> Result<()> {
    admit(0)
}

/// Admits adding a value, which exists already, to a container.
///
/// # Errors
/// ResourceExhausted if nearly all of the budget is in use.
#[inline]
pub fn grow() -> Result<()> {
    if HEAP.may_grow(LIMIT.get()) { Ok(()) } else { Err(refuse(0)) }
}

/// While this exists, its budget is in force on this thread, and memory that [`admit`] grants a kernel of this thread is
/// reserved until the kernel allocates it.
pub struct Turn {
    /// Bytes reserved for the enclosing kernel on this thread, within which another one runs.
    around: Option<usize>,
    _entered: Entered,
}

impl Turn {
    #[inline]
    pub fn begin(budget: &Arc<Budget>) -> Turn {
        Turn { around: PROMISED.replace(Some(0)), _entered: Entered::within(budget) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HEAP.forget_promise();
        PROMISED.set(self.around);
    }
}

/// A reservation made by [`Budget::reserve`]; the default reserves nothing.
#[derive(Debug, Default)]
pub struct Reservation {
    bytes: usize,
}

impl Reservation {
    /// Releases this many bytes, which have been allocated and are counted as in use.
    #[inline]
    pub fn taken(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        HEAP.release(bytes);
    }

    /// Takes over the reservation of another one.
    #[inline]
    pub fn join(&mut self, mut other: Reservation) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.taken(self.bytes);
    }
}

/// An object that holds memory for a long time.
pub trait Holder: Send + Sync {
    /// Its largest item. Must not wait for a lock, which the caller may hold.
    fn most(&self) -> Option<Held>;
}

impl Failure {
    /// If the budget refused: records the item being worked on, which may be the largest.
    pub fn held_by(mut self, held: impl FnOnce() -> Held) -> Failure {
        if let Some(refusal) = &mut self.refusal {
            let held = held();
            if refusal.worked_on.as_ref().is_none_or(|known| known.bytes < held.bytes) {
                refusal.worked_on = Some(held);
            }
        }
        self
    }

    /// If the budget refused: names the largest holder. `others` returns the largest item that only the caller knows; its
    /// argument is the item recorded when the budget refused.
    pub fn with_holder_among(mut self, others: impl FnOnce(Option<Held>) -> Option<Held>) -> Failure {
        if let Some(Refusal { worked_on, budget }) = self.refusal.take()
            && let known = budget.upgrade().and_then(|budget| budget.most())
            && let Some(held) = known.into_iter().chain(others(worked_on)).max_by_key(|held| held.bytes)
        {
            self.message.push_str(&format!("; the most is held by {}: {}", held.what, Bytes(held.bytes)));
        }
        self
    }

    /// Like [`Failure::with_holder_among`], if the caller knows nothing else.
    #[inline]
    pub fn with_holder(self) -> Failure {
        self.with_holder_among(|worked_on| worked_on)
    }
}

/// Bytes for display: `4 B`, `1.5 MB`; decimal, three digits.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1000.;
            unit += 1;
        }
        let digits = if unit == 0 || value >= 99.95 {
            0
        } else if value >= 9.995 {
            1
        } else {
            2
        };
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_readable_units() {
        let check = |bytes: usize, text: &str| assert_eq!(Bytes(bytes).to_string(), text);
        check(0, "0 B");
        check(999, "999 B");
        check(1000, "1.00 kB");
        check(64_000_000, "64.0 MB");
        check(123_456_789, "123 MB");
        check(999_950, "1.00 MB");
        check(2_147_483_647, "2.15 GB");
    }

    #[test]
    fn a_refusal_states_the_request_and_the_budget() {
        let text = refused(3_600_000_000, 4_000_000_000, 2_147_483_647);
        assert_eq!(text, "this takes 2.15 GB, but the process has 3.60 GB of its 4.00 GB (--memory) in use");
        let text = refused(3_600_000_000, 4_000_000_000, 0);
        assert_eq!(text, "no more can be kept, but the process has 3.60 GB of its 4.00 GB (--memory) in use");
    }

    /// No allocator counts in these tests: the process has nothing in use.
    #[test]
    fn each_budget_refuses_by_its_own_limit() {
        let (small, large, none) = (Budget::of(1 << 20), Budget::of(1 << 30), Arc::<Budget>::default());
        assert_eq!([&small, &large, &none].map(|budget| budget.limit()), [Some(1 << 20), Some(1 << 30), None]);
        let refuses = |bytes: usize| admit(bytes).err().map(|failure| failure.message);
        let [by_small, by_large] = ["1.05 MB", "1.07 GB"]
            .map(|limit| format!("this takes 2.15 GB, but the process has 0 B of its {limit} (--memory) in use"));
        assert_eq!(refuses(2 << 30), None);
        small.run(|| {
            assert_eq!(refuses(2 << 30).as_ref(), Some(&by_small));
            large.run(|| {
                assert_eq!((refuses(2 << 30).as_ref(), refuses(2 << 20)), (Some(&by_large), None));
                let turn = Turn::begin(&none);
                assert_eq!(refuses(2 << 30), None);
                drop(turn);
                assert_eq!(refuses(2 << 30).as_ref(), Some(&by_large));
                // Another thread has none in force.
                std::thread::scope(|scope| scope.spawn(|| assert_eq!(refuses(2 << 30), None)).join()).unwrap();
            });
            assert!(refuses(2 << 20).is_some());
            // It is the same budget.
            small.run(|| assert!(refuses(2 << 20).is_some()));
            assert!(refuses(2 << 20).is_some());
        });
        assert_eq!(refuses(2 << 30), None);
        assert_eq!(small.admit(2 << 30).unwrap_err().message, by_small);
        assert_eq!(large.try_reserve(2 << 30).unwrap_err().message, by_large);
        assert!(none.try_reserve(2 << 30).is_ok());
    }

    #[test]
    fn a_budget_names_its_own_holders() {
        struct Holds(&'static str);
        impl Holder for Holds {
            fn most(&self) -> Option<Held> {
                Some(Held { what: self.0.to_owned(), bytes: 10 })
            }
        }
        let budgets = [Budget::of(1 << 20), Budget::of(1 << 20)];
        let holders = ["one", "other"].map(|name| Arc::new(Holds(name)) as Arc<dyn Holder>);
        budgets.iter().zip(&holders).for_each(|(budget, holder)| budget.watch(Arc::downgrade(holder)));
        let [one, other] = budgets.each_ref().map(|budget| budget.reserve(2 << 20).unwrap_err().message);
        assert!(one.ends_with("; the most is held by one: 10 B"), "{one}");
        assert!(other.ends_with("; the most is held by other: 10 B"), "{other}");
        // Wherever the failure is handled.
        let failure = budgets[0].run(|| admit(2 << 20)).unwrap_err();
        let larger = failure.clone().held_by(|| Held { what: "a list".to_owned(), bytes: 11 });
        let [named, larger] = [failure, larger].map(|failure| budgets[1].run(|| failure.with_holder()).message);
        assert!(named.ends_with("; the most is held by one: 10 B"), "{named}");
        assert!(larger.ends_with("; the most is held by a list: 11 B"), "{larger}");
        drop(holders);
        assert!(budgets[0].reserve(2 << 20).unwrap_err().message.ends_with("in use"));
    }
}
