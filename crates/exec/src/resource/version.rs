//! The version of a resource's contents: a number that every change raises, kept under the lock of the contents.

/// The number of changes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Version {
    /// The version of contents in two parts.
    pub fn plus(self, other: Version) -> Version {
        Version(self.0.wrapping_add(other.0))
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// Other contents, of that version, take the place of these. Those of a resource that has just been made have their version.
    pub fn replace(&mut self, by: u64) {
        self.0 = if self.0 == 0 { by } else { self.0.max(by).wrapping_add(1) };
    }

    /// The contents change.
    pub fn raise(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}
