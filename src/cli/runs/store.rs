//! The folder of the records: a file for each run, written whole, and not more than fit.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use meshtf_checkpoint::Whole;

use super::record::{Kind, Record, State};
use crate::cli::Trouble;

/// Maximum number of trainings that are kept, of other runs, and of bytes in all. The oldest that has ended is removed first.
pub const MAX_TRAININGS: usize = 200;
pub const MAX_OTHERS: usize = 100;
pub const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of a file that is read as a record.
const MAX_RECORD_BYTES: u64 = 4 << 20;
/// A part of a record that is older than this was left by a process that ended meanwhile.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// Letters of an id.
const ID_LETTERS: usize = 8;

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub kind: Kind,
    pub path: PathBuf,
    bytes: u64,
    changed: SystemTime,
}

impl Store {
    /// The user's: `runs` in `$MESHTF_HOME`, or else `meshtf/runs` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub fn of_user() -> io::Result<Store> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || set("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("meshtf"));
        let home = || etcetera::home_dir().ok().map(|home| home.join(".local/state/meshtf"));
        let no_home = || io::Error::new(io::ErrorKind::NotFound, "no home folder is known");
        let folder = set("MESHTF_HOME").or_else(state).or_else(home).ok_or_else(no_home)?;
        Ok(Store::at(folder.join("runs")))
    }

    pub fn at(folder: PathBuf) -> Store {
        Store { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// An id that no record has.
    pub fn new_id(&self) -> io::Result<String> {
        loop {
            let id: String =
                meshtf::random::bytes::<{ ID_LETTERS / 2 }>()?.iter().map(|b| format!("{b:02x}")).collect();
            if !Kind::ALL.iter().any(|kind| self.path(&id, *kind).exists()) {
                return Ok(id);
            }
        }
    }

    fn path(&self, id: &str, kind: Kind) -> PathBuf {
        self.folder.join(format!("{id}-{}.json", kind.name()))
    }

    /// Writes a record: the old one or the new one is whole, whenever the process ends.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        make_private(&self.folder)?;
        let text = serde_json::to_vec(record)?;
        let mut file = Whole::begin(&self.path(&record.id, record.kind))?;
        file.write_all(&text)?;
        file.sync()?;
        file.end().map(|_| ())
    }

    /// All files of records, the last changed first.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let listed = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut entries: Vec<Entry> = listed.filter_map(|entry| Entry::of(&entry.ok()?)).collect();
        entries.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.id.cmp(&b.id)));
        Ok(entries)
    }

    /// All records, the newest first. A file that cannot be read is left out.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        let mut records: Vec<Record> = self.entries()?.iter().filter_map(|entry| entry.read().ok()).collect();
        records.sort_by(|a, b| b.began_ms.cmp(&a.began_ms).then_with(|| a.id.cmp(&b.id)));
        Ok(records)
    }

    /// The file of the run that an id names, or its beginning, or `last`.
    pub fn find(&self, named: &str) -> Result<Entry, Trouble> {
        let cannot = |error: io::Error| Trouble::input(format!("{}: {error}", self.folder.display()));
        let mut entries = self.entries().map_err(cannot)?;
        if named == "last" {
            let began = |entry: &Entry| entry.read().map_or(0, |record| record.began_ms);
            let last = entries.into_iter().max_by_key(began);
            return last.ok_or_else(|| Trouble::input(format!("there is no run in {}", self.folder.display())));
        }
        entries.retain(|entry| !named.is_empty() && entry.id.starts_with(&named.to_ascii_lowercase()));
        match &entries[..] {
            [one] => Ok(one.clone()),
            [] => Err(Trouble::input(format!("there is no run {named}; `meshtf runs` lists them"))),
            several => {
                let ids: Vec<&str> = several.iter().map(|entry| entry.id.as_str()).take(8).collect();
                let more = if several.len() > ids.len() { ", …" } else { "" };
                Err(Trouble::input(format!("{named} is the beginning of several runs: {}{more}", ids.join(", "))))
            }
        }
    }

    /// Removes records until the rest fits, the oldest that has ended first, and parts that were left.
    pub fn prune(&self, trainings: usize, others: usize, bytes: u64) -> io::Result<()> {
        let parts = fs::read_dir(&self.folder)?.filter_map(|entry| entry.ok()).map(|entry| entry.path());
        for part in parts.filter(|path| path.extension().is_some_and(|ending| ending == "part")) {
            let changed = fs::metadata(&part).and_then(|found| found.modified());
            if changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > LEFT_AFTER)) {
                let _gone = fs::remove_file(part);
            }
        }
        let entries = self.entries()?;
        let is_training = |entry: &&Entry| entry.kind == Kind::Train;
        let mut counts = [entries.iter().filter(is_training).count(), 0];
        counts[1] = entries.len() - counts[0];
        let mut size: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries.iter().rev() {
            let own = usize::from(entry.kind != Kind::Train);
            let is_over = counts[own] > [trainings, others][own];
            if !is_over && size <= bytes {
                continue;
            }
            // A file that is no record is in the way of others.
            if entry.read().is_ok_and(|record| record.state_now() == State::Running) {
                continue;
            }
            fs::remove_file(&entry.path)?;
            counts[own] -= 1;
            size -= entry.bytes;
        }
        Ok(())
    }
}

