//! The weights that this machine keeps on its disk, so that a model that is run again need not send them again.
//!
//! A folder with a file for each constant, named by its content. A file is written whole or not at all, and read only if its
//! elements are those of its name: a damaged one is removed. Once the folder exceeds its limit, the files that were not used for
//! longest are removed. Several processes may share the folder. No failure of it is a failure of a run.
//!
//! A constant that lies in a file of the user's, such as a model, may be known by its place there ([`place`]): then the folder
//! has the place in its stead.

pub mod place;

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use meshtf_checkpoint::Whole;
use meshtf_tensor::failure::Result;
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, Element, Shape, Tensor, with_ring};
use serde::{Deserialize, Serialize};

use crate::protocol::Content;

/// The limit of a folder, if none is given.
pub const DEFAULT_BYTES: u64 = 8 << 30;
/// First in each file: the name and the version of its layout.
const MAGIC: &[u8; 8] = b"meshtfw\x01";
/// The end of a file's name.
const ENDING: &str = ".weight";
/// The end of the name of a file that is being written.
const PART: &str = ".part";
/// Most bytes of the header of a file.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Most bytes of the name of a node in it.
const MAX_NAME_BYTES: usize = 256;
/// A part of a file that is older than this was left by a process that ended meanwhile.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// How much is removed beyond the limit, so that not every write removes something: a part of 16.
const SPARE: u64 = 16;

/// The start of a file, before the elements as they lie in a message.
#[derive(Debug, Deserialize, Serialize)]
struct Header {
    dtype: DType,
    shape: Shape,
    node: String,
}

/// A folder of weights with its limit.
#[derive(Debug)]
pub struct WeightCache {
    folder: PathBuf,
    limit: u64,
    used: Mutex<Option<Used>>,
}

/// Bytes of the files of a folder.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// Those that were counted, and those that this process has written since.
    all: u64,
    /// Those that this process has written since the count: other processes may have, too.
    since: u64,
}

/// A constant that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its content.
    pub content: Content,
    /// The node that had it first.
    pub node: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Bytes of its file, or of its elements in another file.
    pub bytes: u64,
    /// When a task last used it.
    pub used: SystemTime,
    /// The file of the user's in which it lies; `None`: it is kept in the folder.
    pub file: Option<PathBuf>,
}

/// The folder of this user: `cache/weights` in `$MESHTF_HOME`, or else `meshtf/weights` in `$XDG_CACHE_HOME` or `~/.cache`.
///
/// # Errors
/// If no home folder is known.
pub fn folder_of_user() -> io::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || etcetera::home_dir().ok().map(|home| home.join(".cache"));
    let cache = || set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(home);
    let folder = set("MESHTF_HOME").map(|home| home.join("cache")).or_else(|| Some(cache()?.join("meshtf")));
    let folder = folder.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no home folder is known"))?;
    Ok(folder.join("weights"))
}

