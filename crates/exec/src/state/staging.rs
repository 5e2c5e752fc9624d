//! The ops of staging areas. Each names its area itself: areas have no handles.

use std::sync::Arc;

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::resource::{Keys, StageLimits, Staged, Staging, Which};
use super::super::token::Tokens;
use super::super::waiting::wake_all;
use super::named::{Named, Site};
use super::op::{Outcome, StateInputs, StateOp, nothing, one, settle, simple};

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let (keys, what) = match node.op {
        "Stage" | "Unstage" | "StagePeek" | "StageSize" | "StageClear" => (Keys::Order, node.op),
        op => match op.strip_prefix("Ordered") {
            Some(op) => (Keys::Least, op),
            None => (Keys::Any, op),
        },
    };
    match what {
        "Stage" => asking(node, site, keys, |inputs| {
            let values = inputs.rest(0)?;
            let width = values.len();
            Ok(Staged::Put { key: None, width, indices: (0..).take(width).collect(), values })
        }),
        "Unstage" => getting(node, site, keys, |_| Ok((Which::Next, None)), false),
        "StagePeek" => getting(node, site, keys, |inputs| Ok((Which::At(place(inputs)?), None)), true),
        "MapStage" => {
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
        "MapPeek" | "MapUnstage" => {
            let stays = what == "MapPeek";
            getting(node, site, keys, |inputs| Ok((Which::Key(key(inputs)?), Some(indices(inputs, 1)?))), stays)
        }
        "MapUnstageNoKey" => getting(node, site, keys, |inputs| Ok((Which::Next, Some(indices(inputs, 0)?))), false),
        "StageSize" | "MapSize" => looking(node, site, keys, |area| size(area.len())),
        "MapIncompleteSize" => looking(node, site, keys, |area| size(area.incomplete())),
        "StageClear" | "MapClear" => looking(node, site, keys, |area| {
            wake_all(area.clear());
            nothing()
        }),
        _ => Ok(None),
    }
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
) -> Result<Option<StateOp>> {
    let mut area = Area::of(node, site, keys)?;
    Ok(Some(Box::new(move |tokens, context| -> Result<Outcome> {
        let area = area.find()?;
        let staged = staged(&mut StateInputs(tokens))?;
        let finished = area.ask(context.waiter(), staged)?;
        settle(finished, context.wait, || area)
    })))
}

/// An op that returns components of a tuple, all if it has no indices; the tuple stays if `stays`.
fn getting(
    node: &KernelNode,
    site: &Site,
    keys: Keys,
    mut what: impl FnMut(&mut StateInputs) -> Result<(Which, Option<Vec<i32>>)> + Send + 'static,
    stays: bool,
) -> Result<Option<StateOp>> {
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
) -> Result<Option<StateOp>> {
    let mut area = Area::of(node, site, keys)?;
    simple(move |_, _| {
        let area = area.find()?;
        Ok(look(&area))
    })
}
