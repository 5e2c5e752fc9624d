//! Constants that lie in files of the user's, such as a model: the cache knows their places, and reads them there. Each is
//! compared with its content, so a file may change: then its places are forgotten as they are found to be wrong.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{Entry, Header, WeightCache, make_private, note_use, read_header, read_tensor};
use crate::protocol::Content;

/// First in each file: the name and the version of its layout.
const MAGIC: &[u8; 8] = b"meshtfp\x01";
/// The end of a file's name.
pub(super) const ENDING: &str = ".place";
/// Most bytes of a place.
const MAX_BYTES: u64 = 64 << 10;

/// The place of a constant's elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The file, by its absolute path.
    pub file: PathBuf,
    /// The first byte.
    pub offset: u64,
}

impl WeightCache {
    /// Notes the place at which a constant lies, for a node that has it.
    ///
    /// # Errors
    /// The system's error; nothing is left of the place then.
    pub fn put_place(&self, content: &Content, node: &str, value: &Tensor, place: &Place) -> io::Result<()> {
        let place = postcard::to_allocvec(place).map_err(io::Error::other)?;
        make_private(self.folder())?;
        let mut file = Header::of(node, value).begin(&self.place_of(content), MAGIC)?;
        file.write_all(&place)?;
        file.end().map(drop)
    }

    fn place_of(&self, content: &Content) -> PathBuf {
        self.folder().join(format!("{}{ENDING}", content.digits()))
    }

    /// The constant of a content, if a file of the user's has it. A place with other elements is forgotten; one in a file that
    /// cannot be opened is not, since its disk may be absent for a while.
    pub(super) fn get_elsewhere(&self, content: &Content) -> Result<Option<Tensor>> {
        let path = self.place_of(content);
        if !path.exists() {
            return Ok(None);
        }
        let found = match read(&path) {
            Ok((Header { dtype, shape, .. }, Place { file: own, offset })) => match open(&own) {
                Ok(mut file) => {
                    shape.checked_elements(dtype)?;
                    file.seek(SeekFrom::Start(offset)).and_then(|_| read_tensor(&mut file, dtype, shape))
                }
                Err(error) => {
                    tracing::debug!("{}: {error}; a weight that is known to lie there is not read", own.display());
                    return Ok(None);
                }
            },
            Err(error) => Err(error),
        };
        match found {
            Ok(value) if Content::of(&value) == *content => {
                note_use(&path);
                Ok(Some(value))
            }
            other => {
                let why = other
                    .err()
                    .map_or_else(|| "the file has other elements there".to_owned(), |error| error.to_string());
                tracing::warn!("the place {} was removed: {why}; `meshtf cache add` finds it anew", path.display());
                let _gone = fs::remove_file(&path);
                Ok(None)
            }
        }
    }
}

/// Opens a file that is one. A pipe that has come into its place does not wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok(file)
}

fn read(path: &Path) -> io::Result<(Header, Place)> {
    let mut file = open(path)?;
    let header = read_header(&mut file, MAGIC)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok((header, postcard::from_bytes(&bytes).map_err(io::Error::other)?))
}

/// A place in the list of weights; `None` for a damaged one.
pub(super) fn entry(path: &Path, content: Content, used: SystemTime) -> Option<Entry> {
    let (Header { dtype, shape, node }, place) = read(path).ok()?;
    let bytes = shape.elements()?.checked_mul(dtype.size()?)? as u64;
    Some(Entry { content, node, dtype, shape, bytes, used, file: Some(place.file) })
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::super::{clear, entries};
    use super::*;

    /// A cache that knows the place of 1000 numbers behind 7 bytes of a file.
    fn noted() -> (TempDir, WeightCache, PathBuf, Content, Tensor) {
        let folder = TempDir::new().unwrap();
        let (cache, file) = (WeightCache::at(folder.child("cache"), 1 << 20), folder.child("model"));
        let value = Tensor::from_vec([10, 100], (0..1000).map(|i| i as f32).collect::<Vec<_>>());
        let bytes = [&b"header:"[..], value.bytes().unwrap(), b"more"].concat();
        fs::write(&file, bytes).unwrap();
        let content = Content::of(&value);
        cache.put_place(&content, "w", &value, &Place { file: file.clone(), offset: 7 }).unwrap();
        (folder, cache, file, content, value)
    }

    #[test]
    fn a_constant_is_read_where_it_lies() {
        let (_folder, cache, file, content, value) = noted();
        assert_eq!(cache.get(&content).unwrap(), Some(value.clone()));
        let [entry] = &entries(cache.folder()).unwrap()[..] else { panic!("one entry") };
        assert_eq!((entry.content, entry.bytes, entry.file.as_ref()), (content, 4000, Some(&file)));
        // To make room removes none, since it takes none.
        cache.shrink(0).unwrap();
        assert_eq!(cache.get(&content).unwrap(), Some(value));
        let (count, _) = clear(cache.folder()).unwrap();
        assert_eq!((count, cache.get(&content).unwrap(), file.exists()), (1, None, true));
    }

    #[test]
    fn a_file_that_changed_is_never_used() {
        let damages: [fn(&Path); 3] = [
            |file| {
                let mut bytes = fs::read(file).unwrap();
                bytes[100] ^= 1;
                fs::write(file, bytes).unwrap();
            },
            |file| fs::write(file, b"shorter").unwrap(),
            |file| fs::write(file, b"").unwrap(),
        ];
        for damage in damages {
            let (_folder, cache, file, content, _) = noted();
            damage(&file);
            assert_eq!((cache.get(&content).unwrap(), cache.place_of(&content).exists()), (None, false));
        }
        // It may be there again later.
        let (_folder, cache, file, content, value) = noted();
        let away = file.with_extension("away");
        fs::rename(&file, &away).unwrap();
        assert_eq!(cache.get(&content).unwrap(), None);
        fs::create_dir(&file).unwrap();
        assert_eq!(cache.get(&content).unwrap(), None);
        fs::remove_dir(&file).unwrap();
        fs::rename(&away, &file).unwrap();
        assert_eq!(cache.get(&content).unwrap(), Some(value));
        // Nor does a pipe in its place wait for a writer.
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(cache.get(&content).unwrap(), None);
        // A place that is damaged itself.
        fs::write(cache.place_of(&content), b"meshtfp\x01\xff\xff\xff\xff").unwrap();
        assert_eq!((cache.get(&content).unwrap(), entries(cache.folder()).unwrap()), (None, vec![]));
    }
}
