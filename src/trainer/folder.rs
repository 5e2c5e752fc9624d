//! A folder of images, or of texts, with one folder for each class.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use meshtf_tensor::Tensor;
use meshtf_train::data::{FilePart, Images, Resizing, kind_of};

use super::rows::decoded;

/// The extensions of image files.
const ENDINGS: &[&str] = &["png", "jpg", "jpeg", "bmp", "gif"];

/// The files of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
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

    /// One, with its article.
    fn one(self) -> &'static str {
        match self {
            FileKind::Images => "an image",
            FileKind::Texts => "a .txt file",
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

/// Bytes by which the kind of another file is known.
const START: u64 = 4096;

/// The images of a folder, class after class, by name.
#[derive(Debug)]
pub struct ImageFolder {
    /// The names of the classes' folders; none for images that are not in such folders.
    pub classes: Vec<String>,
    /// The files, and the indices of their classes.
    pub images: Vec<(PathBuf, usize)>,
}

impl ImageFolder {
    /// Lists a folder of images, or one with a folder of images for each class; or takes a single image. Hidden files and
    /// those that systems leave in folders are ignored.
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
        let (one, _) = kind.names();
        // New images have no class, and may be a single file.
        if path.is_file() && is_image(path) {
            return Ok(ImageFolder { classes: Vec::new(), images: vec![(path.to_owned(), 0)] });
        }
        if path.is_file() {
            return Err(format!(
                "this is a file; expected a folder of {one}s, with a folder for each class, or {}",
                kind.one()
            ));
        }
        let folders = entries(path)?;
        if !folders.is_empty() && folders.iter().all(|(_, path)| path.is_file() && is_image(path)) {
            let images = folders.into_iter().map(|(_, path)| (path, 0)).collect();
            return Ok(ImageFolder { classes: Vec::new(), images });
        }
        let is_flat = !folders.iter().any(|(_, path)| path.is_dir());
        if let Some((name, path)) = folders.iter().find(|(_, path)| is_flat && !is_image(path)) {
            return Err(refused(name, path, kind));
        }
        let mut folder = ImageFolder { classes: Vec::new(), images: Vec::new() };
        for (name, path) in folders.into_iter().filter(|(_, path)| path.is_dir()) {
            let class = folder.classes.len();
            let files = entries(&path).map_err(|why| format!("{name}: {why}"))?;
            let before = folder.images.len();
            for (file, path) in files {
                if !is_image(&path) {
                    return Err(refused(&format!("{name}/{file}"), &path, kind));
                }
                folder.images.push((path, class));
            }
            if folder.images.len() == before {
                return Err(format!("the class {name} has no {one}"));
            }
            folder.classes.push(name);
        }
        match folder.classes.is_empty() {
            true => Err(format!("it contains neither {one}s nor folders of {one}s")),
            false => Ok(folder),
        }
    }

    /// The images, `[images, height, width, channels]` of uint8.
    ///
    /// # Errors
    /// Names the file that is not an image, or whose size differs from the first one's.
    pub fn read(&self, channels: usize, resizing: Option<Resizing>) -> Result<Tensor, String> {
        let files = self.named_images();
        decoded(&files.iter().collect::<Vec<_>>(), Images::resized(channels, resizing))
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
pub fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
    ENDINGS.contains(&ending.as_str())
}

/// The error for a file that is an image by its content, and of a format that is not read.
pub fn other_image(name: &str, path: &Path) -> Option<String> {
    if !path.is_file() || is_image(path) {
        return None;
    }
    content(path).is_ok_and(|content| content.ends_with(" image")).then(|| refused(name, path, FileKind::Images))
}

/// The kind of a file's content.
fn content(path: &Path) -> std::io::Result<String> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(START).read_to_end(&mut start)?;
    Ok(kind_of(&start))
}

/// The error for a file, or a folder, where an image or a text is expected.
pub fn refused(name: &str, path: &Path, kind: FileKind) -> String {
    let (one, endings) = kind.names();
    let expected = format!("expected {one}s, {endings}");
    let article = if one == "image" { "an" } else { "a" };
    if path.is_dir() {
        return format!("{name} is a folder; {expected}");
    }
    match content(path) {
        Ok(content) if content.ends_with(" image") => format!("{name} is {content} by its content; {expected}"),
        Ok(content) => format!("{name} is not {article} {one}: it is {content}; {expected}"),
        Err(error) => format!("{name}: {error}"),
    }
}

/// Whether an entry of a folder is hidden, or left by Windows, macOS or a storage device.
fn is_ignored(name: &str) -> bool {
    const LEFT: [&str; 6] = ["thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"];
    name.starts_with('.') || LEFT.contains(&name.to_lowercase().as_str())
}

/// The visible entries of a folder, by name.
fn entries(path: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_ignored(&name) {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}
