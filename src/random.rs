//! Random numbers from the operating system.

use std::io;

/// Random bytes.
///
/// # Errors
/// If the operating system has none to give.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| io::Error::other(format!("the operating system gives no random numbers: {error}")))?;
    Ok(bytes)
}

/// A random number, for an id.
///
/// # Panics
/// If the operating system has no randomness to give, as nothing that follows could be trusted.
pub fn u64() -> u64 {
    u64::from_le_bytes(bytes().expect("the operating system gives random bytes"))
}
