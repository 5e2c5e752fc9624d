//! Models that are read and run on a device in one process: onnx's own cases, whole models, hostile files, and the table of
//! operators.

mod check;
mod device;
mod docs;
mod folder;
mod hostile;
mod recorded;

use std::path::Path;

/// The files in the folder of a model, which may have its weights.
pub fn beside(folder: &Path) -> impl FnMut(&str) -> meshtf_tensor::failure::Result<Vec<u8>> + '_ {
    move |file| {
        std::fs::read(folder.join(file))
            .map_err(|error| meshtf_tensor::failure::Failure::invalid(format!("{file}: {error}")))
    }
}
