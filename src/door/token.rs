//! The token of a door, and the one that a request shows.

use hyper::header::{AUTHORIZATION, HeaderMap};

/// The hash of a door's token, if it has one.
pub(super) struct Token(Option<blake3::Hash>);

impl Token {
    pub fn new(token: Option<&str>) -> Token {
        Token(token.map(|token| blake3::hash(token.as_bytes())))
    }

    /// Whether clients need it.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a client that shows this passes.
    pub fn accepts(&self, shown: &[u8]) -> bool {
        // The comparison of hashes takes the same time wherever they differ.
        self.0.is_none_or(|own| blake3::hash(shown) == own)
    }
}

/// The token of the header `authorization: Bearer TOKEN`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
