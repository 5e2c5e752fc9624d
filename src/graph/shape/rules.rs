//! The rules by the names that `op/table.txt` has for them: what an op makes of the shapes of its inputs.
//!
//! A rule returns what is known of the outputs, in their order; `None` if nothing is known of any. It claims nothing
//! that TensorFlow's shape function of the same op would not.

mod arrange;
mod elementwise;
mod image;
mod index;
mod lists;
mod make;
mod reduce;
mod sparse;
mod state;

use super::Fact;
use super::call::Call;

/// What an op makes of the shapes of its inputs.
pub(in crate::graph) type Rule = fn(&Call) -> Option<Vec<Fact>>;

/// The rule of a name in the table.
pub(in crate::graph) fn named(name: &str) -> Option<Rule> {
    Some(match name {
        "none" => |_| Some(Vec::new()),
        "unknown" => nothing_known,
        "scalar" => make::scalars,

        "same" => elementwise::same,
        "same_as_second" => elementwise::same_as_second,
        "forward" => elementwise::forward,
        "forward_all" => elementwise::forward_all,
        "merged" => elementwise::merged,
        "gradient" => elementwise::gradient,
        "sum" => elementwise::sum,
        "broadcast" => elementwise::broadcasting,
        "compare" => elementwise::comparing,
        "select" => elementwise::select,
        "alike_or_scalar" => elementwise::alike_or_scalar,
        "broadcast_all" => elementwise::broadcast_all,
        "cast" => elementwise::cast,
        "add" => |call| elementwise::arithmetic(call, i64::checked_add),
        "sub" => |call| elementwise::arithmetic(call, i64::checked_sub),
        "mul" => |call| elementwise::arithmetic(call, i64::checked_mul),
        "floor_div" => |call| elementwise::arithmetic(call, |a, b| a.checked_div_euclid(b).filter(|_| b > 0)),
        "maximum" => |call| elementwise::arithmetic(call, |a, b| Some(a.max(b))),
        "minimum" => |call| elementwise::arithmetic(call, |a, b| Some(a.min(b))),
        "bias" => elementwise::bias,
        "substr" => elementwise::substr,
        "string_join" => elementwise::string_join,
        "switch" => elementwise::switch,
        "merge" => elementwise::merge_of_branches,

        "const" => make::constant,
        "placeholder" => make::placeholder,
        "placeholder_with_default" => make::placeholder_with_default,
        "fill" => make::fill,
        "sized" => make::sized,
        "sized_third" => make::sized_third,
        "sized_second" => make::sized_second,
        "edit_distance" => make::edit_distance,
        "range" => make::range,
        "lin_space" => make::lin_space,
        "multinomial" => make::multinomial,
        "key_counter" => make::key_counter,
        "bins_third" => make::bins_third,
        "bins_second" => make::bins_second,
        "dense_bins" => make::dense_bins,
        "shape" => make::shape,
        "shape_n" => make::shape_n,
        "size" => make::size,
        "rank" => make::rank,
        "one_hot" => make::one_hot,
        "string_split" => make::string_split,
        "broadcast_args" => make::broadcast_args,
        "broadcast_gradient_args" => make::broadcast_gradient_args,
        "concat_offset" => make::concat_offset,

        "reduce" => reduce::reduced,
        "prod" => reduce::product,
        "arg" => reduce::arg,
        "segment" => reduce::segment,
        "unsorted_segment" => reduce::unsorted_segment,
        "matmul" => reduce::matmul,
        "batch_matmul" => reduce::batch_matmul,
        "batch_matmul_v2" => reduce::batch_matmul_v2,
        "einsum" => reduce::einsum,
        "square" => reduce::square,
        "determinant" => reduce::determinant,
        "eigen" => reduce::eigen,
        "lu" => reduce::lu,
        "qr" => reduce::qr,
        "svd" => reduce::svd,
        "nth" => reduce::nth,
        "solve" => reduce::solve,
        "triangular_solve" => reduce::triangular_solve,
        "cross_entropy" => reduce::cross_entropy,
        "sparse_cross_entropy" => reduce::sparse_cross_entropy,
        "top_k" => reduce::top_k,
        "in_top_k" => reduce::in_top_k,

        "reshape" => arrange::reshape,
        "broadcast_to" => arrange::broadcast_to,
        "expand_dims" => arrange::expand_dims,
        "squeeze" => arrange::squeeze,
        "transpose" => arrange::transpose,
        "tile" => arrange::tile,
        "pad" => arrange::pad,
        "unpad" => arrange::unpad,
        "concat" => arrange::concat,
        "concat_v2" => arrange::concat_v2,
        "pack" => arrange::pack,
        "unpack" => arrange::unpack,
        "split" => arrange::split,
        "split_v" => arrange::split_v,
        "parallel_concat" => arrange::parallel_concat,
        "bitcast" => arrange::bitcast,
        "vector" => arrange::vector,
        "diag" => arrange::diag,
        "diag_part" => arrange::diag_part,
        "matrix_diag" => arrange::matrix_diag,
        "matrix_set_diag" => arrange::matrix_set_diag,
        "matrix_diag_part" => arrange::matrix_diag_part,

        "slice" => index::slice,
        "strided_slice" => index::strided_slice,
        "gather" => index::gather,
        "gather_v2" => index::gather_v2,
        "gather_nd" => index::gather_nd,
        "resource_gather" => index::resource_gather,
        "where" => index::indices_of,
        "unique" => index::unique,
        "list_diff" => index::list_diff,
        "dynamic_partition" => index::dynamic_partition,
        "dynamic_stitch" => index::dynamic_stitch,

        "conv2d" => image::conv2d,
        "depthwise" => image::depthwise,
        "conv3d" => image::conv3d,
        "pool2d" => image::pool2d,
        "pool2d_twice" => image::pool2d_twice,
        "pool3d" => image::pool3d,
        "patches" => image::patches,
        "sizes_of_4" => image::sizes_of_4,
        "convolution_input" => image::convolution_input,
        "merged_of_4" => image::merged_of_4,
        "sizes_of_5" => image::sizes_of_5,
        "sizes_of_4_second" => image::sizes_of_4_second,
        "sizes_of_5_second" => image::sizes_of_5_second,
        "same_of_4" => image::same_of_4,
        "same_of_5" => image::same_of_5,
        "same_of_5_second" => image::same_of_5_second,
        "bias_gradient" => image::bias_gradient,
        "batch_norm" => image::batch_norm,
        "batch_norm_gradient" => image::batch_norm_gradient,
        "resize" => image::resize,
        "space_to_batch" => image::space_to_batch,
        "batch_to_space" => image::batch_to_space,
        "space_to_batch_nd" => image::space_to_batch_nd,
        "batch_to_space_nd" => image::batch_to_space_nd,
        "space_to_depth" => image::space_to_depth,
        "depth_to_space" => image::depth_to_space,

        "variable" => state::variable,
        "old_variable" => state::old_variable,
        "handle" => state::handle,
        "named_handle" => state::named_handle,
        "read" => state::read,
        "assign" => state::assign,
        "merged_variable" => state::merged,
        "update" => state::update,
        "variable_shape" => state::variable_shape,
        "dequeue" => state::dequeue,
        "dequeue_many" => state::dequeue_many,
        "dequeue_up_to" => state::dequeue_up_to,
        "accumulated" => state::read,
        "array_handle" => state::array_handle,
        "array_handle_alone" => |call| state::array_handle(call).map(|facts| facts.into_iter().take(1).collect()),
        "array_read" => state::array_read,
        "array_gather" => state::array_gather,
        "array_concat" => state::array_concat,
        "array_pack" => state::array_pack,

        "list_item" => lists::item,
        "list_pop" => lists::pop,
        "list_stack" => lists::stack,
        "list_gather" => lists::gather,
        "list_concat" => lists::concat,
        "declared_outputs" => lists::declared,

        "sparse_reshape" => sparse::reshape,
        "sparse_reorder" => sparse::reorder,
        "sparse_concat" => sparse::concat,
        "sparse_split" => sparse::split,
        "sparse_sum" => sparse::sum,
        "sparse_same_values" => sparse::same_values,
        "sparse_part" => sparse::part,
        "sparse_matmul" => sparse::matmul,
        "same_as_fourth" => sparse::same_as_fourth,
        "sparse_reduce" => sparse::reduce,
        "sparse_fill" => sparse::fill_empty_rows,
        "sparse_fill_gradient" => sparse::fill_empty_rows_gradient,
        "sparse_segment" => sparse::segment,
        "sparse_values" => sparse::values,
        "sparse_add_gradient" => sparse::add_gradient,
        "sparse_slice_gradient" => sparse::slice_gradient,
        _ => return None,
    })
}

/// The rule of an op of whose outputs nothing can be known.
pub(in crate::graph) fn nothing_known(_: &Call) -> Option<Vec<Fact>> {
    None
}

/// One output of that shape.
fn one(dims: super::Dims) -> Option<Vec<Fact>> {
    Some(vec![dims.into()])
}
