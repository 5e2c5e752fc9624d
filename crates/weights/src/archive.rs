//! Zip archives: their members as sources. One that is stored is a part of the file; a packed one is unpacked when it is opened.

use std::collections::HashMap;
use std::io::Read;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{MAX_TENSOR_BYTES, memory};
use zip::{CompressionMethod, ZipArchive};

use super::source::{Cursor, Shared, part};
use super::{MAX_TENSORS, limit, wrong};
use std::sync::Arc;

/// Most bytes that a member unpacks to: a tensor and its header.
const MAX_UNPACKED: u64 = MAX_TENSOR_BYTES as u64 + (1 << 20);
/// A member may unpack to so many bytes however small it is, as zeros do.
const MAX_OF_ANY: u64 = 2 << 30;
/// Beyond that, to so many times its size: weights shrink far less.
const MAX_RATIO: u64 = 64;

/// An archive.
#[derive(Clone)]
pub struct Archive {
    source: Shared,
    /// Its copies share the directory, which takes time to read.
    zip: ZipArchive<Cursor>,
    members: Arc<HashMap<String, Member>>,
}

#[derive(Clone, Copy)]
struct Member {
    index: usize,
    /// Where its bytes begin, if they are not packed.
    stored_at: Option<u64>,
    /// Its unpacked size, as the archive states it.
    size: u64,
    /// Its size in the archive, as that states it.
    packed: u64,
}

impl Archive {
    /// Reads the directory of an archive.
    pub fn open(source: &Shared) -> Result<Archive> {
        let mut zip = zip(source)?;
        if zip.len() > MAX_TENSORS {
            return Err(limit(format!("the archive has more than {MAX_TENSORS} files")));
        }
        let mut members = HashMap::with_capacity(zip.len());
        for index in 0..zip.len() {
            let file = zip.by_index_raw(index).map_err(|error| wrong(format!("the archive is damaged: {error}")))?;
            if file.encrypted() {
                return Err(wrong(format!("{:?} in the archive is encrypted", file.name())));
            }
            let stored_at = file.data_start().filter(|_| file.compression() == CompressionMethod::Stored);
            let (size, packed) = (file.size(), file.compressed_size());
            members.insert(file.name().to_owned(), Member { index, stored_at, size, packed });
        }
        Ok(Archive { source: Arc::clone(source), zip, members: Arc::new(members) })
    }

    /// The names of its members, in the order of the archive.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<(usize, &str)> =
            self.members.iter().map(|(name, member)| (member.index, name.as_str())).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// The size of a member, as the archive states it.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.members.get(name).map(|member| member.size)
    }

    /// Opens a member.
    pub fn member(&self, name: &str) -> Result<Shared> {
        let member = self.members.get(name).ok_or_else(|| wrong(format!("the archive has no {name:?}")))?;
        if let Some(at) = member.stored_at {
            return part(&self.source, at, member.size);
        }
        let bytes = self.unpacked(*member, name, member.size)?;
        if bytes.len() as u64 != member.size {
            return Err(wrong(format!("{name:?} unpacks to {} bytes, not {} as stated", bytes.len(), member.size)));
        }
        Ok(Arc::new(bytes))
    }

    /// The first bytes of a member, at most `most`.
    pub fn beginning(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let member = self.members.get(name).ok_or_else(|| wrong(format!("the archive has no {name:?}")))?;
        self.unpacked(*member, name, member.size.min(most))
    }

    /// The first bytes of a member; fewer if it has fewer.
    fn unpacked(&self, member: Member, name: &str, length: u64) -> Result<Vec<u8>> {
        let packed = member.packed.min(self.source.length());
        let most = most_of(packed);
        if length > most {
            let why = format!("{name:?} unpacks from {packed} to {length} bytes; the limit is {most}");
            return Err(limit(why));
        }
        memory::admit(length as usize)?;
        let at = |why: &dyn std::fmt::Display| wrong(format!("{name:?} in the archive: {why}"));
        let mut zip = self.zip.clone();
        let file = zip.by_index(member.index).map_err(|error| at(&error))?;
        let mut bytes = Vec::new();
        // Not more than it has: a vector that grows takes up to twice as much.
        bytes
            .try_reserve_exact(length as usize)
            .map_err(|_| limit(format!("no memory for {length} bytes of {name:?}")))?;
        file.take(length).read_to_end(&mut bytes).map_err(|error| at(&error))?;
        Ok(bytes)
    }
}

fn zip(source: &Shared) -> Result<ZipArchive<Cursor>> {
    ZipArchive::new(Cursor::new(source)).map_err(|error| wrong(format!("not a valid zip archive: {error}")))
}

/// Most bytes that a member of so many packed bytes unpacks to.
fn most_of(packed: u64) -> u64 {
    packed.saturating_mul(MAX_RATIO).clamp(MAX_OF_ANY, MAX_UNPACKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_member_does_not_unpack_to_the_largest_tensor() {
        let largest = MAX_TENSOR_BYTES as u64;
        for (packed, most) in [
            (0, MAX_OF_ANY),
            (8_000_000, MAX_OF_ANY),
            (100_000_000, 6_400_000_000),
            (largest / 2, MAX_UNPACKED),
            (u64::MAX, MAX_UNPACKED),
        ] {
            assert_eq!(most_of(packed), most, "{packed}");
        }
    }
}
