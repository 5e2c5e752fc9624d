//! Models that are read and run on a device in one process: onnx's own cases, whole models, and hostile files.

mod cases;
mod device;

use std::path::Path;

/// The file in the folder of a model that has a weight.
pub fn beside(folder: &Path) -> impl FnMut(&str) -> meshtf_tensor::failure::Result<Vec<u8>> + '_ {
    move |file| {
        std::fs::read(folder.join(file)).map_err(|error| meshtf_tensor::failure::Failure::invalid(format!("{file}: {error}")))
    }
}
