//! The formats of a checkpoint as functions of bytes, for [`crate::fuzz`].

use super::bundle::Index;
use super::slice::Slice;

pub fn index(bytes: &[u8]) -> bool {
    let Ok(index) = Index::decode(bytes) else { return false };
    assert_eq!(Index::decode(&index.encode()).as_ref(), Ok(&index));
    true
}

pub fn slice(text: &str) -> bool {
    let Ok(Some((shape, slice))) = Slice::parse(text) else { return false };
    let _ = slice.shape(&shape);
    let _ = slice.is_full(&shape);
    let _ = slice.key(text.as_bytes());
    true
}
