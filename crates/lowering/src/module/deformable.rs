//! Rules for deformable convolutions: the filter takes each element from a position that another tensor offsets.
//!
//! The image is sampled at all positions of the filter, which makes one column of each, and a product with the filter adds
//! them up. The channels of an offset group are moved together: they count as a separate image while it is sampled.

use burn_ir::{DeformConv2dBackwardOpIr, DeformConv2dOpIr, DeformableConv2dOptionsIr, TensorIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::pool::floats;
use super::sample::{Around, Plane, slopes, wide};
use crate::Lowering;
use crate::compose::{axis, integers, number, sizes};
use crate::values::dtype;

/// The operands of a convolution, without the bias.
struct Operands<'a> {
    x: &'a TensorIr,
    offset: &'a TensorIr,
    weight: &'a TensorIr,
    mask: Option<&'a TensorIr>,
    options: &'a DeformableConv2dOptionsIr,
}

/// The sizes of a deformable convolution.
struct Extent {
    batch: usize,
    /// Rows and columns of the filter, and of the output.
    filter: [usize; 2],
    answer: [usize; 2],
    weight_groups: usize,
    offset_groups: usize,
    /// Output channels in a weight group.
    made: usize,
    /// Elements under the filter in a weight group.
    taken: usize,
    /// The image of an offset group, with all positions of the filter as its points.
    plane: Plane,
    /// The dtype of the computation.
    work: DType,
}

/// The image under the filter.
struct Columns {
    around: Around,
    /// The image at each position of the filter: `[count, channels, points]` of the plane.
    sampled: Output,
    /// The mask as `[count, 1, points]` of the plane.
    mask: Option<Output>,
    /// `[batch, weight groups, elements under the filter, positions]`.
    value: Output,
}

impl Operands<'_> {
    fn extent(&self) -> Result<Extent> {
        let wrong = || {
            let [x, offset, weight] = [self.x, self.offset, self.weight].map(|tensor| &tensor.shape[..]);
            let why =
                format!("an image {x:?}, offsets {offset:?} and a filter {weight:?} do not fit {:?}", self.options);
            Failure::invalid(why)
        };
        let (&[batch, channels, height, width], &[of_batch, moves, rows, columns], &[out, own, high, across]) =
            (&self.x.shape[..], &self.offset.shape[..], &self.weight.shape[..])
        else {
            return Err(wrong());
        };
        let (weight_groups, offset_groups) = (self.options.weight_groups, self.options.offset_groups);
        let divided = |whole: usize, groups: usize| groups > 0 && whole.is_multiple_of(groups);
        let groups =
            divided(channels, weight_groups) && divided(out, weight_groups) && divided(channels, offset_groups);
        let fits = of_batch == batch && moves == 2 * offset_groups * high * across && own * weight_groups == channels;
        let masks = [batch, moves / 2, rows, columns];
        if !groups || !fits || height * width == 0 || self.mask.is_some_and(|mask| mask.shape[..] != masks) {
            return Err(wrong());
        }
        let (count, points) = (batch * offset_groups, high * across * rows * columns);
        Ok(Extent {
            batch,
            filter: [high, across],
            answer: [rows, columns],
            weight_groups,
            offset_groups,
            made: out / weight_groups,
            taken: own * high * across,
            plane: Plane { count, channels: channels / offset_groups, height, width, points },
            work: wide(dtype(self.x.dtype)?),
        })
    }
}

impl Extent {
    fn places(&self) -> usize {
        self.answer[0] * self.answer[1]
    }

    /// The dims of the output, or of its gradient, by weight groups.
    fn grouped(&self) -> [usize; 4] {
        [self.batch, self.weight_groups, self.made, self.places()]
    }
}

