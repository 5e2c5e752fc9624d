//! The ops of datasets whose elements are the records of files.

use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Compression, Format};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::dataset::{Spec, files};
use super::dataset::of_elements;
use super::named::Site;
use super::op::{StateInputs, StateOp};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("TextLineDataset", |node, site| {
        records(node, site, |inputs| {
            let compression = compression(&inputs.host(1)?)?;
            size(inputs, 2, "buffer_size", 0, BY_DEFAULT)?;
            Ok((Format::Lines { header: 0, compression }, Vec::new()))
        })
    });
    ops.insert("TFRecordDataset", |node, site| records(node, site, |inputs| Ok((tf_record(inputs)?, Vec::new()))));
    ops.insert("TFRecordDatasetV2", |node, site| {
        records(node, site, |inputs| Ok((tf_record(inputs)?, inputs.host(3)?.to_i64s()?)))
    });
    ops.insert("FixedLengthRecordDataset", |node, site| {
        records(node, site, |inputs| Ok((fixed(inputs, Compression::None)?, Vec::new())))
    });
    ops.insert("FixedLengthRecordDatasetV2", |node, site| {
        records(node, site, |inputs| {
            let compression = compression(&inputs.host(5)?)?;
            Ok((fixed(inputs, compression)?, Vec::new()))
        })
    });
}

/// A dataset of the records of files, with the format, and the offsets in the files, that `read` returns for the inputs.
fn records(
    node: &KernelNode,
    site: &Site,
    read: impl Fn(&mut StateInputs) -> Result<(Format, Vec<i64>)> + Send + Sync + 'static,
) -> Result<StateOp> {
    let spec = Spec { types: vec![DType::String], shapes: vec![PartialShape(Some(Vec::new()))] };
    let folder = site.folder(node);
    of_elements(node, spec, move |inputs| {
        let names = inputs.host(0)?;
        if names.rank() > 1 {
            return Err(Failure::invalid("`filenames` must be a scalar or a vector."));
        }
        let (format, offsets) = read(inputs)?;
        let names = names.slice::<Vec<u8>>()?.to_vec();
        if !offsets.is_empty() && offsets.len() != names.len() {
            return Err(Failure::invalid("The number of `byte_offsets` must match the number of `filenames`."));
        }
        let offsets = offsets.into_iter().map(u64::try_from).collect::<std::result::Result<_, _>>();
        let offsets = offsets.map_err(|_| Failure::invalid("`byte_offsets` must be >= 0"))?;
        Ok(files::records(names, offsets, format, folder.clone()))
    })
}

const BY_DEFAULT: &str = " (0 == default)";

fn tf_record(inputs: &mut StateInputs) -> Result<Format> {
    let compression = compression(&inputs.host(1)?)?;
    // -1 lets the dataset decide.
    size(inputs, 2, "buffer_size", -1, BY_DEFAULT)?;
    Ok(Format::TfRecord(compression))
}

fn fixed(inputs: &mut StateInputs, compression: Compression) -> Result<Format> {
    let (header, record) = (size(inputs, 1, "header_bytes", 0, "")?, size(inputs, 2, "record_bytes", 1, "")?);
    let footer = size(inputs, 3, "footer_bytes", 0, "")?;
    size(inputs, 4, "buffer_size", 0, BY_DEFAULT)?;
    Ok(Format::Fixed { header, record, footer, hop: record, compression })
}

fn size(inputs: &mut StateInputs, index: usize, name: &str, least: i64, note: &str) -> Result<usize> {
    let size = inputs.number(index)?;
    let fits = (size >= least).then(|| usize::try_from(size).unwrap_or(0));
    let sign = if least > 0 { "> 0" } else { ">= 0" };
    fits.ok_or_else(|| Failure::invalid(format!("`{name}` must be {sign}{note}")))
}

fn compression(name: &Tensor) -> Result<Compression> {
    let name = name.item::<Vec<u8>>()?;
    let known = std::str::from_utf8(&name).ok().and_then(|name| Compression::named(name).ok());
    known.ok_or_else(|| Failure::invalid("Unsupported compression_type."))
}
