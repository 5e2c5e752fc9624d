//! The mesh key, which admits to a mesh, and its storage.
//!
//! A key is made with the first node of a mesh and kept in the user's own folder; a file that other users can read is refused.
//! It is never sent on a socket, only proven ([`admission`](super::admission)).

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use meshtf_checkpoint::Whole;
use serde::{Deserialize, Serialize};

use super::address::{Multiaddr, parse_address};
use super::error::{KeyError, MeshError};

/// First word of a key file.
const KEY_FILE_MARK: &str = "meshtf-key-1";
/// Most bytes of a file that holds a secret.
const MAX_SECRET_BYTES: u64 = 64 << 10;
/// Most bytes of a mesh's name.
const MAX_NAME: usize = 64;
/// Most characters that an error shows of a name that is refused.
const MOST_SHOWN: usize = 80;
/// Most meshes that an error names.
const MOST_NAMED: usize = 8;
/// The mode bits of a file for users other than its owner.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// The shared secret of one mesh.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshKey([u8; 32]);

impl std::fmt::Debug for MeshKey {
    /// Never the key itself: such text ends up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MeshKey({})", self.fingerprint())
    }
}

impl MeshKey {
    /// A new key.
    ///
    /// # Errors
    /// If the operating system has no randomness to give.
    pub fn generate() -> Result<Self, MeshError> {
        let bytes = crate::random::bytes().map_err(|source| MeshError::Io { what: "random numbers", source })?;
        Ok(MeshKey(bytes))
    }

    /// The key of these bytes, which must not be guessable.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        MeshKey(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A name for the key that reveals nothing about it: for files and logs.
    pub fn fingerprint(&self) -> String {
        blake3::derive_key("meshtf 2026 key fingerprint", &self.0)[..6].iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The key of `mesh` in `home`, made now if there is none, and whether it was made. If two processes make one at once, both
    /// get the key of the first.
    ///
    /// # Errors
    /// If `mesh` is not a name, or the folder or file cannot be used.
    pub fn load_or_create(home: &Path, mesh: &str) -> Result<(Self, bool), MeshError> {
        let path = key_path(home, mesh)?;
        if let Some(key) = read_key(&path)? {
            return Ok((key, false));
        }
        let key = MeshKey::generate()?;
        if write_new(&path, &key)? {
            // Without the mark, a ticket that could be accepted is refused; there is no other effect.
            let _unmarked = fs::write(untried_path(&path), "");
            return Ok((key, true));
        }
        Ok((read_key(&path)?.ok_or(KeyError::Damaged { path })?, false))
    }

    /// Notes that a peer has proven the key of `mesh`: from now on a ticket with another key does not simply replace it.
    pub fn confirm(home: &Path, mesh: &str) {
        if let Ok(path) = key_path(home, mesh) {
            let _confirmed_before = fs::remove_file(untried_path(&path));
        }
    }

    /// Whether a peer has proven the key of `mesh`, or a ticket brought it. Otherwise it was made on this machine, and no other
    /// machine may have it.
    pub fn is_confirmed(home: &Path, mesh: &str) -> bool {
        key_path(home, mesh).is_ok_and(|path| !untried_path(&path).exists())
    }

    /// The key of `mesh` in `home`.
    ///
    /// # Errors
    /// [`KeyError::Missing`] if there is none; otherwise as [`MeshKey::load_or_create`].
    pub fn load(home: &Path, mesh: &str) -> Result<Self, KeyError> {
        let path = key_path(home, mesh)?;
        read_key(&path)?.ok_or_else(|| KeyError::Missing { mesh: mesh.to_owned(), others: meshes(&path), path })
    }
}

/// The folder that keeps mesh keys: `$MESHTF_HOME`, or `meshtf` in `$XDG_CONFIG_HOME`, or `~/.config/meshtf`.
///
/// # Errors
/// If none of these is known.
pub fn home() -> Result<PathBuf, KeyError> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = set("MESHTF_HOME") {
        return Ok(home);
    }
    if let Some(config) = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute()) {
        return Ok(config.join("meshtf"));
    }
    etcetera::home_dir().map(|home| home.join(".config").join("meshtf")).map_err(|_| KeyError::NoHome)
}

