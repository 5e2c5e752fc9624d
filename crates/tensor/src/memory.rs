//! The memory budget of this process: how much its heap holds, and whether more may be allocated.
//!
//! Memory in use is measured: the command's allocator counts the bytes that it allocates and frees, whichever code asked for
//! them. Before memory is allocated for a result, a message or a stored value, one of the functions below is called. If the
//! budget is exceeded, the function refuses, and a step fails instead of the process being killed. By default there is no
//! budget.
//!
//! | function | for |
//! |---|---|
//! | [`admit`] | memory that is allocated at once: a result, a copy |
//! | [`grow`] | containers of values: a queue, a list, a tensor array |
//! | [`reserve`] | data that arrives in parts, with a reliable length: a message, a feed, a file |
//! | [`keep`] | data that arrives in parts from peers that may announce any length |
//!
//! Nothing in this module allocates, reads a file or waits.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use crate::failure::{Code, Failure, Held, Refusal, Result};
use crate::lock::lock;

/// A thread counts this many bytes by itself before it updates the shared count.
const BATCH: usize = 64 << 10;

/// A result smaller than this is made even if the budget is exhausted, so that steps that keep nothing can continue.
const SMALL: usize = 64 << 10;

/// Containers stop growing at 1/32 below the budget, and small results at 1/32 above it: a process whose containers fill the
/// budget can still run steps.
const SHARE: usize = 32;

/// Most holders that are asked for their largest item.
const MAX_HOLDERS: usize = 4096;

/// Memory in use, memory reserved, and the limit of the process, in bytes.
struct Budget {
    /// May lag by one [`BATCH`] per thread, and so be negative at first.
    in_use: AtomicIsize,
    /// Admitted, but not in use yet.
    reserved: AtomicUsize,
    limit: AtomicUsize,
}

static BUDGET: Budget = Budget::of(usize::MAX);

