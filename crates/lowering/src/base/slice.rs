//! Rules for slices, read and assigned.

use burn_ir::{SliceAssignOpIr, SliceOpIr};
use burn_std::Slice;
use meshtf_graph::Input;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use crate::Lowering;

/// The bounds of a strided slice, one for each dim that is sliced: begin (inclusive), end (exclusive) and stride.
#[derive(Debug, Default, PartialEq)]
struct Bounds {
    begin: Vec<i64>,
    end: Vec<i64>,
    strides: Vec<i64>,
    /// Whether it takes all elements in their order.
    whole: bool,
}

impl Lowering<'_> {
    pub(super) fn slice(&mut self, op: &SliceOpIr) -> Result<()> {
        let value = self.read(&op.tensor)?;
        let bounds = Bounds::new(&op.ranges, &op.tensor.shape)?;
        let value = if bounds.whole {
            value
        } else {
            let [begin, end, strides] = bounds.inputs();
            self.node("StridedSlice", [value.into(), begin, end, strides])?
        };
        self.write(&op.out, value)
    }

    pub(super) fn slice_assign(&mut self, op: &SliceAssignOpIr) -> Result<()> {
        let (tensor, value) = (self.read(&op.tensor)?, self.read(&op.value)?);
        let bounds = Bounds::new(&op.ranges, &op.tensor.shape)?;
        let value = if bounds.whole && op.value.shape == op.tensor.shape {
            value
        } else {
            let [begin, end, strides] = bounds.inputs();
            self.node("TensorStridedSliceUpdate", [tensor.into(), begin, end, strides, value.into()])?
        };
        self.write(&op.out, value)
    }
}

impl Bounds {
    /// burn first takes a range, and a negative step then walks it from its end.
    fn new(ranges: &[Slice], shape: &[usize]) -> Result<Bounds> {
        if ranges.len() > shape.len() {
            let why = format!("{} ranges for a tensor of {} dims", ranges.len(), shape.len());
            return Err(Failure::invalid(why));
        }
        let mut bounds = Bounds { whole: true, ..Bounds::default() };
        for (slice, &size) in ranges.iter().zip(shape) {
            if slice.step == 0 {
                return Err(Failure::invalid("a slice has the step 0"));
            }
            let range = slice.to_range(size);
            bounds.whole &= range == (0..size) && slice.step == 1;
            let (first, after, size) = (range.start as i64, range.end as i64, size as i64);
            let (begin, end) = match () {
                () if after <= first => (0, 0),
                () if slice.step > 0 => (first, after),
                // A negative end counts from the size, so that "before the first" is one below -size.
                () => (after - 1, if first == 0 { -size - 1 } else { first - 1 }),
            };
            bounds.begin.push(begin);
            bounds.end.push(end);
            bounds.strides.push(slice.step as i64);
        }
        Ok(bounds)
    }

    fn inputs(self) -> [Input; 3] {
        [self.begin, self.end, self.strides].map(|values| {
            let narrow: Option<Vec<i32>> = values.iter().map(|&value| i32::try_from(value).ok()).collect();
            Input::Value(narrow.map_or_else(|| Tensor::vector(values), Tensor::vector))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_bounds() {
        for (slice, size, wanted) in [
            (Slice::new(1, Some(3), 1), 5, [1, 3, 1]),
            (Slice::new(-2, None, 1), 5, [3, 5, 1]),
            (Slice::new(0, Some(9), 2), 5, [0, 5, 2]),
            // All, backwards: 4 3 2 1 0; every second of 1..4: 3 1; nothing.
            (Slice::new(0, None, -1), 5, [4, -6, -1]),
            (Slice::new(1, Some(4), -2), 5, [3, 0, -2]),
            (Slice::new(3, Some(3), -1), 5, [0, 0, -1]),
        ] {
            let bounds = Bounds::new(&[slice], &[size]).unwrap();
            assert_eq!([bounds.begin[0], bounds.end[0], bounds.strides[0]], wanted, "{slice:?} of {size}");
            assert!(!bounds.whole);
        }
        assert!(Bounds::new(&[Slice::new(0, Some(9), 1)], &[5, 2]).unwrap().whole);
        assert!(Bounds::new(&[Slice::full(); 2], &[5]).is_err());
        let mut still = Slice::full();
        still.step = 0;
        assert!(Bounds::new(&[still], &[5]).is_err());
    }
}