impl Entry {
    /// `3f09c12a-train.json`; `None` for another file.
    fn of(entry: &fs::DirEntry) -> Option<Entry> {
        let name = entry.file_name().into_string().ok()?;
        let (id, kind) = name.strip_suffix(".json")?.split_once('-')?;
        let kind = Kind::ALL.into_iter().find(|one| one.name() == kind)?;
        let is_id = id.len() == ID_LETTERS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let found = entry.metadata().ok().filter(|found| found.is_file() && is_id)?;
        let changed = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Entry { id: id.to_owned(), kind, path: entry.path(), bytes: found.len(), changed })
    }

    pub fn read(&self) -> Result<Record, Trouble> {
        let cannot = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", self.path.display()));
        if self.bytes > MAX_RECORD_BYTES {
            return Err(cannot(&format!("it has more than {MAX_RECORD_BYTES} bytes, as no record has")));
        }
        let text = fs::read(&self.path).map_err(|error| cannot(&error))?;
        let record: Record = serde_json::from_slice(&text).map_err(|error| cannot(&error))?;
        Ok(Record { id: self.id.clone(), kind: self.kind, ..record })
    }
}

/// Makes a folder that only its user can read: command lines may have data.
fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::super::record::How;
    use super::*;

    /// A store with ended runs, the first the oldest.
    fn store(folder: &TempDir, ids: &[&str], kind: Kind) -> Store {
        let store = Store::at(folder.child("state/runs"));
        for (at, id) in ids.iter().enumerate() {
            let mut record = Record { id: (*id).to_owned(), began_ms: at as u64, ..Record::default() };
            record.kind = kind;
            record.ended(How::Done, None);
            store.write(&record).unwrap();
            let path = store.path(id, kind);
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + at as u64);
            fs::File::options().write(true).open(path).unwrap().set_modified(changed).unwrap();
        }
        store
    }

    fn ids(store: &Store) -> Vec<String> {
        store.records().unwrap().into_iter().map(|record| record.id).collect()
    }

    #[test]
    fn a_run_is_found_by_the_beginning_of_its_id() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, &["3f09c12a", "3f1bbbbb", "a0000000"], Kind::Train);
        assert_eq!(ids(&store), ["a0000000", "3f1bbbbb", "3f09c12a"]);
        for (named, id) in [("a", "a0000000"), ("3F0", "3f09c12a"), ("3f1bbbbb", "3f1bbbbb"), ("last", "a0000000")] {
            assert_eq!(store.find(named).unwrap().id, id, "{named}");
        }
        for (named, why) in [("3f", "several runs: "), ("b", "no run b"), ("", "no run"), ("../a", "no run ../a")] {
            let trouble = store.find(named).unwrap_err().to_string();
            assert!(trouble.contains(why), "{named}: {trouble}");
        }
        assert!(Store::at(folder.child("none")).find("last").is_err());
        assert_ne!(store.new_id().unwrap(), store.new_id().unwrap());
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(store.folder()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_oldest_that_has_ended_is_removed_first() {
        let folder = TempDir::new().unwrap();
        let all = ["00000001", "00000002", "00000003", "00000004"];
        let store = store(&folder, &all, Kind::Train);
        // The oldest still runs: it is of this process.
        let running = Record { id: all[0].into(), ..Record::new(Kind::Train, Path::new("g"), String::new()) };
        store.write(&running).unwrap();
        let path = store.path(all[0], Kind::Train);
        fs::File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::write(store.folder().join("notes.txt"), "of somebody").unwrap();
        store.prune(2, 2, u64::MAX).unwrap();
        let mut left = ids(&store);
        left.sort();
        assert_eq!(left, [all[0], all[3]]);
        store.prune(9, 9, 1).unwrap();
        assert_eq!(ids(&store), [all[0]]);
        assert!(store.folder().join("notes.txt").exists());
    }

    #[test]
    fn a_file_that_is_no_record_is_reported_by_its_name() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, &["00000001"], Kind::Submit);
        fs::write(store.path("00000001", Kind::Submit), "{").unwrap();
        assert!(ids(&store).is_empty());
        let trouble = store.find("0").unwrap().read().unwrap_err().to_string();
        assert!(trouble.contains("00000001-submit.json"), "{trouble}");
    }
}