impl WeightCache {
    /// The cache in a folder, which is made when it is first needed.
    pub fn at(folder: PathBuf, limit: u64) -> WeightCache {
        WeightCache { folder, limit, used: Mutex::default() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Most bytes of it.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn path(&self, content: &Content) -> PathBuf {
        self.folder.join(format!("{}{ENDING}", content.digits()))
    }

    /// Whether the folder has a constant itself.
    pub fn has(&self, content: &Content) -> bool {
        self.path(content).exists()
    }

    /// The constant of a content, if it is kept. A file with other elements than its name says is removed.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for it.
    pub fn get(&self, content: &Content) -> Result<Option<Tensor>> {
        let path = self.path(content);
        let Ok(mut file) = File::open(&path) else { return self.get_elsewhere(content) };
        let read = read_header(&mut file, MAGIC).and_then(|header| {
            let wanted = header.shape.limited_elements(header.dtype).map_err(io::Error::other)?;
            let bytes = wanted.saturating_mul(header.dtype.size().unwrap_or(usize::MAX)) as u64;
            let (at, length) = (io::Seek::stream_position(&mut file)?, file.metadata()?.len());
            if at.checked_add(bytes) == Some(length) { Ok(header) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        });
        let value = match read {
            // Admitted before it is allocated: there is a file of that length.
            Ok(Header { dtype, shape, .. }) => {
                shape.checked_elements(dtype)?;
                read_tensor(&mut file, dtype, shape)
            }
            Err(error) => Err(error),
        };
        match value {
            Ok(value) if Content::of(&value) == *content => {
                note_use(&path);
                Ok(Some(value))
            }
            damaged => {
                let why = damaged.err().map_or_else(|| "its elements are others".to_owned(), |error| error.to_string());
                tracing::warn!("{} is damaged, and was removed: {why}", path.display());
                let _gone = fs::remove_file(&path);
                *lock(&self.used) = None;
                Ok(None)
            }
        }
    }

    /// Keeps a constant, for a node that has it, and removes others if there are too many. One that exceeds the limit alone is
    /// not kept.
    ///
    /// # Errors
    /// The system's error; nothing is left of the constant then.
    pub fn put(&self, content: &Content, node: &str, value: &Tensor) -> io::Result<()> {
        let Some(elements) = value.bytes() else { return Ok(()) };
        let (path, spare) = (self.path(content), self.limit / SPARE);
        if elements.len() as u64 > self.limit - spare || path.exists() {
            return Ok(());
        }
        make_private(&self.folder)?;
        let mut file = Header::of(node, value).begin(&path, MAGIC)?;
        file.write_all(elements)?;
        let bytes = file.end()?.metadata()?.len();
        let mut used = lock(&self.used);
        let now = match *used {
            Some(Used { all, since }) if since + bytes <= spare => Used { all: all + bytes, since: since + bytes },
            _ => Used {
                all: files(&self.folder)?.iter().filter(|file| !file.is_place).map(|file| file.bytes).sum(),
                since: 0,
            },
        };
        let fits = now.all <= self.limit;
        *used = Some(if fits { now } else { Used { all: self.shrink(self.limit - spare)?, since: 0 } });
        Ok(())
    }

    /// Removes parts of files that other processes left, and files beyond the limit.
    ///
    /// # Errors
    /// The system's error.
    pub fn tidy(&self) -> io::Result<()> {
        self.shrink(self.limit).map(drop)
    }

    /// Removes the files that were not used for longest, until the others take no more than `bytes`; returns how much they take.
    /// Places stay: they take next to nothing, and the user asked for them.
    fn shrink(&self, bytes: u64) -> io::Result<u64> {
        let mut all = files(&self.folder)?;
        all.retain(|file| !file.is_place);
        all.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.path.cmp(&b.path)));
        let mut left = 0;
        for file in all {
            if left + file.bytes <= bytes && !file.was_left() {
                left += file.bytes;
            } else if !file.is_part || file.was_left() {
                let _gone = fs::remove_file(&file.path);
            }
        }
        Ok(left)
    }
}

/// The constants in a folder, those that were used last in front. Files of other programs, and damaged ones, are left out.
///
/// # Errors
/// The system's error.
pub fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = files(folder)?.iter().filter_map(FileOf::entry).collect();
    entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.content.cmp(&b.content)));
    Ok(entries)
}

