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
            members.insert(file.name().to_owned(), Member { index, stored_at, size: file.size() });
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
        if length > MAX_UNPACKED {
            return Err(limit(format!("{name:?} unpacks to {length} bytes; the limit is {MAX_UNPACKED}")));
        }
        memory::admit(length as usize)?;
        let at = |why: &dyn std::fmt::Display| wrong(format!("{name:?} in the archive: {why}"));
        let mut zip = self.zip.clone();
        let file = zip.by_index(member.index).map_err(|error| at(&error))?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes).map_err(|error| at(&error))?;
        Ok(bytes)
    }
}

fn zip(source: &Shared) -> Result<ZipArchive<Cursor>> {
    ZipArchive::new(Cursor::new(source)).map_err(|error| wrong(format!("not a valid zip archive: {error}")))
}
