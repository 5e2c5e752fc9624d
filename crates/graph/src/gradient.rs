//! Gradients, graph to graph: adds the nodes that compute the derivatives of some tensors with respect to others, as TensorFlow
//! 1's `tf.gradients` does.
//!
//! The graph is walked backwards from the differentiated tensors to those they are differentiated by. At each node, the rule of
//! its op (`rules`) adds the nodes that turn the gradients of its outputs into those of its inputs, in the scope
//! `gradients/NODE_grad` and on the node's own device. If several paths meet, their gradients are added up. Rules add ops of
//! the vocabulary, which have rules themselves, so that a gradient can be differentiated again. The gradient of a loop is a
//! loop (`loops`): a rule adds the nodes of one iteration, as if it were the only one.

mod call;
pub(crate) mod context;
mod error;
mod loops;
mod named;
mod reach;
mod rules;
#[cfg(test)]
mod tests;
mod walk;

use meshtf_tensor::failure::Result;
pub use named::{NamedGradient, of_graph};
pub use reach::cut_off_at;
pub use rules::NamedRule;

use super::{GraphBuilder, Output, op};

/// The gradients of an op's inputs, as its line in the table of ops states them.
#[derive(Clone, Copy, Debug)]
pub enum GradientRule {
    /// This rule adds them.
    Rule(NamedRule),
    /// No input has one, whatever the gradients of the outputs: TensorFlow declares it so, or the outputs do not depend on the
    /// values of the inputs smoothly or at all.
    None,
    /// They are not known, or TensorFlow has none either: a path through the op is refused.
    Unknown,
    /// The line states none of these: the op has no inputs or no outputs, or is an older name and has the newer op's rule.
    Unstated,
}

impl GradientRule {
    /// The rule of a name in the table of ops.
    pub(super) fn named(name: &str) -> Option<GradientRule> {
        Some(match name {
            "none" => GradientRule::None,
            "unknown" => GradientRule::Unknown,
            _ => GradientRule::Rule(rules::named(name)?),
        })
    }
}

/// The derivative with respect to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// A tensor of the same shape as the tensor that it is the gradient with respect to.
    Dense(Output),
    /// Some rows of it; all other rows are zero.
    Sparse(Rows),
}

/// A gradient of which only some rows are stated: the gradient of a table with respect to the rows that were looked up in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The rows, `[n, ...]`: of the gradient's dtype.
    pub values: Output,
    /// The index of each row, `[n]`: int32 or int64. Rows with the same index are to be added up.
    pub indices: Output,
    /// The shape of the whole gradient, a vector of int32 or int64.
    pub dense_shape: Output,
}

/// The gradient with respect to a tensor that the differentiated tensors do not depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unconnected {
    /// No gradient.
    #[default]
    None,
    /// Zeros.
    Zero,
}

/// The options of a differentiation.
#[derive(Clone, Debug, Default)]
pub struct Differentiation {
    /// The initial gradients: for each differentiated tensor a tensor of its shape and dtype, or `None` for ones. Empty: ones
    /// for all.
    pub starts: Vec<Option<Output>>,
    /// Tensors that count as constants: the nodes that compute them are not differentiated.
    pub stops: Vec<Output>,
    /// The gradient with respect to an unconnected tensor.
    pub unconnected: Unconnected,
}

/// Adds the derivatives of the sum of `ys` with respect to each of `xs`, in their order. A variable may be given by its
/// reference or handle; the gradient is then the same as with respect to its value.
///
/// ```
/// use meshtf_graph::{GraphBuilder, gradient};
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", [3.0f32, 4.0])?;
/// let y = g.op("Square").name("y").input(x).build()?;
/// let by_x = gradient::gradients(&mut g, &[y], &[x], &gradient::Differentiation::default())?;
/// let Some(gradient::Gradient::Dense(twice_x)) = by_x[0] else { panic!("it is dense") };
/// assert!(g.tensor_name(twice_x).starts_with("gradients/y_grad/"));
/// # Ok::<(), meshtf_tensor::failure::Failure>(())
/// ```
///
/// # Errors
/// InvalidArgument if an output is not of this graph or inside of a loop, the nodes so far are not a valid graph, or `starts`
/// does not fit `ys`. Unimplemented for a path through an op that has no gradient: the message has the node and the path. The
/// builder is then unchanged, except that its nodes have been checked, after which [`add_input`](GraphBuilder::add_input) does
/// not accept them any more.
pub fn gradients(
    g: &mut GraphBuilder,
    ys: &[Output],
    xs: &[Output],
    options: &Differentiation,
) -> Result<Vec<Option<Gradient>>> {
    g.settle()?;
    let scope = g.free_scope("gradients");
    let added = walk::walk(g, &scope, ys, xs, options);
    if added.is_err() {
        g.take_back(&scope);
    }
    added
}

/// Converts a gradient to a dense tensor, if it is not one.
///
/// # Errors
/// InvalidArgument if it is of another graph.
pub fn dense(g: &mut GraphBuilder, gradient: Gradient) -> Result<Output> {
    match gradient {
        Gradient::Dense(output) => Ok(output),
        Gradient::Sparse(rows) => rows.dense(g),
    }
}

impl Rows {
    fn dense(self, g: &mut GraphBuilder) -> Result<Output> {
        let rows = g
            .op("StridedSlice")
            .input(self.dense_shape)
            .input([0])
            .input([1])
            .input([1])
            .attr("shrink_axis_mask", 1)
            .build()?;
        g.op("UnsortedSegmentSum").input(self.values).input(self.indices).input(rows).build()
    }
}

/// Whether gradients pass through an op of that name.
pub fn has_rule(op: &str) -> bool {
    op::lookup(op).is_some_and(|op| matches!(op.gradient, GradientRule::Rule(_)))
}
