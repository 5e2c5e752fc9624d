//! Rules for sampling images at points between their elements.
//!
//! Images are `[count, channels, height · width]` in this module, and points `[count, points]`, one tensor for their rows and
//! one for their columns. An image is 0 outside: one more element is appended to it, which stands for all positions outside.

use burn_ir::{GridSample2dOpIr, GridSamplePaddingModeIr as Outside, InterpolateModeIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::pool::floats;
use crate::compose::{axis, number, sizes};
use crate::values::dtype;
use crate::{Lowering, refused};

/// The dims of images, and the number of points at which each is sampled.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    pub count: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub points: usize,
}

/// The four elements around each point.
pub(super) struct Around {
    /// `[count, channels, 4, points]`.
    pub elements: Output,
    /// Their indices in the image: `[count, 4 · points]`.
    pub places: Output,
    /// The shares of each along the rows and the columns: `[count, 4, points]`. Their product is its weight.
    pub shares: [Output; 2],
}

/// The offset of each of the four elements from the first one, along the rows and the columns.
const STEPS: [[f64; 4]; 2] = [[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]];

/// The slope of the share of each of the four elements in the coordinate, along the rows or the columns: `[4, 1]`.
pub(super) fn slopes(along: usize, of: DType) -> Result<Input> {
    Ok(Input::Value(floats(&STEPS[along].map(|step| 2.0 * step - 1.0), &[4, 1], of)?))
}

impl Plane {
    fn size(&self) -> usize {
        self.height * self.width
    }

    fn sides(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    /// Elements of a channel, including the one outside.
    pub fn enlarged(&self) -> usize {
        self.size() + 1
    }
}

impl Lowering<'_> {
    pub(crate) fn grid_sample(&mut self, op: &GridSample2dOpIr) -> Result<()> {
        let (&[count, channels, height, width], &[grids, rows, columns, 2]) =
            (&op.tensor.shape[..], &op.grid.shape[..])
        else {
            return Err(Failure::invalid(
                "it takes an image [n, channels, height, width] and a grid [n, rows, columns, 2]",
            ));
        };
        if grids != count || height == 0 || width == 0 {
            let (tensor, grid) = (&op.tensor.shape[..], &op.grid.shape[..]);
            return Err(Failure::invalid(format!("an image of shape {tensor:?} cannot be sampled at {grid:?}")));
        }
        let plane = Plane { count, channels, height, width, points: rows * columns };
        let (of, work) = (dtype(op.tensor.dtype)?, wide(dtype(op.tensor.dtype)?));
        let image = self.read(&op.tensor)?;
        let image = self.cast(image, of, work)?;
        let mut image = self.reshape(image, &op.tensor.shape, &[count, channels, plane.size()])?;
        let at = self.pixels(op, &plane)?;
        let keep_outside = matches!(op.options.padding_mode, Outside::Zeros);
        if keep_outside {
            image = self.enlarged(image)?;
        }
        let value = match op.options.mode {
            InterpolateModeIr::Bilinear => {
                let around = self.around(image, at, &plane, DType::F64, keep_outside)?;
                self.blended(&around, &plane, DType::F64, work)?
            }
            InterpolateModeIr::Nearest => {
                let [row, column] = at.map(|at| self.node("Round", [at.into()]));
                let places = self.places([row?, column?], &plane, DType::F64, keep_outside)?;
                self.elements(image, places)?
            }
            ref other => {
                return Err(refused("Float::GridSample2d", &format!("it samples {other:?}, not Nearest or Bilinear")));
            }
        };
        let value = self.cast(value, work, of)?;
        let value = self.reshape(value, &[count, channels, plane.points], &op.out.shape)?;
        self.write(&op.out, value)
    }

