//! The saved state of an iterator: the function that makes its dataset, and the position.
//!
//! A loaded iterator makes the dataset when an op asks for an element, since only an op can call a function. It then asks for
//! the elements before its position again, and drops them.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_graph::Function;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Tensor, memory};
use serde::{Deserialize, Serialize};

use super::super::super::dataset::graph::function_of;
use super::super::super::dataset::{Dataset, Pull, Spec};
use super::super::{Lasting, Over, ResourceKey, Saved, check_spec};
use super::{Begun, Iterator, Progress, State};

/// Makes a dataset by a function, from these arguments.
pub(crate) type MadeAgain<'a> = &'a dyn Fn(&Function, Vec<Tensor>, &Pull) -> Result<Arc<Dataset>>;

/// A position that was loaded.
#[derive(Clone)]
pub(super) struct Loaded {
    function: Function,
    args: Vec<Tensor>,
    pub progress: Progress,
}

impl Loaded {
    pub fn bytes(&self) -> usize {
        self.args.iter().map(Tensor::heap_bytes).sum()
    }
}

/// All but the arguments of the function, which are the tensors.
#[derive(Serialize, Deserialize)]
struct Form {
    spec: Spec,
    /// The function, the number of elements asked for, and the draws; `None` if it is over no dataset.
    position: Option<(Function, u64, Vec<u64>)>,
}

impl Lasting for Iterator {
    const KIND: &'static str = "iterator";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Iterator> {
        let Form { spec, .. } = saved.form(Self::KIND)?;
        if spec.types.len() != spec.shapes.len() {
            return Err(saved.malformed("it has not a shape for each type"));
        }
        Ok(Iterator::new(key.clone(), spec))
    }
}

impl Iterator {
    pub(super) fn saved(&self) -> Result<Saved> {
        let held = self.hold()?;
        let position = match (&held.0.begun, &held.0.loaded) {
            (Some(begun), _) => {
                let lacks = |failure: Failure| Failure::new(Code::FailedPrecondition, failure.message);
                let progress = begun.progress().map_err(lacks)?;
                let (function, args) = function_of(&begun.dataset).map_err(lacks)?;
                Some(Loaded { function, args, progress })
            }
            (None, loaded) => loaded.clone(),
        };
        let draws = position.as_ref().map_or(0, |position| size_of_val(&position.progress.draws[..]));
        memory::admit(draws.saturating_mul(2))?;
        let (position, args) = match position {
            Some(Loaded { function, args, progress: Progress { asked, draws } }) => {
                (Some((function, asked, draws)), args)
            }
            None => (None, Vec::new()),
        };
        Saved::new(Self::KIND, held.0.version, &Form { spec: self.spec.clone(), position }, args)
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { spec, position } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.key.name, &self.spec, &spec)?;
        let loaded = match position {
            Some((function, asked, draws)) => {
                let (args, progress) = (saved.tensors.clone(), Progress { asked, draws });
                let are_args = function.args.len() == args.len()
                    && function.args.iter().zip(&args).all(|((_, dtype), arg)| *dtype == arg.dtype());
                if !are_args || function.results.len() != 1 || !progress.is_right() {
                    return Err(saved.malformed("no function makes a dataset of that"));
                }
                Some(Loaded { function, args, progress })
            }
            None if saved.tensors.is_empty() => None,
            None => return Err(saved.malformed("an iterator over no dataset has no tensors")),
        };
        let mut held = self.hold()?;
        held.0.version.check(Self::KIND, over)?;
        (held.0.begun, held.0.loaded) = (None, loaded);
        held.0.version.replace(saved.version);
        Ok(())
    }

    /// Makes the dataset of a position that was loaded, and returns to the position.
    pub(super) fn take_up(&self, state: &mut State, pull: &Pull, again: MadeAgain) -> Result<()> {
        let Some(Loaded { function, args, progress }) = &state.loaded else { return Ok(()) };
        let dataset = again(function, args.clone(), pull)?;
        dataset.spec.check_against(&self.spec)?;
        let begun = Begun::at(dataset, progress, pull)?;
        (state.begun, state.loaded) = (Some(begun), None);
        Ok(())
    }
}
