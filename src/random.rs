//! Randomness for ids, keys and nonces, from the operating system.

/// Fills a buffer.
///
/// # Panics
/// Where the operating system has no randomness to give, as nothing that follows could be trusted.
pub(crate) fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the operating system gives random bytes");
}

/// A random number.
pub(crate) fn u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
