//! The version of a resource's contents: a number that every change raises, a mark by which they are told from all others, and
//! the sessions whose steps made the last changes. Kept under the lock of the contents.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use serde::{Deserialize, Serialize};

/// A time between changes of resources: each [`Moment::now`] is later than all before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// In place of a session: whoever changes a variable from outside of all steps.
pub const OUTSIDE: SessionId = SessionId(u64::MAX);

/// A number on a cache line of its own: all threads change it.
#[repr(align(128))]
struct Counter(AtomicU64);

/// The next moment.
static NEXT: Counter = Counter(AtomicU64::new(1));

/// The last mark that contents got.
static MARKS: Counter = Counter(AtomicU64::new(0));
/// A mark beyond this is another process's alone: own ones do not follow it, so that they never begin anew.
const MAX_FOLLOWED: u64 = u64::MAX / 2;

thread_local! {
    /// The session for which the thread works.
    static AT_WORK: Cell<Option<SessionId>> = const { Cell::new(None) };
}

impl Moment {
    /// A moment after all changes so far.
    pub fn now() -> Moment {
        Moment(NEXT.0.fetch_add(1, Ordering::Relaxed) + 1)
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

/// Contents of a resource, which are told from those before, and from those of a resource that has come in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edition {
    /// The number of changes.
    pub number: u64,
    /// No other contents have it, but for those of which a copy has become the first contents of a resource: both have one.
    pub mark: u64,
}

/// The contents that a saved state may take the place of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over<'a> {
    /// Any.
    All,
    /// Those that no other session has changed since then.
    Own { session: SessionId, since: Moment, name: &'a str },
}

/// The failure to put a state back in the place of contents that another session has changed.
pub fn changed_by_another(kind: &str, name: &str) -> Failure {
    let why = format!("another session has changed {kind} '{name}' since the newest copy");
    Failure::new(Code::FailedPrecondition, why)
}

/// A mark for contents that have just been made.
fn next_mark() -> u64 {
    MARKS.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// Which contents these are, and who made the last changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    edition: Edition,
    /// The session that made the last change, and the moment before which it did.
    by: Option<SessionId>,
    at: Moment,
    /// The same moment for the last change of another session.
    others: Moment,
}

impl Default for Version {
    /// The version of contents that have just been made.
    fn default() -> Version {
        Version { edition: Edition { number: 0, mark: next_mark() }, ..Version::NONE }
    }
}

impl Version {
    /// The version of a resource without contents.
    pub const NONE: Version =
        Version { edition: Edition { number: 0, mark: 0 }, by: None, at: Moment(0), others: Moment(0) };

    /// The version of contents in two parts.
    pub fn plus(self, other: Version) -> Version {
        // A part that changes gets a mark above all others.
        let mark = self.edition.mark.max(other.edition.mark);
        let edition = Edition { number: self.edition.number.wrapping_add(other.edition.number), mark };
        let (last, first) = if self.at >= other.at { (self, other) } else { (other, self) };
        let of_first = if first.by == last.by { first.others } else { first.at };
        Version { edition, others: last.others.max(of_first), ..last }
    }

    /// The number of changes.
    pub fn get(self) -> u64 {
        self.edition.number
    }

    pub fn edition(self) -> Edition {
        self.edition
    }

    /// Whether a saved state may take the place of these contents, which are of a resource of that kind.
    ///
    /// # Errors
    /// FailedPrecondition if a change of another session would be lost.
    pub fn check(&self, kind: &str, over: Over<'_>) -> Result<()> {
        match over {
            Over::Own { session, since, name } if self.is_changed_by_others(session, since) => {
                Err(changed_by_another(kind, name))
            }
            Over::All | Over::Own { .. } => Ok(()),
        }
    }

    /// Other contents, of that version, take the place of these. Those of a resource that has just been made have their version.
    pub fn replace(&mut self, by: Edition) {
        if by.mark <= MAX_FOLLOWED {
            MARKS.0.fetch_max(by.mark, Ordering::Relaxed);
        }
        self.edition = match self.edition.number {
            0 => by,
            own => Edition { number: own.max(by.number).wrapping_add(1), mark: next_mark() },
        };
        self.sign();
    }

    /// The contents change.
    pub fn raise(&mut self) {
        self.edition = Edition { number: self.edition.number.wrapping_add(1), mark: next_mark() };
        self.sign();
    }

    /// Notes the session for which the thread works. What happens apart from all steps, as when one is cancelled, is nobody's.
    fn sign(&mut self) {
        let Some(session) = AT_WORK.get() else { return };
        if self.by.replace(session) != Some(session) {
            self.others = self.at;
        }
        self.at = Moment(NEXT.0.load(Ordering::Relaxed));
    }

    /// Whether the last change is one that a step of this session made since then.
    pub fn is_changed_by(&self, session: SessionId, since: Moment) -> bool {
        self.by == Some(session) && self.at >= since && self.at > Moment::default()
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
        on_behalf(three, || version.replace(Edition { number: 9, mark: 1 }));
        assert_eq!(others(&version, last), [true; 3]);
        version.raise();
        assert_eq!(version.get(), 11);
    }

    #[test]
    fn no_two_contents_have_the_same_edition() {
        let (mut one, mut all) = (Version::default(), Vec::new());
        for _ in 0..3 {
            one.raise();
            all.push(one.edition());
        }
        // Of another process, which is ahead of this one.
        let ahead = Edition { number: 1, mark: all[2].mark + 1_000_000 };
        one.replace(ahead);
        all.push(one.edition());
        let mut made = Version::default();
        made.replace(ahead);
        assert_eq!(made.edition(), ahead, "it has just been made");
        all.push(made.edition());
        // A resource that is made in its place has changed as often.
        let mut made_again = Version::default();
        all.push(made_again.edition());
        made_again.raise();
        all.push(made_again.edition());
        assert_eq!(made_again.get(), made.get());
        let marks: std::collections::BTreeSet<u64> = all.iter().map(|edition| edition.mark).collect();
        assert_eq!(marks.len(), all.len(), "{all:?}");
        // A peer may send any.
        Version::default().replace(Edition { number: 1, mark: u64::MAX });
        assert!((ahead.mark..MAX_FOLLOWED).contains(&Version::default().edition().mark));
    }

    #[test]
    fn contents_in_two_parts_have_another_edition_if_one_part_has() {
        let (mut a, mut b) = (Version::default(), Version::default());
        let mut before = a.plus(b).edition();
        for is_first in [true, false, false, true] {
            if is_first { &mut a } else { &mut b }.raise();
            let now = a.plus(b).edition();
            assert!(now.mark > before.mark, "{before:?}, {now:?}");
            before = now;
        }
    }

    #[test]
    fn only_own_changes_are_replaced() {
        let (own, other, since) = (SessionId(1), SessionId(2), Moment::now());
        let mut version = Version::default();
        let over = Over::Own { session: own, since, name: "v" };
        on_behalf(own, || version.raise());
        version.check("variable", over).unwrap();
        on_behalf(other, || version.raise());
        let refused = version.check("variable", over).unwrap_err();
        let expected = "another session has changed variable 'v' since the newest copy";
        assert_eq!((refused.code, &*refused.message), (Code::FailedPrecondition, expected));
        version.check("variable", Over::All).unwrap();
        version.check("variable", Over::Own { session: own, since: Moment::now(), name: "v" }).unwrap();
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
