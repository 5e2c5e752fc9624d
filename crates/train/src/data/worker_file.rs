//! A file of examples that is stored on the tasks that train, not where the training is started.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::npy::Head;
use meshtf_tensor::{DType, PartialShape, Shape};

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
}