    /// A grid, whose columns and rows are in [-1, 1], converted to pixels: rows and columns, in float64 so that ties round as
    /// in flex.
    fn pixels(&mut self, op: &GridSample2dOpIr, plane: &Plane) -> Result<[Output; 2]> {
        let grid = self.read(&op.grid)?;
        let grid = self.cast(grid, dtype(op.grid.dtype)?, DType::F64)?;
        let grid = self.reshape(grid, &op.grid.shape, &[plane.count, plane.points, 2])?;
        let mut pixels = Vec::new();
        for (part, size) in [(1, plane.height), (0, plane.width)] {
            let inputs = [grid.into(), sizes(&[0, 0, part])?, sizes(&[plane.count, plane.points, 1])?];
            let at = self.node("Slice", inputs)?;
            let at = self.reshape(at, &[plane.count, plane.points, 1], &[plane.count, plane.points])?;
            let from_0 = self.node("AddV2", [at.into(), number(1.0, DType::F64)?])?;
            let span = if op.options.align_corners { size - 1 } else { size };
            let mut at = self.node("Mul", [from_0.into(), number(span as f64 / 2.0, DType::F64)?])?;
            if !op.options.align_corners {
                at = self.node("Sub", [at.into(), number(0.5, DType::F64)?])?;
            }
            pixels.push(at);
        }
        let [row, column] = [pixels[0], pixels[1]];
        if matches!(op.options.padding_mode, Outside::Zeros) {
            return Ok([row, column]);
        }
        let [of_row, of_column] = [row, column].map(|at| self.node("IsFinite", [at.into()]));
        let finite = self.node("LogicalAnd", [of_row?.into(), of_column?.into()])?;
        let mut inside = |at: Output, size: usize| match op.options.padding_mode {
            Outside::Reflection => {
                let reflected = self.reflected(at, size, op.options.align_corners)?;
                self.node("SelectV2", [finite.into(), reflected, at.into()])
            }
            _ => {
                let last = (size - 1) as f64;
                let at = self.node("Maximum", [at.into(), number(0.0, DType::F64)?])?;
                let at = self.node("Minimum", [at.into(), number(last, DType::F64)?])?;
                self.node("SelectV2", [finite.into(), at.into(), number(last / 2.0, DType::F64)?])
            }
        };
        Ok([inside(row, plane.height)?, inside(column, plane.width)?])
    }

    /// A coordinate that is reflected at both ends of its axis until it is inside.
    fn reflected(&mut self, at: Output, size: usize, align_corners: bool) -> Result<Input> {
        let number = |value| number(value, DType::F64);
        let (first, span) = if align_corners { (0.0, (size - 1) as f64) } else { (-0.5, size as f64) };
        if span == 0.0 {
            return number(first);
        }
        let at = self.node("Sub", [at.into(), number(first)?])?;
        let at = self.node("Abs", [at.into()])?;
        let turns = self.node("RealDiv", [at.into(), number(2.0 * span)?])?;
        let turns = self.node("Floor", [turns.into()])?;
        let past = self.node("Mul", [turns.into(), number(2.0 * span)?])?;
        let at = self.node("Sub", [at.into(), past.into()])?;
        let back = self.node("Sub", [at.into(), number(span)?])?;
        let back = self.node("Abs", [back.into()])?;
        let at = self.node("Sub", [number(span)?, back.into()])?;
        Ok(self.node("AddV2", [at.into(), number(first)?])?.into())
    }

    /// Images with the appended element outside.
    pub(super) fn enlarged(&mut self, image: Output) -> Result<Output> {
        self.node("Pad", [image.into(), Input::Value(Tensor::from([[0, 0], [0, 0], [0, 1]]))])
    }

