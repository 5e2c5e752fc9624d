//! The ops of datasets that few programs have, and iterators and generators without names.

use std::sync::Arc;

use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::super::dataset::component::{hosted, stacked};
use super::super::dataset::{Element, arrange, choose, rare};
use super::super::resource::{Dummy, Iterator, ResourceKey, container_named};
use super::super::token::{Boxed, Optional, Token, Tokens};
use super::dataset::{described, spec};
use super::named::Site;
use super::op::{StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_dataset("SleepDataset", |inputs| rare::slow(inputs.dataset(0)?, inputs.number(1)?));
    ops.insert_dataset("ThreadPoolDataset", |inputs| Ok(arrange::same(inputs.dataset(0)?)));
    ops.insert("ThreadPoolHandle", |node, _| {
        if node.attrs.int("num_threads")? < 0 {
            return Err(Failure::invalid("`num_threads` must be greater than or equal to 0"));
        }
        simple(|_, _| Ok(one(Token::Resource(Arc::new(Dummy)))))
    });
    ops.insert("SlidingWindowDataset", |node, _| {
        let drops = node.attrs.get("drop_remainder").map_or(Ok(true), |_| node.attrs.bool("drop_remainder"))?;
        described(node, move |inputs| {
            let numbers = [inputs.number(1)?, inputs.number(2)?, inputs.number(3)?];
            rare::sliding(inputs.dataset(0)?, numbers, drops)
        })
    });
    ops.insert_dataset("AssertCardinalityDataset", |inputs| Ok(rare::counted(inputs.dataset(0)?, inputs.number(1)?)));
    ops.insert_dataset("SamplingDataset", |inputs| {
        let rate = inputs.host(1)?.item::<f32>()?;
        Ok(rare::sampled(inputs.dataset(0)?, rate, inputs.number(2)?, inputs.number(3)?))
    });
    ops.insert("ListDataset", |node, _| {
        let width = spec(node)?.types.len();
        described(node, move |inputs| rare::listed(inputs.held(0..inputs.0.len())?, width))
    });
    ops.insert_dataset("RebatchDatasetV2", |inputs| {
        let sizes = inputs.host(1)?;
        if sizes.rank() > 1 {
            return Err(Failure::invalid("`batch_sizes` must be a scalar or a vector."));
        }
        rare::rebatched(inputs.dataset(0)?, &sizes.to_i64s()?, inputs.truth(2)?)
    });
    ops.insert("RandomDatasetV2", |node, _| {
        if node.attrs.bool("rerandomize_each_iteration")? {
            let why = "rerandomize_each_iteration is not there: each iteration has the same numbers";
            return Err(Failure::new(Code::Unimplemented, why));
        }
        described(node, |inputs| Ok(choose::random(inputs.number(0)?, inputs.number(1)?)))
    });
    ops.insert("GetElementAtIndex", |node, _| {
        let spec = spec(node)?;
        simple(move |mut inputs, context| {
            let (dataset, index) = (inputs.dataset(0)?, inputs.host(1)?.to_i64()?);
            let beyond =
                || Failure::new(Code::OutOfRange, format!("Index out of range [0, {}): {index}", dataset.cardinality));
            let index = usize::try_from(index).map_err(|_| beyond())?;
            let pull = context.pull();
            let found = turn::in_part(|| {
                let mut elements = dataset.elements(&pull)?;
                for _ in 0..index {
                    turn::look();
                    if elements.next(&pull)?.is_none() {
                        return Ok(None);
                    }
                }
                elements.next(&pull)
            })?;
            let element = found.ok_or_else(beyond)?;
            spec.check(&element)?;
            Ok(element.into_iter().map(Some).collect())
        })
    });
    ops.insert("AnonymousIterator", |node, site| iterator(node, site, false));
    ops.insert("AnonymousIteratorV2", |node, site| iterator(node, site, true));
    for op in ["AnonymousMemoryCache", "AnonymousSeedGenerator"] {
        ops.insert_call(op, |_, _| with_deleter(Token::Resource(Arc::new(Dummy))));
    }
    ops.insert("IteratorGetDevice", |_, site| {
        let place = Arc::clone(&site.place);
        simple(move |mut inputs, _| {
            inputs.iterator(0)?;
            Ok(one(Tensor::scalar(place.as_bytes().to_vec())))
        })
    });
    ops.insert_call("InitializeTableFromDataset", |mut inputs, context| {
        let (table, dataset) = (inputs.table(0)?, inputs.dataset(1)?);
        let pull = context.pull();
        let entries = turn::in_part(|| -> Result<Vec<Element>> {
            let (mut elements, mut entries) = (dataset.iterate(&pull)?, Vec::new());
            while let Some(element) = elements.next(&pull)? {
                turn::look();
                meshtf_tensor::memory::grow()?;
                entries.push(hosted(element)?);
            }
            Ok(entries)
        })?;
        if entries.first().is_some_and(|entry| entry.len() != 2) {
            let why = "the elements of a dataset that fills a table are pairs of a key and a value";
            return Err(Failure::invalid(why));
        }
        if !entries.is_empty() {
            table.fill(&stacked(&entries, 0)?.host()?, &stacked(&entries, 1)?.host()?)?;
        }
        Ok(nothing())
    });
    ops.insert_call("CompressElement", |mut inputs, _| {
        let values = inputs.held(0..inputs.0.len())?;
        Ok(one(Optional::new(Some(values))?))
    });
    ops.insert("UncompressElement", |node, _| {
        let spec = spec(node)?;
        simple(move |mut inputs, _| {
            let held = inputs.optional(0)?;
            let element = held.values.clone().ok_or_else(|| Failure::invalid("there is no compressed element"))?;
            spec.check(&element)?;
            Ok(element.into_iter().map(Some).collect())
        })
    });
}

/// A handle, and the variant that newer clients delete it by: it ends with its step anyway.
fn with_deleter(handle: Token) -> Result<Tokens> {
    let deleter = Boxed::new(Shape::scalar(), vec![Tensor::scalar(false).into()])?;
    Ok(Tokens::from_iter([Some(handle), Some(deleter.into())]))
}

/// An iterator that lives as long as a handle to it flows through its step.
fn iterator(node: &KernelNode, site: &Site, has_deleter: bool) -> Result<StateOp> {
    let spec = spec(node)?;
    let key = ResourceKey {
        container: container_named("").to_owned(),
        name: node.name.to_owned(),
        session: Some(site.session),
        device: site.device,
    };
    simple(move |_, _| {
        let handle = Token::Resource(Arc::new(Iterator::new(key.clone(), spec.clone())));
        if has_deleter { with_deleter(handle) } else { Ok(one(handle)) }
    })
}