thread_local! {
    /// A limit for one thread only.
    static LIMIT_HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

thread_local! {
    // Neither has a destructor, since the allocator is called before and after everything else in a thread.
    /// Bytes that this thread allocated or freed since it last updated the shared count.
    static UNTOLD: Cell<isize> = const { Cell::new(0) };
    /// Bytes reserved for the op that runs on this thread; `None` outside a [`Turn`].
    static PROMISED: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Budget {
    const fn of(limit: usize) -> Budget {
        Budget { in_use: AtomicIsize::new(0), reserved: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    fn in_use(&self) -> usize {
        usize::try_from(self.in_use.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn limit(&self) -> usize {
        if let Some(limit) = LIMIT_HERE.get() {
            return limit;
        }
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether this many bytes fit now.
    #[inline]
    fn fits(&self, bytes: usize) -> bool {
        let (limit, in_use) = (self.limit(), self.in_use());
        if bytes < SMALL {
            return in_use + bytes <= limit.saturating_add(limit / SHARE);
        }
        in_use.saturating_add(self.reserved.load(Ordering::Relaxed)).saturating_add(bytes) <= limit
    }

    /// Whether a message of which this many bytes have arrived, and are in use, may continue to arrive.
    fn may_keep(&self, bytes: usize) -> bool {
        let (limit, in_use) = (self.limit(), self.in_use());
        if bytes < SMALL {
            return in_use <= limit.saturating_add(limit / SHARE);
        }
        in_use.saturating_add(self.reserved.load(Ordering::Relaxed)) <= limit - limit / SHARE
    }

    /// Reserves bytes if they fit in addition to the existing reservations.
    fn try_reserve(&self, bytes: usize) -> bool {
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = self.in_use().saturating_add(reserved) <= self.limit();
        if !fits {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Reserves a large result for the op that runs on this thread, in place of its previous reservation.
    fn promise(&self, bytes: usize) -> bool {
        if PROMISED.get().is_none() || self.limit() == usize::MAX {
            return self.fits(bytes);
        }
        self.forget_promise();
        let fits = self.try_reserve(bytes);
        PROMISED.set(Some(if fits { bytes } else { 0 }));
        fits
    }

    fn forget_promise(&self) {
        let promised = PROMISED.replace(Some(0)).unwrap_or(0);
        if promised > 0 {
            self.reserved.fetch_sub(promised, Ordering::Relaxed);
        }
    }

    /// Adds the bytes that a thread allocated or freed since its last update to the shared count.
    fn tell(&self, change: isize) {
        self.in_use.fetch_add(change, Ordering::Relaxed);
        // Memory promised to this thread's op is in use now, and counted.
        if let (Ok(taken), Some(promised @ 1..)) = (usize::try_from(change), PROMISED.get()) {
            let kept = promised.min(taken);
            PROMISED.set(Some(promised - kept));
            self.reserved.fetch_sub(kept, Ordering::Relaxed);
        }
    }

    #[cold]
    fn refuse(&self, bytes: usize) -> Failure {
        let what = match bytes {
            0 => "no more can be kept".to_owned(),
            _ => format!("this takes {}", Bytes(bytes)),
        };
        let why = format!(
            "{what}, but the process has {} of its {} (--memory) in use",
            Bytes(self.in_use()),
            Bytes(self.limit())
        );
        Failure { refusal: Some(Refusal::default()), ..Failure::new(Code::ResourceExhausted, why) }
    }
}

/// Sets how many bytes the heap of this process may hold. Call it once, before memory is allocated. It takes effect
/// only in programs whose global allocator is meshtf's `Allocator`.
#[inline]
pub fn set_limit(bytes: usize) {
    BUDGET.limit.store(bytes, Ordering::Relaxed);
}

/// Runs something with a budget of `bytes` for this thread only.
pub fn with_limit<T>(bytes: usize, run: impl FnOnce() -> T) -> T {
    struct Restore(Option<usize>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT_HERE.set(self.0);
        }
    }
    let _restore = Restore(LIMIT_HERE.replace(Some(bytes)));
    run()
}

/// How many bytes the heap of this process may hold; `None` without a budget.
#[inline]
pub fn limit() -> Option<usize> {
    Some(BUDGET.limit()).filter(|&limit| limit < usize::MAX)
}

/// How many bytes it holds.
#[inline]
pub fn in_use() -> usize {
    BUDGET.in_use()
}

/// The allocator handed out this many bytes.
#[inline]
pub fn took(bytes: usize) {
    count(bytes as isize);
}

/// The allocator took this many bytes back.
#[inline]
pub fn gave(bytes: usize) {
    count(-(bytes as isize));
}

#[inline]
fn count(change: isize) {
    UNTOLD.with(|untold| {
        let sum = untold.get() + change;
        if sum.unsigned_abs() < BATCH {
            untold.set(sum);
        } else {
            untold.set(0);
            tell(sum);
        }
    });
}

#[cold]
fn tell(change: isize) {
    BUDGET.tell(change);
}

/// Updates the shared count; called when a thread ends.
#[inline]
pub fn tell_all() {
    BUDGET.in_use.fetch_add(UNTOLD.replace(0), Ordering::Relaxed);
}

/// Admits a result or a copy of this many bytes.
///
/// # Errors
/// ResourceExhausted if that exceeds the budget.
#[inline]
pub fn admit(bytes: usize) -> Result<()> {
    let may = if bytes < SMALL { BUDGET.fits(bytes) } else { BUDGET.promise(bytes) };
    if may { Ok(()) } else { Err(BUDGET.refuse(bytes)) }
}

/// While this exists, memory that [`admit`] grants a kernel of this thread is reserved until the kernel allocates it.
pub struct Turn {
    /// Bytes reserved for the enclosing kernel on this thread, within which another one runs.
    around: Option<usize>,
}

impl Turn {
    #[inline]
    pub fn begin() -> Turn {
        Turn { around: PROMISED.replace(Some(0)) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUDGET.forget_promise();
        PROMISED.set(self.around);
    }
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
    let limit = BUDGET.limit();
    if BUDGET.in_use() <= limit - limit / SHARE { Ok(()) } else { Err(BUDGET.refuse(0)) }
}

/// Admits the next part of a message of which these bytes have arrived and are in use. Small messages are admitted like small
/// results; large ones stop when containers stop growing.
///
/// # Errors
/// ResourceExhausted if too much of the budget is in use or reserved; names the largest holder.
#[inline]
pub fn keep(bytes: usize) -> Result<()> {
    if BUDGET.may_keep(bytes) { Ok(()) } else { Err(BUDGET.refuse(0).with_holder()) }
}

/// Whether the budget is exhausted, and these queued bytes are a significant part of it.
#[inline]
pub fn is_crowded_by(waiting: usize) -> bool {
    let share = BUDGET.limit() / SHARE;
    waiting > share && BUDGET.in_use() > BUDGET.limit() - share
}

/// The error when nothing more can be kept.
#[inline]
pub fn refusal() -> Failure {
    BUDGET.refuse(0)
}

/// Reserves memory for bytes that will arrive in parts. [`Reservation::taken`] reports how many of them have been allocated;
/// the rest is released on drop.
///
/// # Errors
/// ResourceExhausted if that exceeds the budget; names the largest holder.
#[inline]
pub fn reserve(bytes: usize) -> Result<Reservation> {
    try_reserve(bytes).map_err(Failure::with_holder)
}

/// Like [`reserve`], for callers that find the largest holder themselves.
#[inline]
pub fn try_reserve(bytes: usize) -> Result<Reservation> {
    if BUDGET.limit() == usize::MAX {
        return Ok(Reservation { bytes: 0 });
    }
    if BUDGET.try_reserve(bytes) { Ok(Reservation { bytes }) } else { Err(BUDGET.refuse(bytes)) }
}

/// A reservation made by [`reserve`]; the default reserves nothing.
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
        BUDGET.reserved.fetch_sub(bytes, Ordering::Relaxed);
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

static HOLDERS: Mutex<Vec<Weak<dyn Holder>>> = Mutex::new(Vec::new());

/// Registers a holder, to be asked when the budget refuses.
pub fn watch(holder: Weak<dyn Holder>) {
    let mut holders = lock(&HOLDERS);
    holders.retain(|holder| holder.strong_count() > 0);
    if holders.len() < MAX_HOLDERS {
        holders.push(holder);
    }
}

/// The largest item of all holders.
fn most() -> Option<Held> {
    let holders = lock(&HOLDERS).clone();
    let known = holders.iter().filter_map(Weak::upgrade).filter_map(|holder| holder.most());
    known.max_by_key(|held| held.bytes)
}

impl Failure {
    /// If the budget refused: records the item being worked on, which may be the largest.
    pub fn held_by(mut self, held: impl FnOnce() -> Held) -> Failure {
        if let Some(refusal) = &mut self.refusal {
            let held = held();
            if refusal.0.as_ref().is_none_or(|known| known.bytes < held.bytes) {
                refusal.0 = Some(held);
            }
        }
        self
    }

    /// If the budget refused: names the largest holder. `others` returns the largest item that only the caller knows; its
    /// argument is the item recorded when the budget refused.
    pub fn with_holder_among(mut self, others: impl FnOnce(Option<Held>) -> Option<Held>) -> Failure {
        if let Some(Refusal(worked_on)) = self.refusal.take()
            && let Some(held) = most().into_iter().chain(others(worked_on)).max_by_key(|held| held.bytes)
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
    fn memory_neither_in_use_nor_reserved_is_available() {
        let budget = Budget::of(100 << 20);
        budget.in_use.store(60 << 20, Ordering::Relaxed);
        assert!(budget.try_reserve(30 << 20));
        assert!(!budget.try_reserve(11 << 20), "30 of the 40 are reserved");
        assert!(budget.try_reserve(10 << 20), "the refused reservation left nothing behind");
        assert!(!budget.try_reserve(1));
        budget.reserved.fetch_sub(40 << 20, Ordering::Relaxed);
        budget.in_use.fetch_add(40 << 20, Ordering::Relaxed);
        assert!(!budget.fits(SMALL));
        assert!(budget.fits(SMALL - 1), "small results go on");
        budget.in_use.fetch_add(4 << 20, Ordering::Relaxed);
        assert!(!budget.fits(1), "but not for ever");
        budget.in_use.store(-5, Ordering::Relaxed);
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn large_messages_end_before_small_ones() {
        let budget = Budget::of(64 << 20);
        let check = |in_use: usize, reserved: usize, large: bool, small: bool| {
            budget.in_use.store((in_use << 20) as isize, Ordering::Relaxed);
            budget.reserved.store(reserved << 20, Ordering::Relaxed);
            assert_eq!((budget.may_keep(SMALL), budget.may_keep(SMALL - 1)), (large, small), "{in_use} and {reserved}");
        };
        // 1/32 of these 64 MiB is 2 MiB.
        check(62, 0, true, true);
        check(40, 22, true, true);
        check(40, 23, false, true);
        check(63, 0, false, true);
        check(66, 0, false, true);
        check(67, 0, false, false);
        assert!(Budget::of(usize::MAX).may_keep(1 << 40));
    }

    #[test]
    fn memory_promised_to_an_op_is_reserved_until_allocated() {
        let budget = Budget::of(100 << 20);
        let reserved = || budget.reserved.load(Ordering::Relaxed) >> 20;
        PROMISED.set(Some(0));
        assert!(budget.promise(60 << 20) && reserved() == 60);
        // The second request replaces the first; no other op is promised memory.
        assert!(budget.promise(70 << 20) && reserved() == 70);
        assert!(!budget.try_reserve(31 << 20));
        // Part of it is allocated, and so counted once.
        budget.tell(40 << 20);
        assert_eq!((reserved(), budget.in_use() >> 20), (30, 40));
        budget.tell(-(10 << 20));
        assert_eq!((reserved(), budget.in_use() >> 20), (30, 30));
        assert!(!budget.promise(71 << 20) && reserved() == 0, "a refusal reserves nothing");
        assert!(budget.promise(70 << 20));
        budget.forget_promise();
        assert_eq!(reserved(), 0);
        // Outside an op, memory is not reserved but only checked.
        PROMISED.set(None);
        assert!(budget.promise(70 << 20) && reserved() == 0);
    }

    #[test]
    fn a_refusal_states_the_request_and_the_budget() {
        let budget = Budget::of(4_000_000_000);
        budget.in_use.store(3_600_000_000, Ordering::Relaxed);
        let failure = budget.refuse(2_147_483_647);
        assert_eq!(failure.code, Code::ResourceExhausted);
        assert_eq!(failure.message, "this takes 2.15 GB, but the process has 3.60 GB of its 4.00 GB (--memory) in use");
    }
}
