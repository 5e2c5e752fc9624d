//! How often a guarded session goes back to a cut, and the pauses before that.

use super::Nanos;

/// Most returns to one cut.
pub(super) const MAX_ATTEMPTS: u32 = 20;
/// The wait before the second return to a cut, twice as long each time, and the longest: a link may be down unnoticed.
const PAUSE: Nanos = 250_000_000;
const MAX_PAUSE: Nanos = 3_000_000_000;

/// How long the session waits before it goes back to a cut for so many times.
pub(super) fn pause(attempts: u32) -> Nanos {
    attempts.checked_sub(2).map_or(0, |again| (PAUSE << again.min(8)).min(MAX_PAUSE))
}
