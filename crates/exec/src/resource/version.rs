//! The version of a resource's contents: a number that every change raises, and the sessions whose steps made the last changes.
//! Kept under the lock of the contents.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::ids::SessionId;

/// A time between changes of resources: each [`Moment::now`] is later than all before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// In place of a session: whoever changes a variable from outside of all steps.
pub const OUTSIDE: SessionId = SessionId(u64::MAX);

/// The next moment.
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The session for which the thread works.
    static AT_WORK: Cell<Option<SessionId>> = const { Cell::new(None) };
}

impl Moment {
    /// A moment after all changes so far.
    pub fn now() -> Moment {
        Moment(NEXT.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Works for a session: the resources that the work changes were changed by it.
pub fn on_behalf<R>(session: SessionId, work: impl FnOnce() -> R) -> R {
    struct Before(Option<SessionId>);
    impl Drop for Before {
        fn drop(&mut self) {
            AT_WORK.set(self.0);
        }
    }
    let _before = Before(AT_WORK.replace(Some(session)));
    work()
}

/// The number of changes so far, and who made the last ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    number: u64,
    /// The session that made the last change, and the moment before which it did.
    by: Option<SessionId>,
    at: Moment,
    /// The same moment for the last change of another session.
    others: Moment,
}

impl Version {
    /// The version of contents in two parts.
    pub fn plus(self, other: Version) -> Version {
        let number = self.number.wrapping_add(other.number);
        let (last, first) = if self.at >= other.at { (self, other) } else { (other, self) };
        let of_first = if first.by == last.by { first.others } else { first.at };
        Version { number, others: last.others.max(of_first), ..last }
    }

    pub fn get(self) -> u64 {
        self.number
    }

    /// Other contents, of that version, take the place of these. Those of a resource that has just been made have their version.
    pub fn replace(&mut self, by: u64) {
        self.number = if self.number == 0 { by } else { self.number.max(by).wrapping_add(1) };
        self.sign();
    }

    /// The contents change.
    pub fn raise(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.sign();
    }

    /// Notes the session for which the thread works. What happens apart from all steps, as when one is cancelled, is nobody's.
    fn sign(&mut self) {
        let Some(session) = AT_WORK.get() else { return };
        if self.by.replace(session) != Some(session) {
            self.others = self.at;
        }
        self.at = Moment(NEXT.load(Ordering::Relaxed));
    }

    /// Whether a step of another session than this one made a change since then.
    pub fn is_changed_by_others(&self, session: SessionId, since: Moment) -> bool {
        let last = if self.by == Some(session) { self.others } else { self.at };
        last >= since && last > Moment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_knows_whether_others_made_a_change() {
        let (one, two, three) = (SessionId(0), SessionId(1), SessionId(2));
        let (mut version, start) = (Version::default(), Moment::default());
        let others =
            |version: &Version, since: Moment| [one, two, three].map(|id| version.is_changed_by_others(id, since));
        assert_eq!(others(&version, start), [false; 3]);
        // The change of nobody counts as none.
        version.raise();
        assert_eq!(others(&version, start), [false; 3]);
        on_behalf(one, || version.raise());
        assert_eq!((others(&version, start), version.get()), ([false, true, true], 2));
        let later = Moment::now();
        assert_eq!(others(&version, later), [false; 3]);
        on_behalf(one, || on_behalf(two, || version.raise()));
        on_behalf(one, || version.raise());
        assert_eq!(others(&version, later), [true; 3]);
        let last = Moment::now();
        on_behalf(one, || version.raise());
        assert_eq!((others(&version, last), others(&version, start)), ([false, true, true], [true; 3]));
        on_behalf(three, || version.replace(9));
        assert_eq!(others(&version, last), [true; 3]);
        version.raise();
        assert_eq!(version.get(), 11);
    }

    #[test]
    fn contents_in_two_parts_are_changed_if_one_part_is() {
        let (one, two) = (SessionId(0), SessionId(1));
        let (mut a, mut b) = (Version::default(), Version::default());
        on_behalf(two, || a.raise());
        let later = Moment::now();
        on_behalf(one, || a.raise());
        on_behalf(one, || b.raise());
        let sum = a.plus(b);
        assert_eq!((sum.get(), sum), (3, b.plus(a)));
        assert!(sum.is_changed_by_others(one, Moment::default()) && !sum.is_changed_by_others(one, later));
        assert!(sum.is_changed_by_others(two, later));
    }
}
