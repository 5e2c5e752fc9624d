//! The ticket, which carries the key of a mesh to another machine.
//!
//! It is the key in the clear with some addresses, on one line to copy: anybody who has it can join.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::address::{Multiaddr, parse_address};
use super::error::KeyError;
use super::key::{
    MeshKey, addresses_path, check_mesh_name, key_file, key_path, overwrite, read_key, remembered_addresses,
    untried_path, write_new,
};

/// The prefix of a line that is a ticket; the number is the ticket's version.
const TICKET_PREFIX: &str = "meshtf-ticket-1.";
const CHECKSUM_BYTES: usize = 8;
/// Most addresses that a ticket carries and a machine remembers for one mesh.
const MAX_TICKET_ADDRESSES: usize = 16;
/// Longest line that is parsed as a ticket.
const MAX_TICKET_CHARS: usize = 8192;
/// The error of a line that ends too early.
const INCOMPLETE: &str = "it is incomplete: copy the whole line";

/// The line that admits a second machine to a mesh, made to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Name of the mesh.
    pub mesh: String,
    /// Its key.
    pub key: MeshKey,
    /// The listen addresses of nodes of the mesh.
    pub addresses: Vec<Multiaddr>,
}

#[derive(Serialize, Deserialize)]
struct TicketBody {
    mesh: String,
    key: [u8; 32],
    /// Multiaddrs.
    addresses: Vec<String>,
}

/// The outcome of [`Ticket::accept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// This machine had no key for the mesh.
    Stored,
    /// It had this very key; the addresses were added.
    Known,
    /// It had another key, which is gone now.
    Replaced,
}

impl std::fmt::Display for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.addresses.iter().take(MAX_TICKET_ADDRESSES).map(Multiaddr::to_string).collect();
        let body = TicketBody { mesh: self.mesh.clone(), key: *self.key.bytes(), addresses };
        let body = postcard::to_allocvec(&body).map_err(|_| std::fmt::Error)?;
        let length = u16::try_from(body.len()).map_err(|_| std::fmt::Error)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&checksum(&body));
        write!(f, "{TICKET_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl std::str::FromStr for Ticket {
    type Err = KeyError;

    /// Takes the line as it was printed; white space around it does no harm.
    fn from_str(line: &str) -> Result<Self, KeyError> {
        let refuse = |why: &str| KeyError::Ticket { why: why.to_owned() };
        let line = line.trim();
        if line.len() > MAX_TICKET_CHARS {
            return Err(refuse("it is far too long"));
        }
        let Some(text) = line.strip_prefix(TICKET_PREFIX) else {
            return Err(match line.strip_prefix("meshtf-ticket-").and_then(|rest| rest.split_once('.')) {
                Some((version, _)) => refuse(&format!("it is of version {version}, and this program reads version 1")),
                None => refuse(&format!("it does not begin with {TICKET_PREFIX}")),
            });
        };
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        if !text.is_ascii() {
            return Err(refuse("it has a character that tickets do not use"));
        }
        // A cut can leave one character that is not a whole byte; the better message is that something is missing.
        let whole = if text.len() % 4 == 1 { &text[..text.len() - 1] } else { &text[..] };
        let lenient = base64::engine::GeneralPurpose::new(
            &base64::alphabet::URL_SAFE,
            base64::engine::general_purpose::NO_PAD.with_decode_allow_trailing_bits(true),
        );
        let bytes = lenient.decode(whole).map_err(|_| refuse("it has a character that tickets do not use"))?;
        let Some((length, rest)) = bytes.split_at_checked(2) else { return Err(refuse(INCOMPLETE)) };
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let wanted = length + CHECKSUM_BYTES;
        if rest.len() < wanted || whole.len() != text.len() {
            // A length that is itself wrong does not show how much is missing.
            return Err(refuse(match wanted <= MAX_TICKET_CHARS * 3 / 4 {
                true => INCOMPLETE,
                false => "one of its characters is wrong",
            }));
        }
        if rest.len() > wanted {
            return Err(refuse("something follows it"));
        }
        let (body, sum) = rest.split_at(length);
        if sum != checksum(body) {
            return Err(refuse("one of its characters is wrong"));
        }
        let body: TicketBody = postcard::from_bytes(body).map_err(|_| refuse("it does not contain a ticket"))?;
        check_mesh_name(&body.mesh)?;
        let addresses: Result<_, _> = body.addresses.iter().map(|text| parse_address(text)).collect();
        let addresses = addresses.map_err(|error| refuse(&error.to_string()))?;
        Ok(Ticket { mesh: body.mesh, key: MeshKey::from_bytes(body.key), addresses })
    }
}

