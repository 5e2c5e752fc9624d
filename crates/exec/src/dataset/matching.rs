//! A dataset of the names of files that match patterns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::sync::Arc;

use meshtf_kernels::files::{Folder, MAX_ENTRIES, is_match};
use meshtf_loops::turn::Pace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Element, Elements, Parts, Pull, UNKNOWN};

/// Characters with a special meaning in a pattern.
const SPECIAL: [char; 4] = ['*', '?', '[', '\\'];

/// The names of the files that match each pattern, by name within each folder. Folders are read when names are asked for.
///
/// # Errors
/// InvalidArgument if a pattern is not UTF-8.
pub(crate) fn matching(patterns: &[Vec<u8>], folder: Folder) -> Result<Parts> {
    let text = |pattern: &Vec<u8>| String::from_utf8(pattern.clone());
    let patterns = patterns.iter().map(text).collect::<std::result::Result<Vec<_>, _>>();
    let patterns = Arc::new(patterns.map_err(|_| Failure::invalid("a pattern of file names is not UTF-8"))?);
    Ok(Parts::new(UNKNOWN, move |_| {
        Ok(Box::new(Matching {
            patterns: Arc::clone(&patterns),
            next: 0,
            pattern: String::new(),
            waiting: BinaryHeap::new(),
            entries: 0,
            has_found: false,
            folder: folder.clone(),
        }))
    }))
}

struct Matching {
    patterns: Arc<Vec<String>>,
    /// The index of the next pattern.
    next: usize,
    pattern: String,
    /// Files that match, and folders that are still to be read.
    waiting: BinaryHeap<Reverse<(String, bool)>>,
    entries: usize,
    has_found: bool,
    folder: Folder,
}

impl Elements for Matching {
    fn next(&mut self, _: &Pull) -> Result<Option<Element>> {
        loop {
            if let Some(Reverse((path, is_folder))) = self.waiting.pop() {
                if !is_folder {
                    self.has_found = true;
                    return Ok(Some(vec![Tensor::scalar(path.into_bytes()).into()]));
                }
                self.look_through(&path)?;
            } else if let Some(pattern) = self.patterns.get(self.next) {
                self.next += 1;
                self.entries = 0;
                let fixed = &pattern[..pattern.find(SPECIAL).unwrap_or(pattern.len())];
                let (folder, pattern) = match fixed.rfind('/') {
                    Some(0) => ("/", pattern.clone()),
                    Some(end) => (&fixed[..end], pattern.clone()),
                    None => (".", format!("./{pattern}")),
                };
                self.waiting.push(Reverse((folder.to_owned(), true)));
                self.pattern = pattern;
            } else if self.has_found {
                return Ok(None);
            } else {
                return Err(Failure::new(Code::NotFound, "Don't find any matched files"));
            }
        }
    }
}

impl Matching {
    /// Adds the matching files of a folder, and the folders in which there may be more.
    fn look_through(&mut self, folder: &str) -> Result<()> {
        let Ok(listed) = fs::read_dir(self.folder.get()?.resolve(folder.as_bytes())?) else { return Ok(()) };
        let fixed = &self.pattern[..self.pattern.find(SPECIAL).unwrap_or(self.pattern.len())];
        let depth = self.pattern.matches('/').count();
        let mut pace = Pace::new();
        for entry in listed.flatten() {
            pace.go(5000);
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                let why = format!("a pattern is held against more than {MAX_ENTRIES} files, which is the limit");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            let Ok(own) = entry.file_name().into_string() else { continue };
            let slash = if folder.ends_with('/') { "" } else { "/" };
            let path = format!("{folder}{slash}{own}");
            // A link may lead out of the folder, so it is not followed.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !path.starts_with(fixed) || is_folder && path.matches('/').count() >= depth {
                continue;
            }
            if is_folder || is_match_of_path(&self.pattern, &path) {
                self.waiting.push(Reverse((path, is_folder)));
            }
        }
        Ok(())
    }
}

/// Whether each part of a path matches the same part of the pattern.
fn is_match_of_path(pattern: &str, path: &str) -> bool {
    let (pattern, path) = (pattern.split('/'), path.split('/'));
    pattern.clone().count() == path.clone().count() && pattern.zip(path).all(|(part, name)| is_match(part, name))
}
