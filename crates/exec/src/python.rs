//! Functions of the Python program that built a graph, which ops of the graph call (`tf.py_func`).
//!
//! They run in the program's process. A node that the program has started reaches it; in any other node such an op fails.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

/// A program whose functions ops may call.
pub trait Program: Send + Sync {
    /// Calls the function that the program has registered under `token`. While it waits for the answer, it calls `look` every
    /// few milliseconds, which unwinds if the step was cancelled.
    ///
    /// # Errors
    /// The failure of the function; Unavailable if the program has ended.
    fn call(&self, token: &str, inputs: &[Tensor], look: &dyn Fn()) -> Result<Vec<Tensor>>;
}
