//! The registry folder, through which the processes of one machine find each other, with only `lo` up, in containers, in CI.
//!
//! Each process keeps one file there, locked for as long as it lives: a file that can be locked is of a process that is gone,
//! and is removed by the first process that notices. A file contains no secret and is not trusted: a peer at an address still
//! has to prove the mesh key.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use serde::{Deserialize, Serialize};

use super::address::Multiaddr;
use super::error::KeyError;
use super::key::{MeshKey, private_file, private_folder};

/// Most files that are read, and most bytes of one.
const MAX_FILES: usize = 4096;
const MAX_FILE_BYTES: u64 = 64 << 10;
const EXTENSION: &str = "json";

/// The file of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    mesh: String,
    /// Which key it has, or `open`.
    key: String,
    peer: String,
    pid: u32,
    addresses: Vec<Multiaddr>,
}

/// The folder, and this process's file in it.
pub struct Registry {
    folder: PathBuf,
    mesh: String,
    key: String,
    me: PeerId,
    /// Kept open for its lock.
    file: Option<File>,
    written: Vec<Multiaddr>,
}

impl Registry {
    /// # Errors
    /// If the folder can neither be used nor made.
    pub fn open(folder: &Path, mesh: &str, key: String, me: PeerId) -> Result<Self, KeyError> {
        private_folder(folder)?;
        let (folder, mesh) = (folder.to_owned(), mesh.to_owned());
        Ok(Registry { folder, mesh, key, me, file: None, written: Vec::new() })
    }

    /// Writes this process's file if it does not exist or its contents differ.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn announce(&mut self, addresses: &[Multiaddr]) -> Result<(), KeyError> {
        let path = self.path();
        if addresses.is_empty() || (self.file.is_some() && self.written == addresses && path.exists()) {
            return Ok(());
        }
        let entry = Entry {
            mesh: self.mesh.clone(),
            key: self.key.clone(),
            peer: self.me.to_string(),
            pid: std::process::id(),
            addresses: addresses.to_vec(),
        };
        let json = serde_json::to_vec(&entry).unwrap_or_default();
        let written = private_file(&path, &json).and_then(|file| {
            file.file().lock()?;
            file.end()
        });
        self.file = Some(written.map_err(|source| KeyError::Io { path, source })?);
        self.written = addresses.to_vec();
        Ok(())
    }

    /// The living processes of the same mesh and key, this one aside, and their addresses.
    pub fn look(&self) -> BTreeMap<PeerId, Vec<Multiaddr>> {
        let Ok(files) = fs::read_dir(&self.folder) else { return BTreeMap::new() };
        files
            .take(MAX_FILES)
            .filter_map(|file| self.read(&file.ok()?.path()))
            .filter(|(peer, _)| *peer != self.me)
            .collect()
    }

    fn read(&self, path: &Path) -> Option<(PeerId, Vec<Multiaddr>)> {
        if path.extension()? != EXTENSION || fs::symlink_metadata(path).ok()?.len() > MAX_FILE_BYTES {
            return None;
        }
        let file = File::open(path).ok()?;
        if *path != self.path() && file.try_lock_shared().is_ok() {
            // Its process is gone, unless it has just put a new file at this path.
            if is_same_file(&file, path) {
                let _ = fs::remove_file(path);
            }
            return None;
        }
        // The whole file, before it is parsed: a parser requests one byte at a time.
        let mut text = Vec::new();
        (&file).take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
        let entry: Entry = serde_json::from_slice(&text).ok()?;
        let ours = entry.mesh == self.mesh && entry.key == self.key;
        ours.then(|| Some((entry.peer.parse().ok()?, entry.addresses))).flatten()
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.{EXTENSION}", self.me))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(self.path());
        }
    }
}

/// How many processes of this user on this machine, nodes and commands, run in `mesh` with this key.
pub fn count_running(home: &Path, mesh: &str, key: &MeshKey) -> usize {
    let me = PeerId::random();
    Registry::open(&home.join("run"), mesh, key.fingerprint(), me).map_or(0, |registry| registry.look().len())
}

/// The addresses at which nodes of this user listen on this machine, in `mesh` with this key.
pub fn running_at(home: &Path, mesh: &str, key: &MeshKey) -> Vec<Multiaddr> {
    let registry = Registry::open(&home.join("run"), mesh, key.fingerprint(), PeerId::random());
    registry.map_or_else(|_| Vec::new(), |registry| registry.look().into_values().flatten().collect())
}

#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_file(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(seed: u8) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{seed}").parse().unwrap()
    }

    fn peer(seed: u8) -> PeerId {
        libp2p::identity::Keypair::ed25519_from_bytes([seed; 32]).unwrap().public().to_peer_id()
    }

    #[test]
    fn the_living_of_one_mesh_and_key_see_each_other() {
        let folder = temp_dir::TempDir::new().unwrap();
        let open = |mesh: &str, key: &str, seed| {
            let mut registry = Registry::open(folder.path(), mesh, key.into(), peer(seed)).unwrap();
            registry.announce(&[address(seed)]).unwrap();
            registry
        };
        let (a, b) = (open("lab", "k", 1), open("lab", "k", 2));
        let (other_mesh, other_key) = (open("den", "k", 3), open("lab", "j", 4));
        let see = |registry: &Registry| registry.look().into_keys().collect::<Vec<_>>();
        assert_eq!(see(&a), [peer(2)]);
        assert_eq!(a.look()[&peer(2)], [address(2)]);
        assert_eq!(see(&b), [peer(1)]);
        assert!(see(&other_mesh).is_empty() && see(&other_key).is_empty());
        drop(a);
        assert!(see(&b).is_empty());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn files_of_the_dead_and_nonsense_do_no_harm() {
        let folder = temp_dir::TempDir::new().unwrap();
        let mut registry = Registry::open(folder.path(), "lab", "k".into(), peer(1)).unwrap();
        registry.announce(&[address(1)]).unwrap();
        let dead = folder.path().join(format!("{}.json", peer(2)));
        fs::write(&dead, "{}").unwrap();
        let nonsense = folder.path().join("held.json");
        fs::write(&nonsense, [0xff, 0, 1]).unwrap();
        let held = File::open(&nonsense).unwrap();
        held.lock().unwrap();
        assert!(registry.look().is_empty());
        assert!(!dead.exists() && nonsense.exists());
        fs::remove_file(registry.path()).unwrap();
        registry.announce(&[address(1)]).unwrap();
        assert!(registry.path().exists(), "a file that somebody took away is written again");
    }
}
