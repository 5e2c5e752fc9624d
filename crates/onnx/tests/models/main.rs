//! Models that are read and run on a device in one process: onnx's own cases, whole models, hostile files, and the table of
//! operators.

mod check;
mod device;
mod docs;
mod folder;
mod hostile;
mod recorded;

use std::ops::Range;
use std::path::Path;

/// The files in the folder of a model, which may have its weights.
pub fn beside(folder: &Path) -> impl FnMut(&str, Range<u64>) -> meshtf_tensor::failure::Result<Vec<u8>> + '_ {
    move |file, range| {
        let read = std::fs::read(folder.join(file));
        let part = |bytes: Vec<u8>| {
            let place = |at: u64| at.min(bytes.len() as u64) as usize;
            bytes[place(range.start)..place(range.end)].to_vec()
        };
        read.map(part).map_err(|error| meshtf_tensor::failure::Failure::invalid(format!("{file}: {error}")))
    }
}
