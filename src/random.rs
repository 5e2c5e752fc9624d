//! Random ids, from the operating system.

/// A random number.
///
/// # Panics
/// Where the operating system has no randomness to give, as nothing that follows could be trusted.
pub(crate) fn u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u64::from_le_bytes(bytes)
}
