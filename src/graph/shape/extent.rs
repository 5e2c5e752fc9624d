//! What decides how large the outputs of an op are, and so how long it takes.

use super::ShapeRule;

/// What decides how large the outputs of an op are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The shapes of its inputs: as they grow, so do the outputs, and what the op computes.
    Shapes,
    /// Beside those, the elements of this input, whose product counts: a shape, multiples, a depth.
    Elements(u32),
    /// Something else, or nobody has said.
    Unknown,
}

impl ShapeRule {
    /// What decides how large the outputs are.
    pub(crate) fn extent(&self) -> Extent {
        match self.name {
            "none" | "scalar" | "const" | "placeholder" | "placeholder_with_default" => Extent::Shapes,
            "same" | "same_as_second" | "forward" | "forward_all" | "merged" | "gradient" | "sum" | "cast" | "bias" => {
                Extent::Shapes
            }
            "broadcast" | "compare" | "select" | "alike_or_scalar" | "broadcast_all" => Extent::Shapes,
            "add" | "sub" | "mul" | "floor_div" | "maximum" | "minimum" => Extent::Shapes,
            "shape" | "shape_n" | "size" | "rank" | "broadcast_args" | "broadcast_gradient_args" | "concat_offset" => {
                Extent::Shapes
            }
            "reduce" | "prod" | "arg" | "matmul" | "batch_matmul" | "batch_matmul_v2" => Extent::Shapes,
            "cross_entropy" | "sparse_cross_entropy" | "top_k" | "in_top_k" => Extent::Shapes,
            "reshape" | "ensured" | "expand_dims" | "squeeze" | "transpose" | "bitcast" => Extent::Shapes,
            "concat" | "concat_v2" | "pack" | "unpack" | "split" | "split_v" | "slice" | "strided_slice" => {
                Extent::Shapes
            }
            "gather" | "gather_v2" | "gather_nd" | "resource_gather" | "resource_gather_nd" => Extent::Shapes,
            "where" | "unique" | "list_diff" => Extent::Shapes,
            "conv2d" | "depthwise" | "pool2d" | "pool2d_twice" | "same_of_4" | "bias_gradient" => Extent::Shapes,
            "batch_norm" | "batch_norm_gradient" => Extent::Shapes,
            "recurrent_cell" | "lstm_cell_gradient" | "gru_cell_gradient" => Extent::Shapes,
            "variable" | "old_variable" | "handle" | "named_handle" | "variable_shape" => Extent::Shapes,
            "read" | "assign" | "merged_variable" | "update" => Extent::Shapes,
            "fill" | "sized" => Extent::Elements(0),
            "tile" | "broadcast_to" | "one_hot" => Extent::Elements(1),
            _ => Extent::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op;

    #[test]
    fn what_decides_is_known_of_the_ops_that_train_small_models() {
        let of_shapes = "Add AddN ApplyAdagrad ApplyAdam ArgMax Assign AssignAdd AssignVariableOp BiasAdd BiasAddGrad Cast ConcatV2 \
            Const Conv2D Equal Exp GatherV2 Identity L2Loss MatMul MaxPool Mean Mul NoOp Placeholder ReadVariableOp Relu ReluGrad \
            Reshape ResourceApplyAdam Shape Softmax SparseSoftmaxCrossEntropyWithLogits Squeeze StridedSlice Sum Tanh TanhGrad \
            Transpose VariableV2";
        for name in of_shapes.split_whitespace() {
            assert_eq!(op::lookup(name).unwrap().shape.extent(), Extent::Shapes, "{name}");
        }
        for (name, expected) in [
            ("Fill", Extent::Elements(0)),
            ("RandomUniform", Extent::Elements(0)),
            ("Tile", Extent::Elements(1)),
            ("OneHot", Extent::Elements(1)),
            ("Range", Extent::Unknown),
            ("DecodeJpeg", Extent::Unknown),
            ("SegmentSum", Extent::Unknown),
        ] {
            assert_eq!(op::lookup(name).unwrap().shape.extent(), expected, "{name}");
        }
    }
}
