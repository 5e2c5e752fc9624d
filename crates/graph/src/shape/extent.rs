//! The data on which the output sizes of an op depend, and so its duration and that of its consumers.

/// The data on which the shapes of an op's outputs depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The shapes of its inputs.
    Shapes,
    /// Those, and the elements of its first input: a shape, an axis.
    First,
    /// Those, and the elements of its last input: an axis.
    Last,
    /// Those, and the elements of all inputs but the first: axes, multiples, the bounds of a slice.
    AllButFirst,
    /// Other data, or not specified.
    Unknown,
}

impl Extent {
    /// The range of the `inputs` inputs whose elements matter.
    pub fn elements_of(self, inputs: usize) -> std::ops::Range<usize> {
        match self {
            Extent::Shapes | Extent::Unknown => 0..0,
            Extent::First => 0..inputs.min(1),
            Extent::Last => inputs.saturating_sub(1)..inputs,
            Extent::AllButFirst => inputs.min(1)..inputs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;

    #[test]
    fn what_decides_is_known_of_the_ops_that_train_small_models() {
        let of_shapes = "Add AddN ApplyAdagrad ApplyAdam Assign AssignAdd AssignVariableOp BiasAdd BiasAddGrad BroadcastGradientArgs Cast Const Conv2D \
            Equal Exp Identity L2Loss MatMul MaxPool Mul NoOp Placeholder ReadVariableOp Relu ReluGrad ResourceApplyAdam Shape \
            Softmax SparseSoftmaxCrossEntropyWithLogits Squeeze Tanh TanhGrad VariableV2";
        let of_shapes = of_shapes.split_whitespace().map(|name| (name, Extent::Shapes));
        let others = [
            ("Fill", Extent::First),
            ("RandomUniform", Extent::First),
            ("Split", Extent::First),
            ("ConcatV2", Extent::Last),
            ("GatherV2", Extent::Last),
            ("ArgMax", Extent::AllButFirst),
            ("Mean", Extent::AllButFirst),
            ("OneHot", Extent::AllButFirst),
            ("Reshape", Extent::AllButFirst),
            ("StridedSlice", Extent::AllButFirst),
            ("Tile", Extent::AllButFirst),
            ("Transpose", Extent::AllButFirst),
            ("DecodeJpeg", Extent::Unknown),
            ("Range", Extent::Unknown),
            ("SegmentSum", Extent::Unknown),
            ("Where", Extent::Unknown),
        ];
        for (name, expected) in of_shapes.chain(others) {
            assert_eq!(op::lookup(name).unwrap().shape.extent(), expected, "{name}");
        }
        let inputs =
            [Extent::Shapes, Extent::First, Extent::Last, Extent::AllButFirst].map(|extent| extent.elements_of(3));
        assert_eq!(inputs, [0..0, 0..1, 2..3, 1..3]);
        assert!(
            [Extent::First, Extent::Last, Extent::AllButFirst].iter().all(|extent| extent.elements_of(0).is_empty())
        );
    }
}
