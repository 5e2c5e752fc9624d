//! Images of a folder, decoded when they are taken or held in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{PartialShape, Tensor};
use meshtf_train::data::{Augment, Column, Examples, ImageOptions, Images, Resizing};
use meshtf_train::file::DataSource;

use super::super::folder::ImageFolder;
use super::super::source::{channels, read};
use super::{FileRows, Pieces, Takes};

/// Maximum number of threads that decode images.
const MAX_THREADS: usize = 16;
/// Number of images that are decoded before they are appended to the others.
const BLOCK: usize = 256;

/// The random changes of images, and the seed that is used unless they have their own.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    pub augment: Augment,
    pub seed: u64,
}

/// The images of a folder for a placeholder, if they are read as they are taken: their decoded size exceeds `held` bytes, or
/// they are augmented. `None` if they are held in memory as they are fed.
///
/// # Errors
/// Names the image that is not valid, as far as they were checked.
pub(in super::super) fn open(
    folder: &ImageFolder,
    source: &DataSource,
    takes: &Takes,
    seed: u64,
    held: u64,
) -> std::result::Result<Option<FileRows>, String> {
    let (channels, resizing) = (channels(&takes.shape)?, resizing(source, &takes.shape)?);
    let pieces: Box<dyn Pieces> = match ImageRows::of(folder.named_images(), channels, resizing, held)? {
        Some(images) => Box::new(images),
        None if source.images.augment.is_some() => Box::new(HeldPieces::of(folder.read(channels, resizing)?)?),
        None => return Ok(None),
    };
    FileRows::of_source(source, pieces, takes, seed).map(Some)
}

/// The size that images get: the stated one, or that of the placeholder. `None` if neither is known; then all have the size of
/// the first.
///
/// # Errors
/// If there are options that need it.
pub(in super::super) fn resizing(
    source: &DataSource,
    shape: &PartialShape,
) -> std::result::Result<Option<Resizing>, String> {
    let own = match shape.0.as_deref() {
        Some(&[_, Some(height), Some(width), _]) => Some([height, width]),
        _ => None,
    };
    let ImageOptions { resize, interpolation, .. } = source.images;
    match source.size.or(own) {
        Some(size) => Ok(Some(Resizing { size, resize, interpolation })),
        None if (resize, interpolation) == Default::default() => Ok(None),
        None => Err(format!(
            "\"resize\" and \"interpolation\" need a size: state \"size\": [HEIGHT, WIDTH], or the height and width of the \
             placeholder, whose shape is {shape}"
        )),
    }
}

/// Images that take too much memory together.
#[derive(Debug)]
struct ImageRows {
    /// The files, each with its name in messages.
    files: Vec<(PathBuf, String)>,
    channels: usize,
    /// The height and width of all.
    size: [usize; 2],
    resizing: Option<Resizing>,
}

impl ImageRows {
    /// Images that take more than `held` bytes together in decoded form; `None` if they take no more.
    ///
    /// # Errors
    /// Names the first image if it is not valid.
    fn of(
        files: Vec<(PathBuf, String)>,
        channels: usize,
        resizing: Option<Resizing>,
        held: u64,
    ) -> std::result::Result<Option<ImageRows>, String> {
        if files.is_empty() {
            return Ok(None);
        }
        let first = decoded(&[&files[0]], Images::resized(channels, resizing))?;
        let bytes = (first.len() as u64).saturating_mul(files.len() as u64);
        let size = [first.dims()[1], first.dims()[2]];
        Ok((bytes > held).then_some(ImageRows { files, channels, size, resizing }))
    }
}

impl Pieces for ImageRows {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let images = Images::of_size(self.channels, self.resizing, self.size);
        let files: Vec<&(PathBuf, String)> = places.iter().map(|&place| &self.files[place]).collect();
        decoded(&files, images).map_err(Failure::invalid)
    }
}

/// Examples in memory in the form of their files: images as uint8, since they are augmented before they are scaled.
#[derive(Debug)]
pub(in super::super) struct HeldPieces(Examples);

impl HeldPieces {
    /// Of a tensor whose first dimension is the examples.
    pub fn of(all: Tensor) -> std::result::Result<HeldPieces, String> {
        let column = Column::Held(all);
        Examples::of(vec![(String::new(), column)]).map(HeldPieces).map_err(|failure| failure.message)
    }
}

impl Pieces for HeldPieces {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        Ok(self.0.take(places, &[places.len()])?.remove(0))
    }
}

/// Decodes files on all cores; the images are in the order of the files.
///
/// # Errors
/// Names the first file that is not an image, or whose size differs from the others'.
pub(in super::super) fn decoded(
    files: &[&(PathBuf, String)],
    mut images: Images,
) -> std::result::Result<Tensor, String> {
    for block in files.chunks(BLOCK) {
        let decoded = in_parallel(block, |(path, _)| {
            read(path).and_then(|bytes| images.decode(&bytes).map_err(|failure| failure.message))
        });
        for (image, (_, name)) in decoded.into_iter().zip(block) {
            let added = image.and_then(|image| images.push(&image).map_err(|failure| failure.message));
            added.map_err(|why| format!("{name}: {why}"))?;
        }
    }
    images.finish().map_err(|failure| failure.message)
}

/// The results of some work for each item, in their order, computed by several threads.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len()).min(MAX_THREADS);
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let (next, budget) = (AtomicUsize::new(0), Budget::current());
    let some = || {
        budget.run(|| {
            let mut own = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else { return own };
                own.push((at, work(item)));
            }
        })
    };
    let mut all = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(some)).collect();
        let mut all = some();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}