impl Ticket {
    /// Keeps the key and the addresses in `home`, so that from now on nodes and clients of this user belong to the mesh.
    ///
    /// # Errors
    /// [`KeyError::Exists`] if another key exists and `replace` is not set; otherwise as [`MeshKey::load`].
    pub fn accept(&self, home: &Path, replace: bool) -> Result<Accepted, KeyError> {
        let path = key_path(home, &self.mesh)?;
        let accepted = match read_key(&path) {
            Ok(None) if write_new(&path, &self.key)? => Accepted::Stored,
            Ok(Some(key)) if key == self.key => Accepted::Known,
            // Made on this machine in passing, and no peer has proven it.
            Ok(Some(_)) if untried_path(&path).exists() => {
                overwrite(&path, key_file(&self.key).as_bytes())?;
                MeshKey::confirm(home, &self.mesh);
                Accepted::Stored
            }
            Err(KeyError::Damaged { .. } | KeyError::Exposed { .. }) | Ok(_) if replace => {
                overwrite(&path, key_file(&self.key).as_bytes())?;
                Accepted::Replaced
            }
            Ok(_) => return Err(KeyError::Exists { mesh: self.mesh.clone(), path }),
            Err(error) => return Err(error),
        };
        let mut addresses = self.addresses.clone();
        if accepted != Accepted::Replaced {
            addresses.extend(remembered_addresses(home, &self.mesh)?);
        }
        let mut seen = std::collections::BTreeSet::new();
        addresses.retain(|address| seen.insert(address.clone()));
        addresses.truncate(MAX_TICKET_ADDRESSES);
        let lines: String = addresses.iter().map(|address| format!("{address}\n")).collect();
        overwrite(&addresses_path(home, &self.mesh)?, lines.as_bytes())?;
        Ok(accepted)
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&blake3::derive_key("meshtf 2026 ticket checksum", body)[..CHECKSUM_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            mesh: "lab".into(),
            key: MeshKey::from_bytes([7; 32]),
            addresses: ["192.168.1.7:4711", "/dns/lab/tcp/9"].map(|text| parse_address(text).unwrap()).into(),
        }
    }

    #[test]
    fn a_ticket_is_kept_and_replaces_only_when_told() {
        let home = temp_dir::TempDir::new().unwrap();
        assert_eq!(ticket().accept(home.path(), false).unwrap(), Accepted::Stored);
        assert_eq!(ticket().accept(home.path(), false).unwrap(), Accepted::Known);
        assert_eq!(remembered_addresses(home.path(), "lab").unwrap(), ticket().addresses);
        let other = Ticket { key: MeshKey::from_bytes([8; 32]), addresses: vec![], ..ticket() };
        assert!(matches!(other.accept(home.path(), false), Err(KeyError::Exists { .. })));
        assert_eq!(MeshKey::load(home.path(), "lab").unwrap(), ticket().key);
        assert_eq!(other.accept(home.path(), true).unwrap(), Accepted::Replaced);
        assert_eq!(MeshKey::load(home.path(), "lab").unwrap(), other.key);
        assert!(remembered_addresses(home.path(), "lab").unwrap().is_empty());
    }

    #[test]
    fn a_ticket_survives_copying_and_tells_what_is_wrong_with_it() {
        let line = ticket().to_string();
        assert_eq!(format!("  {line}\n").parse::<Ticket>().unwrap(), ticket());
        let why = |line: &str| line.parse::<Ticket>().unwrap_err().to_string();
        for cut in TICKET_PREFIX.len()..line.len() {
            assert!(why(&line[..cut]).contains("incomplete"), "{cut}: {}", why(&line[..cut]));
        }
        assert!(why(&format!("{line}AAAA")).contains("follows"));
        // A length that has changed does not show how much is missing.
        let mut changed = line.clone();
        changed.replace_range(TICKET_PREFIX.len()..=TICKET_PREFIX.len(), "_");
        assert!(why(&changed).contains("one of its characters is wrong"), "{}", why(&changed));
        assert!(why("hello").contains("begin with"));
        assert!(why(&line.replace("ticket-1", "ticket-9")).contains("version 9"));
        assert!(!format!("{:?}", ticket()).contains("7, 7"));
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "(meshtf-ticket-1\\.)?\\PC{0,200}") {
            let _ = line.parse::<Ticket>();
        }

        #[test]
        fn a_changed_character_is_noticed(at in 0usize..200, to in "[A-Za-z0-9_-]") {
            let line = ticket().to_string();
            let at = TICKET_PREFIX.len() + at % (line.len() - TICKET_PREFIX.len() - 1);
            let mut changed = line.clone();
            changed.replace_range(at..=at, &to);
            prop_assert!(changed == line || changed.parse::<Ticket>().is_err());
        }
    }
}
