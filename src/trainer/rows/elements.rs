//! Contiguous examples of one size: .npy and .npz, safetensors, idx.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::npy::Head;
use meshtf_tensor::{Tensor, safetensors};
use meshtf_train::data::{FilePart, Member, chosen, find_npz, idx_head};

use super::{DataFile, Pieces};

/// Bytes in which the header of an array is searched.
const START: u64 = 1 << 17;

#[derive(Debug)]
pub(super) struct Elements {
    file: DataFile,
    head: Head,
}

impl Elements {
    /// Finds the elements of a file; `None` if they are not contiguous.
    ///
    /// # Errors
    /// The fault of its header.
    pub fn find(file: &DataFile, named: &FilePart) -> Result<Option<Elements>> {
        let (start, length, part) = (file.some(0, START)?, file.length(), named.part.as_deref());
        let of = |file: &DataFile, head: Option<Head>| head.map(|head| Elements { file: file.clone(), head });
        if start.starts_with(b"PK") || named.ends_with(".npz") {
            return match find_npz(file.reader(), part, |packed| DataFile::unpacked(packed))? {
                Member::Stored { begin, length } => {
                    let head = Head::read(&file.some(begin, START.min(length))?, length)?;
                    Ok(of(file, head.map(|head| head.behind(begin))))
                }
                Member::Packed(file) => Ok(of(&file, Head::read(&file.some(0, START)?, file.length())?)),
            };
        }
        if named.ends_with(".safetensors") {
            let header = file.some(0, safetensors::header_bytes(&start)? as u64)?;
            let mut heads = safetensors::heads(&header, length)?;
            let names: Vec<&str> = heads.iter().map(|(name, _)| name.as_str()).collect();
            let place = chosen(&names, part, "tensor")?;
            return Ok(of(file, heads.swap_remove(place).1));
        }
        if part.is_some() {
            return Ok(None);
        }
        match start.starts_with(b"\x93NUMPY") || named.ends_with(".npy") {
            true => Ok(of(file, Head::read(&start, length)?)),
            false => Ok(of(file, idx_head(&start, length)?)),
        }
    }
}

impl Pieces for Elements {
    fn count(&self) -> usize {
        self.head.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let size = self.head.example_bytes();
        let bytes = size.checked_mul(places.len()).ok_or_else(|| Failure::invalid("a batch is larger than memory"))?;
        memory::admit(bytes)?;
        let mut raw = vec![0; bytes];
        for (&place, row) in places.iter().zip(raw.chunks_exact_mut(size.max(1))) {
            self.file.read(self.head.offset(place), row)?;
        }
        self.head.examples(places.len(), &raw)
    }
}