/// Addresses of `mesh` from tickets, which are dialled without any flag.
///
/// # Errors
/// If `mesh` is not a name or the file cannot be read.
pub fn remembered_addresses(home: &Path, mesh: &str) -> Result<Vec<Multiaddr>, KeyError> {
    let path = addresses_path(home, mesh)?;
    match fs::read_to_string(&path) {
        // A line that is not an address is skipped.
        Ok(text) => Ok(text.lines().filter_map(|line| parse_address(line).ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(KeyError::Io { path, source }),
    }
}

/// Whether `mesh` can be the name of a mesh, and so of its files.
///
/// # Errors
/// [`KeyError::Name`] if it cannot.
pub fn check_mesh_name(mesh: &str) -> Result<(), KeyError> {
    let ok = (1..=MAX_NAME).contains(&mesh.len())
        && mesh.starts_with(|c: char| c.is_ascii_alphanumeric())
        && mesh.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if ok { Ok(()) } else { Err(KeyError::Name { name: mesh.chars().take(MOST_SHOWN).collect() }) }
}

/// The meshes whose keys are in the folder of `key`, the first few by name.
fn meshes(key: &Path) -> Vec<String> {
    let files = key.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let name = |file: fs::DirEntry| file.file_name().to_str()?.strip_suffix(".key").map(str::to_owned);
    let mut names: Vec<String> = files.filter_map(name).filter(|name| check_mesh_name(name).is_ok()).collect();
    names.sort_unstable();
    names.truncate(MOST_NAMED);
    names
}

/// The mark next to a key that was made on this machine and that no peer has proven yet.
pub(super) fn untried_path(key: &Path) -> PathBuf {
    key.with_extension("untried")
}

/// Makes `path` a folder that only this user can enter.
pub(crate) fn private_folder(path: &Path) -> Result<(), KeyError> {
    let fail = |source| KeyError::Io { path: path.to_owned(), source };
    if !path.is_dir() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(fail)?;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let permissions = fs::metadata(path).map_err(fail)?.permissions();
        if permissions.mode() & OTHERS != 0 {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(fail)?;
        }
    }
    Ok(())
}

/// A file for `path` that only this user can read, with `bytes` in it, under a temporary name.
pub(super) fn private_file(path: &Path, bytes: &[u8]) -> io::Result<Whole> {
    let mut file = Whole::begin_private(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

pub(super) fn key_path(home: &Path, mesh: &str) -> Result<PathBuf, KeyError> {
    check_mesh_name(mesh)?;
    Ok(home.join("keys").join(format!("{mesh}.key")))
}

pub(super) fn addresses_path(home: &Path, mesh: &str) -> Result<PathBuf, KeyError> {
    check_mesh_name(mesh)?;
    Ok(home.join("keys").join(format!("{mesh}.addresses")))
}

pub(super) fn key_file(key: &MeshKey) -> String {
    format!("{KEY_FILE_MARK} {}\n", URL_SAFE_NO_PAD.encode(key.0))
}

/// The text of a file that holds a secret.
///
/// # Errors
/// [`KeyError::Exposed`] if users other than its owner may use it; [`KeyError::Io`] if it cannot be read at all.
pub fn read_secret(path: &Path) -> Result<String, KeyError> {
    let fail = |source| KeyError::Io { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(fail)?;
    // The mode of the open file, as another file may be at its path a moment later.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
    }
    let mut text = String::new();
    file.take(MAX_SECRET_BYTES).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

pub(super) fn read_key(path: &Path) -> Result<Option<MeshKey>, KeyError> {
    let text = match read_secret(path) {
        Ok(text) => text,
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The file is not text, and so no key.
        Err(KeyError::Io { path, source }) if source.kind() == io::ErrorKind::InvalidData => {
            return Err(KeyError::Damaged { path });
        }
        Err(error) => return Err(error),
    };
    let key = text
        .strip_prefix(KEY_FILE_MARK)
        .and_then(|rest| URL_SAFE_NO_PAD.decode(rest.trim()).ok())
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    key.map(|bytes| Some(MeshKey(bytes))).ok_or_else(|| KeyError::Damaged { path: path.to_owned() })
}

/// Writes the key unless the file exists already; returns whether it did. A reader never sees a partial key.
pub(super) fn write_new(path: &Path, key: &MeshKey) -> Result<bool, KeyError> {
    private_folder(path.parent().unwrap_or(Path::new(".")))?;
    let written = private_file(path, key_file(key).as_bytes()).and_then(|mut file| {
        file.sync()?;
        file.end_if_new()
    });
    written.map_err(|source| KeyError::Io { path: path.to_owned(), source })
}

pub(super) fn overwrite(path: &Path, bytes: &[u8]) -> Result<(), KeyError> {
    private_folder(path.parent().unwrap_or(Path::new(".")))?;
    let written = private_file(path, bytes).and_then(|mut file| {
        file.sync()?;
        file.end()
    });
    written.map(|_| ()).map_err(|source| KeyError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::ticket::{Accepted, Ticket};

    #[test]
    fn a_key_is_made_once_and_private() {
        let home = temp_dir::TempDir::new().unwrap();
        let keys: Vec<MeshKey> = std::thread::scope(|scope| {
            let make = || MeshKey::load_or_create(home.path(), "lab").unwrap().0;
            (0..8).map(|_| scope.spawn(make)).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        let (other, made) = MeshKey::load_or_create(home.path(), "other").unwrap();
        assert!(made && other != keys[0]);
        assert_eq!(MeshKey::load_or_create(home.path(), "other").unwrap(), (other, false));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&home.path().join("keys")), 0o700);
            assert_eq!(mode(&home.path().join("keys/lab.key")), 0o600);
        }
        let left: Vec<_> = fs::read_dir(home.path().join("keys")).unwrap().map(|e| e.unwrap().file_name()).collect();
        // Two keys, each with the mark that no peer has proven it.
        assert_eq!(left.len(), 4, "{left:?}");
        MeshKey::confirm(home.path(), "lab");
        assert!(!home.path().join("keys/lab.untried").exists());
    }

    #[test]
    fn a_damaged_key_is_told_and_a_bad_name_refused() {
        let home = temp_dir::TempDir::new().unwrap();
        MeshKey::load_or_create(home.path(), "lab").unwrap();
        fs::write(home.path().join("keys/lab.key"), "nonsense").unwrap();
        let error = MeshKey::load_or_create(home.path(), "lab").unwrap_err().to_string();
        assert!(error.contains("lab.key"), "{error}");
        for name in ["", "../x", ".x", "a/b", &"x".repeat(65)] {
            assert!(MeshKey::load_or_create(home.path(), name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_key_is_only_looked_for() {
        let home = temp_dir::TempDir::new().unwrap();
        let error = MeshKey::load(home.path(), "lab").unwrap_err();
        assert!(matches!(error, KeyError::Missing { .. }));
        for part in ["lab.key", "`meshtf node --name local/0 --mesh lab`", "`meshtf ticket --mesh lab`", "meshtf join"]
        {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "nothing was made");
        // For a mistyped name, the existing names help.
        for name in ["lab", "meshtf"] {
            MeshKey::load_or_create(home.path(), name).unwrap();
        }
        let error = MeshKey::load(home.path(), "labb").unwrap_err().to_string();
        assert!(error.ends_with(". It has keys of other meshes (--mesh NAME): lab, meshtf"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = temp_dir::TempDir::new().unwrap();
        let (key, _) = MeshKey::load_or_create(home.path(), "lab").unwrap();
        let path = home.path().join("keys/lab.key");
        let check = |mode: u32, taken: bool| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match MeshKey::load(home.path(), "lab") {
                Ok(read) => assert!(taken && read == key, "{mode:o}"),
                Err(error) => {
                    let wanted = format!("chmod 600 {}", path.display());
                    assert!(!taken && error.to_string().contains(&wanted), "{mode:o}: {error}");
                }
            }
        };
        check(0o600, true);
        check(0o400, true);
        check(0o640, false);
        check(0o604, false);
        check(0o602, false);
        check(0o610, false);
        // A ticket that replaces it is another file.
        let ticket = Ticket { mesh: "lab".into(), key: MeshKey::from_bytes([7; 32]), addresses: Vec::new() };
        assert_eq!(ticket.accept(home.path(), true).unwrap(), Accepted::Replaced);
        assert_eq!(MeshKey::load(home.path(), "lab").unwrap(), ticket.key);
    }
}
