//! Bytes at an offset: of a file, of a part of it, of several files in a row.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path};
use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;

use super::wrong;

/// A file of known length, of which any part can be read.
pub trait Source: Send + Sync {
    /// Its length in bytes.
    fn length(&self) -> u64;

    /// Fills `into` with the bytes from an offset on, all of which lie in the file.
    ///
    /// # Errors
    /// The reason why they cannot be read.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;
}

/// A source that several tensors share.
pub type Shared = Arc<dyn Source>;

/// Opens a file by its name relative to the folder of another.
pub type Beside<'a> = dyn Fn(&str) -> Result<Shared> + 'a;

impl Source for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or_else(|| ends(at, into.len(), self.length()))?);
        Ok(())
    }
}

/// A part of a source.
struct Part {
    whole: Shared,
    begin: u64,
    length: u64,
}

impl Source for Part {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        check(at, into.len() as u64, self.length)?;
        self.whole.read(self.begin + at, into)
    }
}

/// A part of a source as one of its own.
pub fn part(whole: &Shared, begin: u64, length: u64) -> Result<Shared> {
    check(begin, length, whole.length())?;
    Ok(Arc::new(Part { whole: Arc::clone(whole), begin, length }))
}

/// Several sources, one after another.
struct Joined {
    parts: Vec<(u64, Shared)>,
    length: u64,
}

impl Source for Joined {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, mut at: u64, mut into: &mut [u8]) -> Result<()> {
        check(at, into.len() as u64, self.length)?;
        while !into.is_empty() {
            let index = self.parts.partition_point(|(begin, _)| *begin <= at) - 1;
            let (begin, part) = &self.parts[index];
            let here = (part.length() - (at - begin)).min(into.len() as u64) as usize;
            let (now, rest) = into.split_at_mut(here);
            part.read(at - begin, now)?;
            (at, into) = (at + here as u64, rest);
        }
        Ok(())
    }
}

/// Sources in a row as one.
pub fn joined(sources: Vec<Shared>) -> Shared {
    let mut length = 0;
    let mut parts = Vec::with_capacity(sources.len());
    for source in sources.into_iter().filter(|source| source.length() > 0) {
        parts.push((length, Arc::clone(&source)));
        length += source.length();
    }
    Arc::new(Joined { parts, length })
}

fn ends(at: u64, length: usize, all: u64) -> meshtf_tensor::failure::Failure {
    wrong(format!("{length} bytes from byte {at} on lie outside of the file, which has {all}"))
}

/// Checks that a part lies within a length.
pub fn check(at: u64, length: u64, all: u64) -> Result<()> {
    match at.checked_add(length).is_some_and(|end| end <= all) {
        true => Ok(()),
        false => Err(ends(at, usize::try_from(length).unwrap_or(usize::MAX), all)),
    }
}

/// Reads a part into memory, which is asked for once the part is known to exist.
pub fn bytes(source: &dyn Source, at: u64, length: u64) -> Result<Vec<u8>> {
    check(at, length, source.length())?;
    let length = usize::try_from(length).map_err(|_| wrong("a part of it is larger than memory"))?;
    memory::admit(length)?;
    let mut bytes = vec![0; length];
    source.read(at, &mut bytes)?;
    Ok(bytes)
}

/// The text of a source of at most `most` bytes.
pub fn text(source: &dyn Source, most: u64) -> Result<String> {
    if source.length() > most {
        return Err(super::limit(format!(
            "it has {} bytes; the limit for a text of this kind is {most}",
            source.length()
        )));
    }
    String::from_utf8(bytes(source, 0, source.length())?).map_err(|_| wrong("its text is not UTF-8"))
}

/// Whether a name denotes a file in a folder or below it.
pub fn is_within(name: &str) -> bool {
    let is_normal = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    !name.is_empty() && !name.contains(['\\', '\0', ':']) && Path::new(name).components().all(is_normal)
}

/// Opens a file that another one names.
pub fn named(beside: &Beside, name: &str) -> Result<Shared> {
    if !is_within(name) {
        return Err(wrong(format!("it names the file {name:?}; only files in its own folder, or below it, are read")));
    }
    beside(name)
}

/// Sequential access to a source, for readers that ask for `Read` and `Seek`, and for headers.
#[derive(Clone)]
pub struct Cursor {
    source: Shared,
    at: u64,
    /// Bytes that were read ahead, from this offset on.
    ahead: Vec<u8>,
    from: u64,
}

/// Bytes that are read at once.
const WINDOW: u64 = 64 << 10;

impl Cursor {
    pub fn new(source: &Shared) -> Cursor {
        Cursor { source: Arc::clone(source), at: 0, ahead: Vec::new(), from: 0 }
    }

    /// The offset of the next byte.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The number of bytes that follow.
    pub fn left(&self) -> u64 {
        self.source.length().saturating_sub(self.at)
    }

    /// The next bytes.
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut taken = [0; N];
        self.fill(&mut taken)?;
        Ok(taken)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next bytes, of a number that the file states.
    pub fn bytes(&mut self, length: u64, most: u64) -> Result<Vec<u8>> {
        if length > most {
            return Err(wrong(format!("byte {}: a length of {length}, more than {most}", self.at)));
        }
        check(self.at, length, self.source.length())?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Passes over bytes.
    pub fn skip(&mut self, length: u64) -> Result<()> {
        check(self.at, length, self.source.length())?;
        self.at += length;
        Ok(())
    }

    fn fill(&mut self, mut into: &mut [u8]) -> Result<()> {
        check(self.at, into.len() as u64, self.source.length())?;
        while !into.is_empty() {
            let inside = self.at.checked_sub(self.from).filter(|&skip| skip < self.ahead.len() as u64);
            let Some(skip) = inside else {
                let length = WINDOW.min(self.source.length() - self.at) as usize;
                self.ahead.resize(length, 0);
                self.from = self.at;
                self.source.read(self.at, &mut self.ahead)?;
                continue;
            };
            let here = &self.ahead[skip as usize..];
            let count = here.len().min(into.len());
            let (now, rest) = into.split_at_mut(count);
            now.copy_from_slice(&here[..count]);
            (self.at, into) = (self.at + count as u64, rest);
        }
        Ok(())
    }
}

impl Read for Cursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.left().min(into.len() as u64) as usize;
        self.fill(&mut into[..count]).map_err(|failure| io::Error::other(failure.message))?;
        Ok(count)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.source.length().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
