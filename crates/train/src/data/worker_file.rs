//! A file of examples that is stored on the tasks that train, not where the training is started.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::npy::Head;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

/// A .npy file of examples on the workers, below the folder of each whose files graphs may use, and the conversion of its
/// examples to the input of a placeholder.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerFile {
    /// The path of the file in that folder.
    pub file: String,
    /// The dtype of the file's elements.
    pub dtype: DType,
    /// Whether they are little-endian.
    pub is_little_endian: bool,
    /// The shape of the file's tensor; its first size is the number of examples.
    pub shape: Vec<usize>,
    /// The offset of the elements in the file.
    pub begin: u64,
    /// The factor by which they are multiplied.
    pub scale: Option<f64>,
    /// The dtype that the placeholder takes.
    pub takes: DType,
    /// The shape of an example for the placeholder.
    pub example: Vec<usize>,
}

impl WorkerFile {
    /// The examples for a placeholder of this dtype and shape in a file with this beginning, which is as long as its header
    /// states.
    ///
    /// # Errors
    /// InvalidArgument if the examples do not fit the placeholder, or cannot be converted without reading each.
    pub fn of(file: &str, head: &Head, scale: Option<f64>, takes: DType, shape: &PartialShape) -> Result<WorkerFile> {
        let Some((dtype, is_little_endian)) = head.elements() else {
            return Err(Failure::invalid("its elements are not numbers that workers can read"));
        };
        let fits = dtype == takes && scale.is_none() || takes.is_float() && dtype != DType::U64 && dtype != DType::I64;
        if !fits || dtype == DType::BF16 {
            let times = if scale.is_some() { ", scaled" } else { "" };
            return Err(Failure::invalid(format!(
                "it is {dtype}{times}, and the placeholder takes {takes}; on workers, files are of the placeholder's dtype, or \
                 of numbers of at most 32 bits or floats for a placeholder of floats"
            )));
        }
        let own = head.shape()[1..].to_vec();
        let wanted: Option<Vec<usize>> = match &shape.0 {
            None => Some(own.clone()),
            Some(sizes) => sizes.get(1..).and_then(|sizes| sizes.iter().copied().collect()),
        };
        let example = wanted.unwrap_or_else(|| own.clone());
        let elements = |sizes: &[usize]| Shape::from(sizes.to_vec()).elements();
        let has_rank = shape.0.as_ref().is_none_or(|sizes| !sizes.is_empty() && sizes.len() == example.len() + 1);
        if elements(&example) != elements(&own) || !has_rank {
            let own = Shape::from(own);
            return Err(Failure::invalid(format!("an example has shape {own}, and the placeholder takes {shape}")));
        }
        let (begin, shape) = (head.offset(0), head.shape().to_vec());
        Ok(WorkerFile { file: file.to_owned(), dtype, is_little_endian, shape, begin, scale, takes, example })
    }

    /// The number of examples.
    pub fn count(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The dtype of the indices that are fed: the narrowest that has all of them, of uint16, int32 and int64.
    pub fn index_dtype(&self) -> DType {
        match self.count().saturating_sub(1) {
            last if u16::try_from(last).is_ok() => DType::U16,
            last if i32::try_from(last).is_ok() => DType::I32,
            _ => DType::I64,
        }
    }

    /// Indices, as they are fed.
    pub fn indices(&self, places: &[usize]) -> Tensor {
        match self.index_dtype() {
            DType::U16 => Tensor::vector(places.iter().map(|&place| place as u16).collect()),
            DType::I32 => Tensor::vector(places.iter().map(|&place| place as i32).collect()),
            _ => Tensor::vector(places.iter().map(|&place| place as i64).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_as_narrow_as_their_number_allows() {
        for (count, dtype, last) in [
            (1, DType::U16, Tensor::vector(vec![0u16])),
            (1 << 16, DType::U16, Tensor::vector(vec![u16::MAX])),
            ((1 << 16) + 1, DType::I32, Tensor::vector(vec![1i32 << 16])),
            (1 << 31, DType::I32, Tensor::vector(vec![i32::MAX])),
            ((1 << 31) + 1, DType::I64, Tensor::vector(vec![1i64 << 31])),
        ] {
            let file = WorkerFile {
                file: "x.npy".to_owned(),
                dtype: DType::F32,
                is_little_endian: true,
                shape: vec![count],
                begin: 0,
                scale: None,
                takes: DType::F32,
                example: Vec::new(),
            };
            assert_eq!((file.index_dtype(), file.indices(&[count - 1])), (dtype, last), "{count}");
        }
    }
}
