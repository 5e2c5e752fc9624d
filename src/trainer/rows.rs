//! A large .npy file whose examples are read as they are taken: it may be larger than memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::source::fitted;
use crate::data::Rows;
use crate::failure::{Failure, Result};
use crate::memory;
use crate::tensor::npy::Head;
use crate::tensor::{DType, PartialShape, Tensor};

/// A file of at most this many bytes is held in memory.
pub(super) const MAX_HELD: u64 = 64 << 20;
/// Bytes in which the header of a file is looked for.
const START: u64 = 1 << 17;

/// The examples of a file, as a placeholder takes them.
#[derive(Debug)]
pub(super) struct FileRows {
    name: String,
    file: Mutex<File>,
    head: Head,
    dtype: DType,
    shape: PartialShape,
    scale: Option<f64>,
    /// The shape of an example.
    example: Vec<usize>,
}

impl FileRows {
    /// Opens a file, unless it is of at most `held` bytes, or no .npy file whose examples lie one behind the other.
    ///
    /// # Errors
    /// What is wrong with it, or with its first example.
    pub fn open(
        path: &Path,
        dtype: DType,
        shape: &PartialShape,
        scale: Option<f64>,
        held: u64,
    ) -> std::result::Result<Option<FileRows>, String> {
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        let length = file.metadata().map_err(|error| error.to_string())?.len();
        if length <= held {
            return Ok(None);
        }
        let mut start = Vec::new();
        Read::by_ref(&mut file).take(START).read_to_end(&mut start).map_err(|error| error.to_string())?;
        let Some(head) = Head::read(&start, length).map_err(|failure| failure.message)? else { return Ok(None) };
        let (name, shape) = (path.display().to_string(), shape.clone());
        let mut rows = FileRows { name, file: Mutex::new(file), head, dtype, shape, scale, example: Vec::new() };
        if rows.head.count() > 0 {
            let first = rows.read(&[0]).map_err(|failure| failure.message)?;
            rows.example = first.dims()[1..].to_vec();
        }
        Ok(Some(rows))
    }
}

impl Rows for FileRows {
    fn count(&self) -> usize {
        self.head.count()
    }

    fn example(&self) -> (DType, &[usize]) {
        (self.dtype, &self.example)
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let at = |why: &dyn std::fmt::Display| Failure::invalid(format!("{}: {why}", self.name));
        let size = self.head.example_bytes();
        let bytes = size.checked_mul(places.len()).ok_or_else(|| at(&"a batch is larger than memory"))?;
        memory::admit(bytes)?;
        let mut raw = vec![0; bytes];
        if size > 0 {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            for (place, row) in places.iter().zip(raw.chunks_exact_mut(size)) {
                let read = file.seek(SeekFrom::Start(self.head.offset(*place))).and_then(|_| file.read_exact(row));
                read.map_err(|error| at(&format!("example {place}: {error}")))?;
            }
        }
        let fit = |raw: Tensor| fitted(raw, self.dtype, &self.shape, self.scale);
        fit(self.head.examples(places.len(), &raw)?).map_err(|why| {
            let is_wrong = |own: &[u8]| self.head.examples(1, own).is_ok_and(|one| fit(one).is_err());
            match raw.chunks_exact(size.max(1)).position(is_wrong) {
                Some(i) => at(&format!("example {}: {why}", places[i])),
                None => at(&why),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::{Column, Examples};
    use crate::tensor::npy;

    /// Examples of a file over the limit are those of the file, whichever are asked for, and split as those in memory are.
    #[test]
    fn a_large_file_is_read_as_it_is_taken() {
        let folder = temp_dir::TempDir::new().unwrap();
        let values: Vec<f32> = (0..40 * 6).map(|i| i as f32 / 8.0).collect();
        let all = Tensor::from_vec([40, 6], values);
        let path = folder.child("large.npy");
        std::fs::write(&path, npy::write(&all).unwrap()).unwrap();
        let takes = |shape: &[Option<usize>]| PartialShape(Some(shape.to_vec()));
        let open = |shape: &PartialShape, held| FileRows::open(&path, DType::F64, shape, Some(2.0), held);
        let shape = takes(&[None, Some(2), Some(3)]);
        assert!(open(&shape, 2000).unwrap().is_none());
        let rows = open(&shape, 100).unwrap().expect("it is large");
        assert_eq!((rows.count(), rows.example()), (40, (DType::F64, &[2, 3][..])));
        let far = Examples::of(vec![("x".to_owned(), Column::Elsewhere(Arc::new(rows)))]).unwrap();
        let held = Examples::new(vec![("x".to_owned(), all)]).unwrap();
        assert_eq!(far.example_bytes().unwrap(), 48);
        let same = |far: &Examples, held: &Examples, places: &[usize]| {
            let (taken, wanted) =
                (far.take(places, &[places.len()]).unwrap(), held.take(places, &[places.len()]).unwrap());
            assert_eq!(taken[0].dims(), [places.len(), 2, 3]);
            let wanted: Vec<f64> = wanted[0].slice::<f32>().unwrap().iter().map(|&x| 2.0 * f64::from(x)).collect();
            assert_eq!(taken[0].slice::<f64>().unwrap(), wanted);
        };
        same(&far, &held, &[39, 0, 7, 7]);
        let ((far_kept, far_out), (kept, out)) = (far.split(0.25, 3).unwrap(), held.split(0.25, 3).unwrap());
        assert_eq!((far_kept.len(), far_out.len(), kept.len(), out.len()), (30, 10, 30, 10));
        same(&far_kept, &kept, &[0, 15, 29]);
        same(&far_out, &out, &[9, 0]);
        let refused = open(&takes(&[None, Some(5)]), 100).unwrap_err();
        assert!(refused.contains("takes [5]"), "{refused}");
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        let refused = open(&shape, 100).unwrap_err();
        assert!(refused.contains("takes 960 bytes"), "{refused}");
        // A value that does not fit is said with its example.
        let mut values: Vec<f32> = (0..40 * 6).map(|i| i as f32).collect();
        values[7 * 6 + 2] = 0.5;
        std::fs::write(&path, npy::write(&Tensor::from_vec([40, 6], values)).unwrap()).unwrap();
        let rows = FileRows::open(&path, DType::U8, &shape, None, 100).unwrap().expect("it is large");
        let refused = rows.read(&[3, 7, 0]).unwrap_err();
        assert!(refused.message.contains("example 7: the placeholder takes uint8, which cannot hold 0.5"), "{refused}");
        // What is no .npy file is read as a whole.
        std::fs::write(&path, vec![b'1'; 200]).unwrap();
        assert!(open(&shape, 100).unwrap().is_none());
    }
}
