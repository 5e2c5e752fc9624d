//! The saved state of a staging area: its tuples, and those that lack components.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use serde::{Deserialize, Serialize};

use super::super::super::waiting::{Finished, Waited};
use super::super::queue::MAX_QUEUE_BYTES;
use super::super::{Lasting, Over, ResourceKey, Saved, admit_tensors, check_spec};
use super::{Keys, StageLimits, Staging, Tuple, bytes_of};

/// The description of a staging area in its nodes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StagingSpec {
    keys: Keys,
    limits: StageLimits,
}

/// The key of each tuple, and which of its components exist.
type Listed = Vec<(i64, Vec<bool>)>;

/// All but the components: those of complete tuples, and then those of incomplete ones.
#[derive(Serialize, Deserialize)]
struct Form {
    spec: StagingSpec,
    width: Option<usize>,
    next: i64,
    complete: Listed,
    incomplete: Listed,
}

impl Lasting for Staging {
    const KIND: &'static str = "staging area";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Staging> {
        let Form { spec: StagingSpec { keys, limits }, .. } = saved.form(Self::KIND)?;
        Ok(Staging::new(key.name.clone(), keys, limits))
    }
}

fn listed(tuples: &BTreeMap<i64, Tuple>) -> Listed {
    tuples.iter().map(|(&key, tuple)| (key, tuple.iter().map(Option::is_some).collect())).collect()
}

/// The tuples of a list, whose components are the next of some tensors; `None` if there are not enough.
fn unlisted(listed: Listed, tensors: &mut impl Iterator<Item = Tensor>) -> Option<BTreeMap<i64, Tuple>> {
    let mut tuples = BTreeMap::new();
    for (key, exist) in listed {
        let component = |exists| if exists { tensors.next().map(Some) } else { Some(None) };
        tuples.insert(key, exist.into_iter().map(component).collect::<Option<Tuple>>()?);
    }
    Some(tuples)
}

impl Staging {
    fn spec(&self) -> StagingSpec {
        StagingSpec { keys: self.keys, limits: self.limits }
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let state = self.hold();
        let tuples = || state.complete.values().chain(state.incomplete.values());
        admit_tensors(tuples().map(Vec::len).sum())?;
        let form = Form {
            spec: self.spec(),
            width: state.width,
            next: state.next,
            complete: listed(&state.complete),
            incomplete: listed(&state.incomplete),
        };
        Saved::new(Self::KIND, state.version, &form, tuples().flatten().flatten().cloned().collect())
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<Finished> {
        let Form { spec, width, next, complete, incomplete } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec(), &spec)?;
        admit_tensors(complete.iter().chain(&incomplete).map(|(_, exist)| exist.len()).sum())?;
        let mut tensors = saved.tensors.iter().cloned();
        let complete = unlisted(complete, &mut tensors);
        let incomplete = unlisted(incomplete, &mut tensors);
        let (Some(complete), Some(incomplete), None) = (complete, incomplete, tensors.next()) else {
            return Err(saved.malformed("the components are not those of the tuples"));
        };
        let has_any = |tuple: &Tuple| tuple.iter().any(Option::is_some);
        let lacks_any = |tuple: &Tuple| tuple.iter().any(Option::is_none);
        if !complete.values().all(has_any) || !incomplete.values().all(lacks_any) {
            return Err(saved.malformed("a complete tuple has no component, or an incomplete one has all"));
        }
        let bytes = bytes_of(complete.values().chain(incomplete.values()).flatten().flatten());
        if bytes > MAX_QUEUE_BYTES {
            let why = format!("staging area '{}' would exceed the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let state = &mut *self.hold();
        state.version.check(Self::KIND, over)?;
        (state.complete, state.incomplete, state.bytes) = (complete, incomplete, bytes);
        (state.width, state.next) = (width, next);
        state.version.replace(saved.version);
        Ok(self.advance(state))
    }
}
