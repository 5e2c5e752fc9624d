//! The saved state of a barrier: the elements that are complete, and those with missing components.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::Result;
use meshtf_tensor::lock::lock;
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::super::waiting::Finished;
use super::super::queue::Contents;
use super::super::{Edition, Lasting, Over, ResourceKey, Saved, Version, admit_tensors, check_spec};
use super::{Barrier, Incomplete};

/// The description of a barrier in its node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct BarrierSpec {
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
}

#[derive(Serialize, Deserialize)]
struct Form {
    spec: BarrierSpec,
    next: i64,
    is_closed: bool,
    cancels: bool,
    has_ended: bool,
    /// By key, the number of each, and which of its components exist. Their tensors follow those of the complete elements.
    incomplete: Vec<(Vec<u8>, i64, Vec<bool>)>,
}

impl Lasting for Barrier {
    const KIND: &'static str = "barrier";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Barrier> {
        let Form { spec: BarrierSpec { types, shapes }, .. } = saved.form(Self::KIND)?;
        if types.is_empty() || !shapes.is_empty() && shapes.len() != types.len() {
            return Err(saved.malformed("no barrier has such components"));
        }
        Ok(Barrier::new(key.name.clone(), types, shapes))
    }
}

impl Barrier {
    fn spec(&self) -> BarrierSpec {
        BarrierSpec { types: self.types.clone(), shapes: self.shapes.clone() }
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let state = lock(&self.state);
        let (ready, version) = self.ready.contents()?;
        admit_tensors(state.incomplete.len().saturating_mul(self.types.len()))?;
        let mut all: Vec<(&Vec<u8>, &Incomplete)> = state.incomplete.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        let exist = |element: &Incomplete| element.components.iter().map(Option::is_some).collect();
        let form = Form {
            spec: self.spec(),
            next: state.next,
            is_closed: state.is_closed,
            cancels: state.cancels,
            has_ended: ready.is_closed,
            incomplete: all.iter().map(|&(key, element)| (key.clone(), element.number, exist(element))).collect(),
        };
        let components = all.iter().flat_map(|(_, element)| element.components.iter().flatten().cloned());
        let tensors = ready.elements.into_iter().flatten().chain(components).collect();
        Saved::new(Self::KIND, state.version.plus(version), &form, tensors)
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<Finished> {
        let Form { spec, next, is_closed, cancels, has_ended, incomplete } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec(), &spec)?;
        let count = incomplete.iter().flat_map(|(.., exist)| exist).filter(|&&exists| exists).count();
        let split = saved.tensors.len().checked_sub(count);
        let (ready, rest) = saved.tensors.split_at(split.ok_or_else(|| saved.malformed("components are missing"))?);
        let elements = self.ready.elements_of(ready).map_err(|why| saved.malformed(&why.message))?;
        admit_tensors(incomplete.len().saturating_mul(self.types.len()))?;
        let mut rest = rest.iter().cloned();
        let mut all = HashMap::new();
        for (key, number, exist) in incomplete {
            if exist.len() != self.types.len() || exist.iter().all(|&exists| exists) {
                return Err(saved.malformed("no element of a barrier lacks such components"));
            }
            let components: Vec<Option<Tensor>> =
                exist.iter().map(|&exists| if exists { rest.next() } else { None }).collect();
            if !self.admits(&components) || all.insert(key, Incomplete { number, components }).is_some() {
                return Err(saved.malformed("components do not fit the barrier, or a key is there twice"));
            }
        }
        let mut state = lock(&self.state);
        let check = |ready: &Version| state.version.plus(*ready).check(Self::KIND, over);
        let contents = Contents { elements, is_closed: has_ended, dice: None };
        let finished = self.ready.replace(contents, Edition::default(), check)?;
        state.bytes =
            all.values().flat_map(|element| element.components.iter().flatten()).map(Tensor::heap_bytes).sum();
        state.incomplete = all;
        (state.next, state.is_closed, state.cancels) = (next, is_closed, cancels);
        state.version.replace(saved.version);
        Ok(finished)
    }

    /// Whether the components that exist have the types and shapes of the barrier's.
    fn admits(&self, components: &[Option<Tensor>]) -> bool {
        components.iter().enumerate().all(|(i, component)| {
            component.as_ref().is_none_or(|tensor| {
                let shape = self.shapes.get(i);
                tensor.dtype() == self.types[i] && shape.is_none_or(|shape| shape.admits(tensor.shape()))
            })
        })
    }
}
