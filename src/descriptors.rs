//! File descriptors: every socket takes one, and many systems start with a soft limit of 1024.
//!
//! This module alone reads and sets the process's limit of descriptors; it opens and closes no socket.

use std::io;

use nix::errno::Errno;
#[cfg(unix)]
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit that a process requests, if the system allows it: far more than nine sockets for each of a thousand peers, and far
/// less than the values that some systems refuse.
const WANTED: u64 = 65_536;
/// The limit that is assumed if the system does not report one.
const ASSUMED: u64 = 1024;

/// Raises this process's soft limit towards its hard one, and returns the new soft limit.
///
/// # Errors
/// If the system does not allow it; the limit stays as it was.
#[cfg(unix)]
pub fn raise() -> io::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = WANTED.min(hard);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(limit())
}

/// How many descriptors this process may have open at once.
#[cfg(unix)]
pub fn limit() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(ASSUMED, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// How many it has open; `None` if the system does not report it.
pub(crate) fn open() -> Option<usize> {
    // One of them is the folder itself, while it is read.
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    Some(entries.count().saturating_sub(1))
}

/// Whether a socket was refused because this process, or the whole system, has no descriptor left.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = limit();
        assert!(before > 0);
        let after = raise().unwrap();
        assert!(after >= before, "{before} before, {after} after");
        assert_eq!((limit(), raise().unwrap()), (after, after));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_open_is_counted() {
        // Other tests open and close files meanwhile, though not as many.
        let before = open().unwrap();
        let files: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = open().unwrap();
        assert!(after >= before + files.len() / 2 && after <= limit(), "{before}, {after}");
    }

    #[test]
    fn only_a_lack_of_descriptors_is_one() {
        let check = |code: Errno, exhausted| assert_eq!(are_exhausted(&code.into()), exhausted, "{code}");
        check(Errno::EMFILE, true);
        check(Errno::ENFILE, true);
        check(Errno::ECONNABORTED, false);
        assert!(!are_exhausted(&io::ErrorKind::TimedOut.into()));
    }
}
