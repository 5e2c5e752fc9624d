//! The version of a resource's contents: a number that every change raises, kept under the lock of the contents.

/// The number of changes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    pub fn get(self) -> u64 {
        self.0
    }

    /// The contents change.
    pub fn raise(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}
