//! The ops of staging areas. Each names its area itself: areas have no handles.

use std::sync::Arc;

use meshtf_kernels::KernelNode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::resource::{Keys, StageLimits, Staged, Staging, Which};
use super::super::token::Tokens;
use super::super::waiting::wake_all;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, settle, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Stage", |node, site| {
        asking(node, site, Keys::Order, |inputs| {
            let values = inputs.rest(0)?;
            let width = values.len();
            Ok(Staged::Put { key: None, width, indices: (0..).take(width).collect(), values })
        })
    });
    ops.insert("Unstage", |node, site| getting(node, site, Keys::Order, |_| Ok((Which::Next, None)), false));
    ops.insert("StagePeek", |node, site| {
        getting(node, site, Keys::Order, |inputs| Ok((Which::At(place(inputs)?), None)), true)
    });
    ops.insert("StageSize", |node, site| looking(node, site, Keys::Order, len));
    ops.insert("StageClear", |node, site| looking(node, site, Keys::Order, clear));

    ops.insert("MapStage", |node, site| put_by_key(node, site, Keys::Any));
    ops.insert("MapPeek", |node, site| get_by_key(node, site, Keys::Any, true));
    ops.insert("MapUnstage", |node, site| get_by_key(node, site, Keys::Any, false));
    ops.insert("MapUnstageNoKey", |node, site| get_next(node, site, Keys::Any));
    ops.insert("MapSize", |node, site| looking(node, site, Keys::Any, len));
    ops.insert("MapIncompleteSize", |node, site| looking(node, site, Keys::Any, incomplete));
    ops.insert("MapClear", |node, site| looking(node, site, Keys::Any, clear));

    ops.insert("OrderedMapStage", |node, site| put_by_key(node, site, Keys::Least));
    ops.insert("OrderedMapPeek", |node, site| get_by_key(node, site, Keys::Least, true));
    ops.insert("OrderedMapUnstage", |node, site| get_by_key(node, site, Keys::Least, false));
    ops.insert("OrderedMapUnstageNoKey", |node, site| get_next(node, site, Keys::Least));
    ops.insert("OrderedMapSize", |node, site| looking(node, site, Keys::Least, len));
    ops.insert("OrderedMapIncompleteSize", |node, site| looking(node, site, Keys::Least, incomplete));
    ops.insert("OrderedMapClear", |node, site| looking(node, site, Keys::Least, clear));
}

fn put_by_key(node: &KernelNode, site: &Site, keys: Keys) -> Result<StateOp> {
    let width = node.attrs.dtypes("dtypes")?.len();
    asking(node, site, keys, move |inputs| {
        let (key, indices, values) = (key(inputs)?, indices(inputs, 1)?, inputs.rest(2)?);
        if indices.len() != values.len() {
            let why = format!("{} indices say where {} values belong", indices.len(), values.len());
            return Err(Failure::invalid(why));
        }
        Ok(Staged::Put { key: Some(key), width, indices, values })
    })
}

fn get_by_key(node: &KernelNode, site: &Site, keys: Keys, stays: bool) -> Result<StateOp> {
    getting(node, site, keys, |inputs| Ok((Which::Key(key(inputs)?), Some(indices(inputs, 1)?))), stays)
}

fn get_next(node: &KernelNode, site: &Site, keys: Keys) -> Result<StateOp> {
    getting(node, site, keys, |inputs| Ok((Which::Next, Some(indices(inputs, 0)?))), false)
}

fn len(area: &Staging) -> Tokens {
    size(area.len())
}

fn incomplete(area: &Staging) -> Tokens {
    size(area.incomplete())
}

fn clear(area: &Staging) -> Tokens {
    wake_all(area.clear());
    nothing()
}

fn size(count: usize) -> Tokens {
    one(Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX)))
}

/// The key of a tuple, the first input.
fn key(inputs: &mut StateInputs) -> Result<i64> {
    let key = inputs.host(0)?;
    match key.slice::<i64>()? {
        [] => Err(Failure::invalid("key must not be empty")),
        [key] => Ok(*key),
        _ => {
            let why = format!("key must be an int64 scalar, got tensor with shape: {}", key.shape());
            Err(Failure::invalid(why))
        }
    }
}

/// The indices of the chosen components, in ascending order.
fn indices(inputs: &mut StateInputs, at: usize) -> Result<Vec<i32>> {
    let indices = inputs.host(at)?.into_vec::<i32>()?;
    if indices.is_empty() {
        return Err(Failure::invalid("Indices are empty"));
    }
    if !indices.is_sorted_by(|a, b| a < b) {
        return Err(Failure::invalid("Indices are not strictly ordered"));
    }
    Ok(indices)
}

/// The number of tuples before the chosen one.
fn place(inputs: &mut StateInputs) -> Result<usize> {
    let index = inputs.host(0)?.to_i64()?;
    usize::try_from(index).map_err(|_| Failure::invalid(format!("index must be 0 or more, got {index}")))
}

/// The staging area that a node names.
struct Area {
    named: Named<Staging>,
    keys: Keys,
    limits: StageLimits,
}

impl Area {
    fn of(node: &KernelNode, site: &Site, keys: Keys) -> Result<Area> {
        let limit = |name: &str| node.attrs.int(name).map(|limit| usize::try_from(limit).unwrap_or(0));
        let limits = StageLimits { capacity: limit("capacity")?, bytes: limit("memory_limit")? };
        Ok(Area { named: Named::new(node, site)?, keys, limits })
    }

    fn find(&mut self) -> Result<Arc<Staging>> {
        let (keys, limits) = (self.keys, self.limits);
        let area = self.named.find(|name| Staging::new(name.to_owned(), keys, limits))?;
        if area.keys() != keys {
            return Err(Failure::invalid(format!(
                "staging area '{}' has its tuples {}, but this node wants them {}",
                self.named.key().name,
                said(area.keys()),
                said(keys)
            )));
        }
        Ok(area)
    }
}

fn said(keys: Keys) -> &'static str {
    match keys {
        Keys::Order => "in the order they came",
        Keys::Any => "by key",
        Keys::Least => "in the order of their keys",
    }
}

/// An op that may have to wait.
fn asking(
    node: &KernelNode,
    site: &Site,
    keys: Keys,
    mut staged: impl FnMut(&mut StateInputs) -> Result<Staged> + Send + 'static,
) -> Result<StateOp> {
    let mut area = Area::of(node, site, keys)?;
    Ok(Box::new(move |tokens, context| -> Result<Outcome> {
        let area = area.find()?;
        let staged = staged(&mut StateInputs(tokens))?;
        let finished = area.ask(context.waiter(), staged)?;
        settle(finished, context.wait, || area)
    }))
}

/// An op that returns components of a tuple, all if it has no indices; the tuple stays if `stays`.
fn getting(
    node: &KernelNode,
    site: &Site,
    keys: Keys,
    mut what: impl FnMut(&mut StateInputs) -> Result<(Which, Option<Vec<i32>>)> + Send + 'static,
    stays: bool,
) -> Result<StateOp> {
    let types = node.attrs.dtypes("dtypes")?.to_vec();
    asking(node, site, keys, move |inputs| {
        let (which, indices) = what(inputs)?;
        Ok(Staged::Get { which, indices, types: types.clone(), stays })
    })
}

fn looking(
    node: &KernelNode,
    site: &Site,
    keys: Keys,
    mut look: impl FnMut(&Staging) -> Tokens + Send + 'static,
) -> Result<StateOp> {
    let mut area = Area::of(node, site, keys)?;
    simple(move |_, _| {
        let area = area.find()?;
        Ok(look(&area))
    })
}