impl Lowering<'_> {
    pub(super) fn deformable(&mut self, op: &DeformConv2dOpIr) -> Result<()> {
        let DeformConv2dOpIr { x, offset, weight, options, .. } = op;
        let operands = Operands { x, offset, weight, mask: op.mask.as_ref(), options };
        let extent = operands.extent()?;
        let columns = self.columns(&operands, &extent)?;
        let filter = self.grouped_filter(weight, &extent)?;
        let value = self.node("BatchMatMulV2", [filter.into(), columns.value.into()])?;
        let mut value = self.node("Reshape", [value.into(), sizes(&op.out.shape)?])?;
        if let Some(bias) = &op.bias {
            let bias = self.widened(bias, &extent)?;
            value = self.node_with("BiasAdd", [value.into(), bias.into()], &[("data_format", "NCHW".into())])?;
        }
        self.write_narrowed(&op.out, value, &extent)
    }

    pub(super) fn deformable_backward(&mut self, op: &DeformConv2dBackwardOpIr) -> Result<()> {
        let DeformConv2dBackwardOpIr { x, offset, weight, options, .. } = op;
        let operands = Operands { x, offset, weight, mask: op.mask.as_ref(), options };
        let extent = operands.extent()?;
        let plane = extent.plane;
        let columns = self.columns(&operands, &extent)?;
        let gradient = self.widened(&op.out_grad, &extent)?;
        if let Some(out) = &op.bias_grad {
            let by_bias = self.node("Sum", [gradient.into(), sizes(&[0, 2, 3])?])?;
            self.write_narrowed(out, by_bias, &extent)?;
        }
        let gradient = self.node("Reshape", [gradient.into(), sizes(&extent.grouped())?])?;
        let attrs = [("adj_y", true.into())];
        let by_filter = self.node_with("BatchMatMulV2", [gradient.into(), columns.value.into()], &attrs)?;
        let by_filter = self.node("Sum", [by_filter.into(), sizes(&[0])?])?;
        self.write_narrowed(&op.weight_grad, by_filter, &extent)?;

        let filter = self.grouped_filter(weight, &extent)?;
        let attrs = [("adj_x", true.into())];
        let by_columns = self.node_with("BatchMatMulV2", [filter.into(), gradient.into()], &attrs)?;
        let dims = [plane.count, plane.channels, plane.points];
        let mut by_sampled = self.node("Reshape", [by_columns.into(), sizes(&dims)?])?;
        if let (Some(mask), Some(out)) = (columns.mask, &op.mask_grad) {
            let by_mask = self.node("Mul", [by_sampled.into(), columns.sampled.into()])?;
            let by_mask = self.node("Sum", [by_mask.into(), sizes(&[1])?])?;
            self.write_narrowed(out, by_mask, &extent)?;
            by_sampled = self.node("Mul", [by_sampled.into(), mask.into()])?;
        }
        let by_sampled = self.node("Reshape", [by_sampled.into(), sizes(&[dims[0], dims[1], 1, dims[2]])?])?;
        self.by_offset(&columns.around, by_sampled, &extent, &op.offset_grad)?;
        self.by_image(&columns.around, by_sampled, &extent, &op.input_grad)
    }

    /// The gradient with respect to the offsets: the change of the weights of the elements around each point as it moves.
    fn by_offset(&mut self, around: &Around, by_sampled: Output, extent: &Extent, out: &TensorIr) -> Result<()> {
        let (plane, work) = (extent.plane, extent.work);
        let by_weights = self.node("Mul", [around.elements.into(), by_sampled.into()])?;
        let by_weights = self.node("Sum", [by_weights.into(), sizes(&[1])?])?;
        let each = [plane.count, extent.filter[0] * extent.filter[1], 1, extent.places()];
        let mut moves: Vec<Input> = Vec::new();
        for along in [0, 1] {
            let by_share = self.node("Mul", [by_weights.into(), around.shares[1 - along].into()])?;
            let by_move = self.node("Mul", [by_share.into(), slopes(along, work)?])?;
            let by_move = self.node("Sum", [by_move.into(), sizes(&[1])?])?;
            moves.push(self.node("Reshape", [by_move.into(), sizes(&each)?])?.into());
        }
        moves.push(axis(2)?);
        let value = self.graph.op("ConcatV2").inputs(moves).build()?;
        self.write_narrowed(out, value, extent)
    }

    /// The gradient with respect to the image: each element gets the gradients of all points that sampled it, times its
    /// weights.
    fn by_image(&mut self, around: &Around, by_sampled: Output, extent: &Extent, out: &TensorIr) -> Result<()> {
        let (Plane { count, channels, points, .. }, work) = (extent.plane, extent.work);
        let size = extent.plane.enlarged();
        let weights = self.weights(around, &extent.plane, work, work)?;
        let parts = self.node("Mul", [by_sampled.into(), weights.into()])?;
        let parts = self.transpose(parts, &[0, 2, 3, 1])?;
        let parts = self.node("Reshape", [parts.into(), sizes(&[count * 4 * points, channels])?])?;
        // The images of the batch, concatenated.
        let first = integers((0..count).map(|image| image * size), DType::I32)?.reshaped([count, 1])?;
        let places = self.node("AddV2", [around.places.into(), Input::Value(first)])?;
        let places = self.node("Reshape", [places.into(), sizes(&[count * 4 * points])?])?;
        let sums = self.node("UnsortedSegmentSum", [parts.into(), places.into(), axis(count * size)?])?;
        let sums = self.node("Reshape", [sums.into(), sizes(&[count, size, channels])?])?;
        let inside = [sums.into(), sizes(&[0; 3])?, sizes(&[count, size - 1, channels])?];
        let inside = self.node("Slice", inside)?;
        let value = self.transpose(inside, &[0, 2, 1])?;
        self.write_narrowed(out, value, extent)
    }

    fn columns(&mut self, of: &Operands, extent: &Extent) -> Result<Columns> {
        let (plane, work) = (extent.plane, extent.work);
        let image = self.widened(of.x, extent)?;
        let size = plane.height * plane.width;
        let image = self.node("Reshape", [image.into(), sizes(&[plane.count, plane.channels, size])?])?;
        let image = self.enlarged(image)?;
        let at = self.moved(of, extent)?;
        let around = self.around(image, at, &plane, work, true)?;
        let sampled = self.blended(&around, &plane, work, work)?;
        let (mut value, mut mask) = (sampled, None);
        if let Some(tensor) = of.mask {
            let factor = self.widened(tensor, extent)?;
            let factor = self.node("Reshape", [factor.into(), sizes(&[plane.count, 1, plane.points])?])?;
            value = self.node("Mul", [sampled.into(), factor.into()])?;
            mask = Some(factor);
        }
        let dims = [extent.batch, extent.weight_groups, extent.taken, extent.places()];
        let value = self.node("Reshape", [value.into(), sizes(&dims)?])?;
        Ok(Columns { around, sampled, mask, value })
    }

    /// The rows and columns at which the filter samples the image. A point that is at least one element outside of the image
    /// contributes nothing, and has no gradient.
    fn moved(&mut self, of: &Operands, extent: &Extent) -> Result<[Output; 2]> {
        let Extent { plane, work, filter, answer, offset_groups, .. } = *extent;
        let options = of.options;
        let offset = self.widened(of.offset, extent)?;
        let under = filter[0] * filter[1];
        let pairs = [extent.batch * offset_groups, under, 2, extent.places()];
        let offset = self.node("Reshape", [offset.into(), sizes(&pairs)?])?;
        let mut moved = Vec::new();
        for (along, size) in [plane.height, plane.width].into_iter().enumerate() {
            let part = [offset.into(), sizes(&[0, 0, along, 0])?, sizes(&[pairs[0], under, 1, pairs[3]])?];
            let part = self.node("Slice", part)?;
            let dims = [plane.count, filter[0], filter[1], answer[0], answer[1]];
            let part = self.node("Reshape", [part.into(), sizes(&dims)?])?;
            let at = |under: usize, place: usize| {
                (place * options.stride[along] + under * options.dilation[along]) as f64 - options.padding[along] as f64
            };
            let grid = (0..filter[along]).flat_map(|under| (0..answer[along]).map(move |place| at(under, place)));
            let grid: Vec<f64> = grid.collect();
            let mut dims = [1; 5];
            (dims[1 + along], dims[3 + along]) = (filter[along], answer[along]);
            let at = self.node("AddV2", [part.into(), Input::Value(floats(&grid, &dims, work)?)])?;
            let before = self.node("LessEqual", [at.into(), number(-1.0, work)?])?;
            let behind = self.node("GreaterEqual", [at.into(), number(size as f64, work)?])?;
            let outside = self.node("LogicalOr", [before.into(), behind.into()])?;
            moved.push(self.node("SelectV2", [outside.into(), number(-2.0, work)?, at.into()])?);
        }
        Ok([moved[0], moved[1]])
    }

    /// A filter as one matrix for each weight group.
    fn grouped_filter(&mut self, weight: &TensorIr, extent: &Extent) -> Result<Output> {
        let filter = self.widened(weight, extent)?;
        let dims = [extent.weight_groups, extent.made, extent.taken];
        self.node("Reshape", [filter.into(), sizes(&dims)?])
    }

    fn widened(&mut self, tensor: &TensorIr, extent: &Extent) -> Result<Output> {
        let value = self.read(tensor)?;
        self.cast(value, dtype(tensor.dtype)?, extent.work)
    }

    /// Writes a value in burn's dtype and shape.
    fn write_narrowed(&mut self, out: &TensorIr, value: Output, extent: &Extent) -> Result<()> {
        let value = self.cast(value, extent.work, dtype(out.dtype)?)?;
        let value = self.node("Reshape", [value.into(), sizes(&out.shape)?])?;
        self.write(out, value)
    }
}