    /// The elements around each point, whose coordinates have the dtype `of`. With `keep_outside`, the images are enlarged;
    /// otherwise their border is repeated without end.
    pub(super) fn around(
        &mut self,
        image: Output,
        at: [Output; 2],
        plane: &Plane,
        of: DType,
        keep_outside: bool,
    ) -> Result<Around> {
        let (mut corners, mut shares) = (Vec::new(), Vec::new());
        for (along, at) in at.into_iter().enumerate() {
            let at = self.node("Reshape", [at.into(), sizes(&[plane.count, 1, plane.points])?])?;
            let low = self.node("Floor", [at.into()])?;
            let past = self.node("Sub", [at.into(), low.into()])?;
            let steps = floats(&STEPS[along], &[4, 1], of)?;
            corners.push(self.node("AddV2", [low.into(), Input::Value(steps)])?);
            let share = self.node("Mul", [past.into(), slopes(along, of)?])?;
            let whole = floats(&STEPS[along].map(|step| 1.0 - step), &[4, 1], of)?;
            shares.push(self.node("AddV2", [share.into(), Input::Value(whole)])?);
        }
        let places = self.places([corners[0], corners[1]], plane, of, keep_outside)?;
        let places = self.node("Reshape", [places.into(), sizes(&[plane.count, 4 * plane.points])?])?;
        let elements = self.elements(image, places)?;
        let dims = [plane.count, plane.channels, 4, plane.points];
        let elements = self.node("Reshape", [elements.into(), sizes(&dims)?])?;
        Ok(Around { elements, places, shares: [shares[0], shares[1]] })
    }

    /// The interpolated value at each point, `[count, channels, points]`. Shares are of the dtype `of`, elements of `work`.
    pub(super) fn blended(&mut self, around: &Around, plane: &Plane, of: DType, work: DType) -> Result<Output> {
        let weights = self.weights(around, plane, of, work)?;
        let parts = self.node("Mul", [around.elements.into(), weights.into()])?;
        self.node("Sum", [parts.into(), sizes(&[2])?])
    }

    /// The weight of each element: `[count, 1, 4, points]`.
    pub(super) fn weights(&mut self, around: &Around, plane: &Plane, of: DType, work: DType) -> Result<Output> {
        let [by_row, by_column] = around.shares;
        let weights = self.node("Mul", [by_row.into(), by_column.into()])?;
        let weights = self.cast(weights, of, work)?;
        self.node("Reshape", [weights.into(), sizes(&[plane.count, 1, 4, plane.points])?])
    }

    /// The flat indices of elements in an image, given their rows and columns, which are whole numbers of the dtype `of`. NaN
    /// is 0, as in flex.
    fn places(&mut self, at: [Output; 2], plane: &Plane, of: DType, keep_outside: bool) -> Result<Output> {
        let (mut clamped, mut inside) = (Vec::new(), Vec::new());
        for (at, size) in at.into_iter().zip(plane.sides()) {
            // Clamped to the range of an int32; positions outside stay outside.
            let low = self.node("Maximum", [at.into(), number(-1.0, of)?])?;
            let bounded = self.node("Minimum", [low.into(), number(size as f64, of)?])?;
            let is_number = self.node("Equal", [at.into(), at.into()])?;
            let at = self.node("SelectV2", [is_number.into(), bounded.into(), number(0.0, of)?])?;
            let at = self.node_with("Cast", [at.into()], &[("DstT", DType::I32.into())])?;
            let near = self.node("Maximum", [at.into(), axis(0)?])?;
            let near = self.node("Minimum", [near.into(), axis(size - 1)?])?;
            if keep_outside {
                inside.push(self.node("Equal", [at.into(), near.into()])?);
            }
            clamped.push(near);
        }
        let before = self.node("Mul", [clamped[0].into(), axis(plane.width)?])?;
        let places = self.node("AddV2", [before.into(), clamped[1].into()])?;
        let [by_row, by_column] = inside[..] else { return Ok(places) };
        let inside = self.node("LogicalAnd", [by_row.into(), by_column.into()])?;
        self.node("SelectV2", [inside.into(), places.into(), axis(plane.size())?])
    }

    fn elements(&mut self, image: Output, places: Output) -> Result<Output> {
        self.node_with("GatherV2", [image.into(), places.into(), axis(2)?], &[("batch_dims", 1.into())])
    }
}

/// The dtype in which floats of this one are summed.
pub(super) fn wide(of: DType) -> DType {
    if matches!(of, DType::F16 | DType::BF16) { DType::F32 } else { of }
}
