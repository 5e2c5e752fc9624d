//! RecordInput: records of the TFRecord files that match a pattern, in random order.

use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Compression, Format};
use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::resource::{RecordFiles, RecordInput};
use super::files::matching;
use super::named::{Named, Site};
use super::op::{StateOp, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RecordInput", records);
}

fn records(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let positive = |name: &str| {
        let number = node.attrs.int(name)?;
        let wanted = usize::try_from(number).ok().filter(|&number| number > 0);
        wanted.ok_or_else(|| Failure::invalid(format!("{name} must be positive, got {number}")))
    };
    let of = RecordFiles {
        folder: site.folder(node),
        pattern: node.attrs.bytes("file_pattern")?.to_vec(),
        format: Format::TfRecord(Compression::named(node.attrs.str("compression_type")?)?),
        shift: node.attrs.float("file_shuffle_shift_ratio")?.into(),
        buffered: positive("file_buffer_size")?,
    };
    // The same for every signature that has the node.
    let mut named = Named::of_session(&format!("records of {}", node.name), site);
    let (count, seed) = (positive("batch_size")?, node.attrs.int("file_random_seed")? as u64);
    simple(move |_, _| {
        let input = named.find(|_| RecordInput::new(of.clone(), seed, files))?;
        Ok(one(Tensor::vector(turn::in_part(|| input.take(count))?)))
    })
}

/// The files of a list of patterns, separated by commas.
fn files(of: &RecordFiles) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for pattern in of.pattern.split(|&byte| byte == b',') {
        matching(&of.folder, pattern, &mut names)?;
    }
    // The order of a folder differs between systems.
    names.sort();
    Ok(names)
}