/// Removes all constants from a folder; returns how many there were, and their bytes.
///
/// # Errors
/// The system's error for the first that cannot be removed; the others are gone.
pub fn clear(folder: &Path) -> io::Result<(usize, u64)> {
    let (mut count, mut bytes, mut failed) = (0, 0, None);
    for file in files(folder)?.iter().filter(|file| !file.is_part || file.was_left()) {
        match fs::remove_file(&file.path) {
            Ok(()) => (count, bytes) = (count + 1, bytes + file.bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok((count, bytes)), Err)
}

/// A file of a folder: of a constant, or a part of one that is being written.
struct FileOf {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_part: bool,
    /// Whether it has the place of a constant in another file.
    is_place: bool,
}

impl FileOf {
    /// Whether it is a part that a process left which ended meanwhile.
    fn was_left(&self) -> bool {
        self.is_part && self.used.elapsed().is_ok_and(|age| age > LEFT_AFTER)
    }

    fn entry(&self) -> Option<Entry> {
        let name = self.path.file_name()?.to_str()?;
        if self.is_place {
            return place::entry(&self.path, Content::from_digits(name.strip_suffix(place::ENDING)?)?, self.used);
        }
        let content = Content::from_digits(name.strip_suffix(ENDING)?)?;
        let Header { dtype, shape, node } = read_header(&mut File::open(&self.path).ok()?, MAGIC).ok()?;
        Some(Entry { content, node, dtype, shape, bytes: self.bytes, used: self.used, file: None })
    }
}

/// The files that this program made in a folder; none if it does not exist.
fn files(folder: &Path) -> io::Result<Vec<FileOf>> {
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_part = name.starts_with('.')
            && name.ends_with(PART)
            && [ENDING, place::ENDING].iter().any(|end| name.contains(end));
        let of = |ending: &str| name.strip_suffix(ending).and_then(Content::from_digits);
        let is_place = of(place::ENDING).is_some();
        let content = of(ENDING).or_else(|| of(place::ENDING));
        // One that another process has removed meanwhile has none.
        let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file() && (is_part || content.is_some()))?;
        Some(FileOf { path: entry.path(), bytes: metadata.len(), used: metadata.modified().ok()?, is_part, is_place })
    };
    Ok(listed.filter_map(|entry| of(entry.ok()?)).collect())
}

impl Header {
    fn of(node: &str, value: &Tensor) -> Header {
        let node = node.chars().scan(0, |bytes, char| {
            *bytes += char.len_utf8();
            (*bytes <= MAX_NAME_BYTES).then_some(char)
        });
        Header { dtype: value.dtype(), shape: value.shape().clone(), node: node.collect() }
    }

    /// Begins a file with it.
    fn begin(&self, path: &Path, magic: &[u8]) -> io::Result<Whole> {
        let header = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let mut file = Whole::begin_private(path)?;
        file.write_all(magic)?;
        file.write_all(&(header.len() as u32).to_le_bytes())?;
        file.write_all(&header)?;
        Ok(file)
    }
}

/// The time of the last change of a file is that of its last use: the system may not note when a file is read.
fn note_use(path: &Path) {
    let _unnoted = File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
}

fn read_header(file: &mut File, magic: &[u8]) -> io::Result<Header> {
    let mut start = [0; 12];
    file.read_exact(&mut start)?;
    let [.., a, b, c, d] = start;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    if !start.starts_with(magic) || bytes > MAX_HEADER_BYTES {
        return Err(io::Error::other("it does not begin as a weight"));
    }
    let mut header = vec![0; bytes];
    file.read_exact(&mut header)?;
    postcard::from_bytes(&header).map_err(io::Error::other)
}

/// Reads the elements, into the memory that they keep.
fn read_tensor(file: &mut File, dtype: DType, shape: Shape) -> io::Result<Tensor> {
    let count = shape.limited_elements(dtype).map_err(io::Error::other)?;
    if dtype == DType::Bool {
        let mut flags = vec![0; count];
        file.read_exact(&mut flags)?;
        return Tensor::from_bytes(dtype, shape, &flags).map_err(io::Error::other);
    }
    let data = with_ring!(dtype.stored_as(), T => {
        // Zeros of the system: they are not written before the elements are.
        let mut elements: Vec<T> = bytemuck::zeroed_vec(count);
        file.read_exact(bytemuck::cast_slice_mut(&mut elements))?;
        T::into_data(elements)
    });
    let data = data.and_then(|data| data.retyped(dtype));
    Tensor::new(shape, data.ok_or(io::ErrorKind::InvalidData)?).map_err(io::Error::other)
}

