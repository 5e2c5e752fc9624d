//! A folder of images, or of texts, with one folder for each class.

use std::fs;
use std::path::{Path, PathBuf};

use meshtf_tensor::Tensor;
use meshtf_train::data::{FilePart, Images};

use super::source::read;

/// The extensions of image files.
const ENDINGS: &[&str] = &["png", "jpg", "jpeg", "bmp", "gif"];

/// The files of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Images,
    /// `.txt`, compressed or not.
    Texts,
}

impl FileKind {
    fn is_of(self, path: &Path) -> bool {
        match self {
            FileKind::Images => is_image(path),
            FileKind::Texts => FilePart { file: path.to_string_lossy().into_owned(), part: None }.is_text(),
        }
    }

    /// The name of one, and the endings of all.
    fn names(self) -> (&'static str, String) {
        match self {
            FileKind::Images => ("image", format!(".{}", ENDINGS.join(", ."))),
            FileKind::Texts => ("text", ".txt".to_owned()),
        }
    }
}

/// The images of a folder, class after class, by name.
#[derive(Debug)]
pub(crate) struct ImageFolder {
    /// The names of the classes' folders; none for images that are not in such folders.
    pub classes: Vec<String>,
    /// The files, and the indices of their classes.
    pub images: Vec<(PathBuf, usize)>,
}

impl ImageFolder {
    /// Lists a folder of images, or one with a folder of images for each class; or takes a single image. Hidden files are
    /// ignored.
    ///
    /// # Errors
    /// If the folder cannot be read or has no class, a class has no image, or a file is not an image.
    pub fn list(path: &Path) -> Result<ImageFolder, String> {
        ImageFolder::of(path, FileKind::Images)
    }

    /// As [`list`](ImageFolder::list), of images or of texts.
    ///
    /// # Errors
    /// Those of [`list`](ImageFolder::list).
    pub fn of(path: &Path, kind: FileKind) -> Result<ImageFolder, String> {
        let is_image = |path: &Path| kind.is_of(path);
        let (one, endings) = kind.names();
        // New images have no class, and may be a single file.
        if path.is_file() && is_image(path) {
            return Ok(ImageFolder { classes: Vec::new(), images: vec![(path.to_owned(), 0)] });
        }
        let folders = entries(path)?;
        if !folders.is_empty() && folders.iter().all(|(_, path)| path.is_file() && is_image(path)) {
            let images = folders.into_iter().map(|(_, path)| (path, 0)).collect();
            return Ok(ImageFolder { classes: Vec::new(), images });
        }
        let mut folder = ImageFolder { classes: Vec::new(), images: Vec::new() };
        for (name, path) in folders.into_iter().filter(|(_, path)| path.is_dir()) {
            let class = folder.classes.len();
            let files = entries(&path).map_err(|why| format!("{name}: {why}"))?;
            let before = folder.images.len();
            for (file, path) in files {
                if !is_image(&path) {
                    let article = if one == "image" { "an" } else { "a" };
                    return Err(format!("{name}/{file} is not {article} {one}; expected {endings}"));
                }
                folder.images.push((path, class));
            }
            if folder.images.len() == before {
                return Err(format!("the class {name} has no {one}"));
            }
            folder.classes.push(name);
        }
        match folder.classes.is_empty() {
            true => Err("it contains no folders; each class needs one".to_owned()),
            false => Ok(folder),
        }
    }

    /// The images, `[images, height, width, channels]` of uint8.
    ///
    /// # Errors
    /// Names the file that is not an image, or whose size differs from the first one's.
    pub fn read(&self, channels: usize, size: Option<[usize; 2]>) -> Result<Tensor, String> {
        let mut images = Images::new(channels, size);
        for (path, name) in self.named_images() {
            let added = read(&path).and_then(|bytes| images.add(&bytes).map_err(|failure| failure.message));
            added.map_err(|why| format!("{name}: {why}"))?;
        }
        images.finish().map_err(|failure| failure.message)
    }

    /// The images, each with its name in messages.
    pub fn named_images(&self) -> Vec<(PathBuf, String)> {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let named = |(path, class): &(PathBuf, usize)| match self.classes.get(*class) {
            Some(class) => (path.clone(), format!("{class}/{}", name(path))),
            None => (path.clone(), name(path)),
        };
        self.images.iter().map(named).collect()
    }

    /// The class of each image, `[images]` of int32.
    ///
    /// # Errors
    /// If the images have no classes.
    pub fn labels(&self) -> Result<Tensor, String> {
        match self.classes.is_empty() {
            true => Err("it contains no folders; each class needs one".to_owned()),
            false => Ok(Tensor::vector(self.images.iter().map(|(_, class)| *class as i32).collect())),
        }
    }
}

/// Whether a file is an image by its name.
pub(super) fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
    ENDINGS.contains(&ending.as_str())
}

/// The visible entries of a folder, by name.
fn entries(path: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}
