//! FusedPadConv2D and FusedResizeAndPadConv2D: a convolution of images that are padded by their mirror images, and resized
//! before that.

use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::call::{input_dtype, one, take};
use super::super::{HostKernel, Inputs, KernelNode, Registry, cast, compile};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("FusedPadConv2D", |node| {
        Ok(Fused::of(node, None)?.map(|mut fused| -> HostKernel {
            Box::new(move |inputs| {
                let [images, paddings, filter] = take(inputs)?;
                fused.convolved(images, paddings, filter).map(one)
            })
        }))
    });
    ops.insert("FusedResizeAndPadConv2D", |node| {
        let fused = Fused::of(node, Some(node.attrs.bool("resize_align_corners")?))?;
        Ok(fused.map(|mut fused| -> HostKernel {
            Box::new(move |inputs| {
                let [images, size, paddings, filter] = take(inputs)?;
                let images = fused.resized(images, size)?;
                fused.convolved(images, paddings, filter).map(one)
            })
        }))
    });
}

struct Fused {
    dtype: DType,
    resize: Option<HostKernel>,
    pad: HostKernel,
    convolve: HostKernel,
}

/// The kernel of a part.
fn part(node: &KernelNode, op: &str, attrs: &Attrs, inputs: &[DType], output: DType) -> Result<HostKernel> {
    let outputs = [OutputType { dtype: output, is_ref: false }];
    let node = KernelNode { name: node.name, op, attrs, inputs, outputs: &outputs, constants: 0 };
    compile(&node)?.ok_or_else(|| Failure::new(Code::Internal, format!("{op} has no kernel")))
}

impl Fused {
    fn of(node: &KernelNode, aligned: Option<bool>) -> Result<Option<Fused>> {
        let dtype = input_dtype(node, 0)?;
        if !dtype.is_float() {
            return Ok(None);
        }
        let (mode, strides) = (node.attrs.str("mode")?, node.attrs.ints("strides")?.to_vec());
        if strides.len() != 4 {
            return Err(Failure::invalid("Sliding window strides field must specify 4 dimensions"));
        }
        if strides[0] != 1 || strides[3] != 1 {
            return Err(Failure::invalid(
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            ));
        }
        let pad = Attrs::from([
            ("T", Attr::Type(dtype)),
            ("Tpaddings", Attr::Type(DType::I32)),
            ("mode", Attr::Str(mode.as_bytes().to_vec())),
        ]);
        let convolve = Attrs::from([
            ("T", Attr::Type(dtype)),
            ("strides", Attr::Ints(strides)),
            ("use_cudnn_on_gpu", Attr::Bool(false)),
            ("padding", Attr::Str(node.attrs.bytes("padding")?.to_vec())),
            ("explicit_paddings", Attr::Ints(Vec::new())),
            ("data_format", Attr::Str(b"NHWC".to_vec())),
            ("dilations", Attr::Ints(vec![1, 1, 1, 1])),
        ]);
        let resize = |aligned| {
            let attrs = Attrs::from([
                ("T", Attr::Type(dtype)),
                ("align_corners", Attr::Bool(aligned)),
                ("half_pixel_centers", Attr::Bool(false)),
            ]);
            part(node, "ResizeBilinear", &attrs, &[dtype, DType::I32], DType::F32)
        };
        Ok(Some(Fused {
            dtype,
            resize: aligned.map(resize).transpose()?,
            pad: part(node, "MirrorPad", &pad, &[dtype, DType::I32], dtype)?,
            convolve: part(node, "Conv2D", &convolve, &[dtype, dtype], dtype)?,
        }))
    }

    fn resized(&mut self, images: Tensor, size: Tensor) -> Result<Tensor> {
        let Some(resize) = &mut self.resize else { return Ok(images) };
        cast(first(resize(Inputs::from_iter([images, size]))?)?, self.dtype)
    }

    fn convolved(&mut self, images: Tensor, paddings: Tensor, filter: Tensor) -> Result<Tensor> {
        if images.rank() != 4 {
            return Err(Failure::invalid(format!("input must be 4-dimensional, got shape {}", images.shape())));
        }
        let padded = first((self.pad)(Inputs::from_iter([images, paddings]))?)?;
        first((self.convolve)(Inputs::from_iter([padded, filter]))?)
    }
}

fn first(outputs: super::super::Outputs) -> Result<Tensor> {
    outputs.into_iter().next().ok_or_else(|| Failure::new(Code::Internal, "a kernel gave no output"))
}