/// Makes a folder that only this user may open.
fn make_private(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    fn vector(seed: u8, bytes: usize) -> (Content, Tensor) {
        let value = Tensor::vector((0..bytes).map(|at| (at as u8).wrapping_mul(seed)).collect::<Vec<u8>>());
        (Content::of(&value), value)
    }

    fn kept(cache: &WeightCache) -> Vec<String> {
        let mut nodes: Vec<String> = entries(cache.folder()).unwrap().into_iter().map(|entry| entry.node).collect();
        nodes.sort();
        nodes
    }

    /// As if it was last used so many seconds ago.
    fn age(cache: &WeightCache, content: &Content, seconds: u64) {
        let used = SystemTime::now() - Duration::from_secs(seconds);
        File::options().append(true).open(cache.path(content)).unwrap().set_modified(used).unwrap();
    }

    #[test]
    fn constants_of_every_dtype_come_back_with_their_shape() {
        let folder = TempDir::new().unwrap();
        let cache = WeightCache::at(folder.child("a/b"), 1 << 20);
        let values = [
            Tensor::from_vec([2, 3], vec![1.5f32, -2.0, 0.0, f32::INFINITY, 1e-40, 3.0]),
            Tensor::from_vec([2], vec![true, false]),
            Tensor::from_vec([1, 1], vec![-7i64]),
            Tensor::from_vec([2], vec![meshtf_tensor::half::f16::ONE; 2]),
            Tensor::new([2], meshtf_tensor::Data::QI8(vec![-1, 2])).unwrap(),
            Tensor::from_vec([0, 4], Vec::<f64>::new()),
        ];
        for value in &values {
            let content = Content::of(value);
            assert_eq!(cache.get(&content).unwrap(), None);
            cache.put(&content, "w", value).unwrap();
            assert_eq!(cache.get(&content).unwrap().as_ref(), Some(value));
        }
        assert_eq!(entries(cache.folder()).unwrap().len(), values.len());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(cache.folder()), 0o700);
            assert_eq!(mode(&cache.path(&Content::of(&values[0]))), 0o600);
        }
        let (count, bytes) = clear(cache.folder()).unwrap();
        assert!(count == values.len() && bytes > 0);
        assert_eq!((kept(&cache).len(), clear(cache.folder()).unwrap()), (0, (0, 0)));
        assert_eq!(clear(&folder.child("none")).unwrap(), (0, 0));
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let folder = TempDir::new().unwrap();
        // For three files, each of 1000 bytes and a header.
        let cache = WeightCache::at(folder.path().to_owned(), 3400);
        let all: Vec<_> = (1..=4).map(|seed| vector(seed, 1000)).collect();
        for (at, (content, value)) in all.iter().enumerate().take(3) {
            cache.put(content, &format!("w{at}"), value).unwrap();
            age(&cache, content, 100 - at as u64);
        }
        fs::write(folder.child("other.txt"), "of another program").unwrap();
        // The first is used again; the second is the oldest then.
        assert!(cache.get(&all[0].0).unwrap().is_some());
        cache.put(&all[3].0, "w3", &all[3].1).unwrap();
        assert_eq!(kept(&cache), ["w0", "w2", "w3"]);
        let (content, value) = vector(9, 4000);
        cache.put(&content, "too large", &value).unwrap();
        assert_eq!(kept(&cache), ["w0", "w2", "w3"]);
        assert!(folder.child("other.txt").exists());
    }

    #[test]
    fn a_damaged_file_is_removed_and_never_used() {
        let folder = TempDir::new().unwrap();
        let cache = WeightCache::at(folder.path().to_owned(), 1 << 20);
        let (content, value) = vector(3, 5000);
        let damages: [fn(&mut Vec<u8>); 5] = [
            |bytes| *bytes.last_mut().unwrap() ^= 1,
            |bytes| bytes.truncate(2000),
            |bytes| bytes.push(0),
            |bytes| bytes[9] = 0xff,
            Vec::clear,
        ];
        for damage in damages {
            cache.put(&content, "w", &value).unwrap();
            let path = cache.path(&content);
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
            assert_eq!((cache.get(&content).unwrap(), path.exists()), (None, false));
        }
        // A whole file under the name of another.
        let (other, _) = vector(5, 5000);
        cache.put(&content, "w", &value).unwrap();
        fs::rename(cache.path(&content), cache.path(&other)).unwrap();
        assert_eq!(cache.get(&other).unwrap(), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_fails_without_harm() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.child("file"), "").unwrap();
        let cache = WeightCache::at(folder.child("file/weights"), 1 << 20);
        let (content, value) = vector(1, 10);
        assert!(cache.put(&content, "w", &value).is_err());
        assert_eq!(cache.get(&content).unwrap(), None);
    }
}
