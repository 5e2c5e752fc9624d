//! Rules for attention: softmax(query · keyᵗ · scale) · value.

use burn_ir::AttentionOpIr;
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use crate::Lowering;
use crate::compose::{integers, number, sizes};
use crate::values::dtype;

impl Lowering<'_> {
    pub(super) fn attention(&mut self, op: &AttentionOpIr) -> Result<()> {
        let (query, key, value) = (self.read(&op.query)?, self.read(&op.key)?, self.read(&op.value)?);
        let of = dtype(op.query.dtype)?;
        let (&[.., asked, width], &[.., known, _]) = (&op.query.shape[..], &op.key.shape[..]) else {
            return Err(Failure::invalid("query and key must have rank 4".to_owned()));
        };
        let product = self.node_with("BatchMatMulV2", [query.into(), key.into()], &[("adj_y", true.into())])?;
        let scale = match op.options.scale {
            Some(scale) => self.scalar_input(scale, of)?,
            None => number((width as f64).sqrt().recip(), of)?,
        };
        let mut scores = self.node("Mul", [product.into(), scale])?;
        // Before any mask, whose infinity it would make finite.
        if let Some(cap) = op.options.softcap {
            let (below, above) = (self.scalar_input(cap, of)?, self.scalar_input(cap, of)?);
            let scaled = self.node("RealDiv", [scores.into(), below])?;
            let bent = self.node("Tanh", [scaled.into()])?;
            scores = self.node("Mul", [bent.into(), above])?;
        }
        if let Some(mask) = &op.mask {
            let mask = self.read(mask)?;
            scores = self.without(scores, mask, of)?;
        }
        if op.options.is_causal {
            let later = self.later(asked, known)?;
            scores = self.without(scores, later, of)?;
        }
        if let Some(bias) = &op.attn_bias {
            let bias = self.read(bias)?;
            scores = self.node("AddV2", [scores.into(), bias.into()])?;
        }
        let may_be_all_masked = op.mask.is_some() || op.attn_bias.is_some() || (op.options.is_causal && asked > known);
        let shares = match may_be_all_masked {
            true => self.masked_softmax(scores, op.query.shape.rank() - 1, of)?,
            false => self.node("Softmax", [scores.into()])?,
        };
        let answer = self.node("BatchMatMulV2", [shares.into(), value.into()])?;
        self.write(&op.out, answer)
    }

    /// Scores that are minus infinity where the mask is true.
    fn without(&mut self, scores: Output, mask: Output, of: DType) -> Result<Output> {
        self.node("SelectV2", [mask.into(), number(f64::NEG_INFINITY, of)?, scores.into()])
    }

    /// True where a key comes after a query, if the last of both are at the same time: `[asked, known]`.
    fn later(&mut self, asked: usize, known: usize) -> Result<Output> {
        // Both are counted from the first of the longer one.
        let (ask, know) = (known.saturating_sub(asked), asked.saturating_sub(known));
        let asked = integers(ask..ask + asked, DType::I32)?.reshaped([asked, 1])?;
        let known = integers(know..know + known, DType::I32)?.reshaped([1, known])?;
        self.node("Less", [Input::Value(asked), Input::Value(known)])
    }

    /// The softmax along a dim; 0 instead of NaN if all its scores are minus infinity.
    fn masked_softmax(&mut self, scores: Output, dim: usize, of: DType) -> Result<Output> {
        let (lowest, least) = match of {
            DType::F16 => (-65504.0, 2f64.powi(-14)),
            DType::BF16 => (half::bf16::MIN.to_f64(), half::bf16::MIN_POSITIVE.to_f64()),
            DType::F64 => (f64::MIN, f64::MIN_POSITIVE),
            _ => (f64::from(f32::MIN), f64::from(f32::MIN_POSITIVE)),
        };
        let keep = [("keep_dims", true.into())];
        let greatest = self.node_with("Max", [scores.into(), sizes(&[dim])?], &keep)?;
        let greatest = self.node("Maximum", [greatest.into(), number(lowest, of)?])?;
        let shifted = self.node("Sub", [scores.into(), greatest.into()])?;
        let powers = self.node("Exp", [shifted.into()])?;
        let sum = self.node_with("Sum", [powers.into(), sizes(&[dim])?], &keep)?;
        let sum = self.node("Maximum", [sum.into(), number(least, of)?])?;
        self.node("RealDiv", [powers.into(), sum.into()])
    }
}
