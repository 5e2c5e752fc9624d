//! A tensor's elements while they arrive.

#![allow(unsafe_code, reason = "elements are filled before they are initialised")]

use std::collections::TryReserveError;
use std::mem::MaybeUninit;

use bytemuck::AnyBitPattern;
use bytes::buf::{BufMut, UninitSlice};

/// Memory for a number of elements, filled with bytes as they are read and not zeroed before: writing 64 MB twice is
/// measurable.
pub struct Incoming<T> {
    /// Empty until all of them have arrived.
    elements: Vec<T>,
    filled_bytes: usize,
    wanted: usize,
}

impl<T: AnyBitPattern> Incoming<T> {
    /// Memory for `wanted` elements. It is reserved at once and used as it fills, so that a claimed length alone costs nothing.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(wanted: usize) -> Result<Self, TryReserveError> {
        let mut elements = Vec::new();
        elements.try_reserve_exact(wanted)?;
        Ok(Incoming { elements, filled_bytes: 0, wanted })
    }

    /// The elements; `None` while some are missing.
    pub fn finish(mut self) -> Option<Vec<T>> {
        if self.has_remaining_mut() {
            return None;
        }
        // SAFETY: `wanted` elements are reserved, all their bytes were written, and any bytes are valid elements.
        unsafe { self.elements.set_len(self.wanted) };
        Some(self.elements)
    }

    fn wanted_bytes(&self) -> usize {
        self.wanted * size_of::<T>()
    }
}

// SAFETY: `chunk_mut` returns the part of the reserved memory that begins at the last byte that `advance_mut` counted.
unsafe impl<T: AnyBitPattern> BufMut for Incoming<T> {
    fn remaining_mut(&self) -> usize {
        self.wanted_bytes() - self.filled_bytes
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "more bytes were read than were wanted");
        self.filled_bytes += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        let end = self.wanted_bytes();
        let spare = self.elements.spare_capacity_mut();
        // SAFETY: the same memory, seen as bytes that need not be initialised; `spare` has at least `wanted` elements.
        let spare = unsafe { std::slice::from_raw_parts_mut(spare.as_mut_ptr().cast::<MaybeUninit<u8>>(), end) };
        UninitSlice::uninit(&mut spare[self.filled_bytes..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_in_by_any_number_of_bytes() {
        let values = [1.5f32, -2.0, f32::INFINITY, 0.0];
        let bytes: &[u8] = bytemuck::cast_slice(&values);
        for step in 1..=bytes.len() {
            let mut incoming = Incoming::<f32>::new(values.len()).unwrap();
            bytes.chunks(step).for_each(|chunk| incoming.put_slice(chunk));
            assert_eq!(incoming.finish().unwrap(), values);
        }
    }

    #[test]
    fn a_part_is_no_tensor() {
        let mut incoming = Incoming::<i64>::new(2).unwrap();
        incoming.put_slice(&[0; 15]);
        assert!(incoming.finish().is_none());
        assert!(Incoming::<u8>::new(0).unwrap().finish().unwrap().is_empty());
    }
}
