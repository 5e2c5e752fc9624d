//! The release of a participant, which those of another version of the protocol still exchange.

use std::fmt;

use crate::protocol::VERSION;

/// Most bytes of a release's name.
pub const MAX_RELEASE_BYTES: usize = 32;

/// The name of a release of meshtf, such as `0.1.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    length: u8,
    bytes: [u8; MAX_RELEASE_BYTES],
}

impl Release {
    /// The release of that name; `None` if it is empty, too long, or has other characters than those of versions: letters and
    /// digits of ASCII, `.`, `-` and `+`.
    pub fn new(name: &str) -> Option<Release> {
        let is_right = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+".contains(byte);
        let right = !name.is_empty() && name.len() <= MAX_RELEASE_BYTES && name.as_bytes().iter().all(is_right);
        right.then(|| {
            let mut bytes = [0; MAX_RELEASE_BYTES];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            Release { length: name.len() as u8, bytes }
        })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A participant's release of meshtf, and the version of the protocol that it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speaks {
    /// The version of the protocol.
    pub protocol: u16,
    /// Its release, unless it does not send it.
    pub release: Option<Release>,
}

impl Speaks {
    /// The release and protocol of this program.
    pub fn own() -> Speaks {
        Speaks { protocol: VERSION, release: Release::new(env!("CARGO_PKG_VERSION")) }
    }
}

impl fmt::Display for Speaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.release {
            Some(release) => write!(f, "meshtf {} (protocol {})", release.as_str(), self.protocol),
            None => write!(f, "a meshtf of another release (protocol {})", self.protocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_name_that_can_be_shown() {
        for name in ["0.1.0", "12.0.3-rc.1+build5", &"9".repeat(MAX_RELEASE_BYTES)] {
            assert_eq!(Release::new(name).unwrap().as_str(), name);
        }
        for name in ["", "1 2", "\u{1b}[2J", "größe", &"9".repeat(MAX_RELEASE_BYTES + 1)] {
            assert_eq!(Release::new(name), None, "{name:?}");
        }
        let own = Speaks::own().to_string();
        assert_eq!(own, format!("meshtf {} (protocol {VERSION})", env!("CARGO_PKG_VERSION")));
        let silent = Speaks { protocol: 3, release: None };
        assert_eq!(silent.to_string(), "a meshtf of another release (protocol 3)");
    }
}
