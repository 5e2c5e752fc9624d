//! The ops of datasets whose elements are the records of files.

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_kernels::files::{Compression, Folder, Format};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::dataset::{Spec, files};
use super::dataset::of_elements;
use super::named::Site;
use super::op::StateOp;

const OPS: &[&str] = &[
    "TextLineDataset",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
];

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if !OPS.contains(&node.op) {
        return Ok(None);
    }
    let spec = Spec { types: vec![DType::String], shapes: vec![PartialShape(Some(Vec::new()))] };
    let folder = Folder::of(node.op, node.attrs, site.resources.data());
    let op = node.op.to_owned();
    of_elements(node, spec, move |inputs| {
        let names = inputs.host(0)?;
        if names.rank() > 1 {
            return Err(Failure::invalid("`filenames` must be a scalar or a vector."));
        }
        let is_fixed = op.starts_with("FixedLength");
        let compression = match (is_fixed, inputs.0.len()) {
            (false, _) => compression(&inputs.host(1)?)?,
            (true, 6) => compression(&inputs.host(5)?)?,
            (true, _) => Compression::None,
        };
        let mut size = |index: usize, name: &str, least: i64, note: &str| {
            let size = inputs.number(index)?;
            let fits = (size >= least).then(|| usize::try_from(size).unwrap_or(0));
            let sign = if least > 0 { "> 0" } else { ">= 0" };
            fits.ok_or_else(|| Failure::invalid(format!("`{name}` must be {sign}{note}")))
        };
        let by_default = " (0 == default)";
        let format = if is_fixed {
            let (header, record) = (size(1, "header_bytes", 0, "")?, size(2, "record_bytes", 1, "")?);
            let footer = size(3, "footer_bytes", 0, "")?;
            size(4, "buffer_size", 0, by_default)?;
            Format::Fixed { header, record, footer, hop: record, compression }
        } else {
            // -1 lets TFRecordDataset decide.
            size(2, "buffer_size", if op == "TextLineDataset" { 0 } else { -1 }, by_default)?;
            if op == "TextLineDataset" {
                Format::Lines { header: 0, compression }
            } else {
                Format::TfRecord(compression)
            }
        };
        let offsets = if op == "TFRecordDatasetV2" { inputs.host(3)?.to_i64s()? } else { Vec::new() };
        let names = names.slice::<Vec<u8>>()?.to_vec();
        if !offsets.is_empty() && offsets.len() != names.len() {
            return Err(Failure::invalid("The number of `byte_offsets` must match the number of `filenames`."));
        }
        let offsets = offsets.into_iter().map(u64::try_from).collect::<std::result::Result<_, _>>();
        let offsets = offsets.map_err(|_| Failure::invalid("`byte_offsets` must be >= 0"))?;
        Ok(files::records(names, offsets, format, folder.clone()))
    })
}

fn compression(name: &Tensor) -> Result<Compression> {
    let name = name.item::<Vec<u8>>()?;
    let known = std::str::from_utf8(&name).ok().and_then(|name| Compression::named(name).ok());
    known.ok_or_else(|| Failure::invalid("Unsupported compression_type."))
}
