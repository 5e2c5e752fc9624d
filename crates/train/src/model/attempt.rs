//! Calls that are taken back if they fail, for programs whose users correct themselves.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};

use super::{Model, State};

impl Model {
    /// Calls `add`. If something in it failed, or a node refuses the shapes of its inputs, that is returned, and the model
    /// continues as if it had not been called.
    ///
    /// # Errors
    /// The first error of the calls in `add`, or one that was there before.
    pub fn attempt<T>(&self, add: impl FnOnce() -> T) -> Result<T> {
        let (len, is_minimized) = {
            let state = self.state();
            if let Some(failure) = &state.failed {
                return Err(failure.clone());
            }
            (state.g.settled().len(), state.is_minimized)
        };
        let made = add();
        let mut state = self.state();
        match state.failed.take().map_or_else(|| state.conflict_from(len), Some) {
            None => Ok(made),
            Some(failure) => {
                state.take_back_to(len);
                state.is_minimized = is_minimized;
                Err(failure)
            }
        }
    }
}

impl State {
    /// The error of a node from the `len`th on that refuses the shapes of its inputs.
    fn conflict_from(&self, len: usize) -> Option<Failure> {
        let graph = self.g.settled();
        let error = graph.check_shapes().err()?;
        let node = error.node().and_then(|name| graph.find(name))?;
        (node.index() >= len).then(|| error.into())
    }

    /// Forgets all that refers to nodes from the `len`th on, and removes these.
    fn take_back_to(&mut self, len: usize) {
        let is_kept = |output: &Output| output.node.index() < len;
        let before = self.variables.len();
        self.variables.retain(|variable| is_kept(&variable.handle) && is_kept(&variable.value));
        // Among them may be variables of a graph that was read, whose values are read by nodes that are removed.
        self.has_more |= self.variables.len() < before;
        self.updates.retain(is_kept);
        self.global_step = self.global_step.take().filter(|step| is_kept(&step.handle) && is_kept(&step.value));
        self.training = self.training.filter(is_kept);
        self.replica = self.replica.filter(is_kept);
        self.g.take_back_to(len);
    }
}
