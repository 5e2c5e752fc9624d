//! The ops of iterators: each is a resource that moves through a dataset, one element a call.

use std::sync::Arc;

use meshtf_graph::Function;
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::super::dataset::mapped::dataset_of;
use super::super::dataset::{Dataset, Element, Pull, Spec};
use super::super::resource::{Iterator, Resource, ResourceKey};
use super::super::token::{Boxed, Optional, Token, Variant};
use super::dataset::spec;
use super::named::{Named, Site};
use super::op::{nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("IteratorV2", |node, site| {
        let spec = spec(node)?;
        let mut named = Named::new_own(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(found(&mut named, &spec)?))))
    });
    ops.insert("OneShotIterator", |node, site| {
        let spec = spec(node)?;
        let factory = (site.callee)(node.attrs.function("dataset_factory")?, site);
        let mut named = Named::new_own(node, site)?;
        simple(move |_, context| {
            let iterator = found(&mut named, &spec)?;
            let pull = context.pull();
            iterator.begin_once(&pull, || {
                dataset_of(Arc::clone(&factory).instance(Vec::new(), &pull)?.call(Vec::new(), &pull)?)
            })?;
            Ok(one(Token::Resource(iterator)))
        })
    });
    ops.insert_call("MakeIterator", |mut inputs, context| {
        let (dataset, iterator) = (inputs.dataset(0)?, inputs.iterator(1)?);
        iterator.begin(dataset, &context.pull())?;
        Ok(nothing())
    });
    ops.insert("IteratorGetNext", |node, site| {
        let (spec, again) = (spec(node)?, again(site));
        simple(move |mut inputs, context| {
            let element = inputs.iterator(0)?.next(&context.pull(), &again)?;
            let element = element.ok_or_else(|| Failure::new(Code::OutOfRange, "End of sequence"))?;
            spec.check(&element)?;
            Ok(element.into_iter().map(Some).collect())
        })
    });
    ops.insert("IteratorGetNextAsOptional", |node, site| {
        let (spec, again) = (spec(node)?, again(site));
        simple(move |mut inputs, context| {
            let element: Option<Element> = inputs.iterator(0)?.next(&context.pull(), &again)?;
            element.as_ref().map_or(Ok(()), |element| spec.check(element))?;
            Ok(one(Optional::new(element)?))
        })
    });
    ops.insert_call("SerializeIterator", |mut inputs, _| {
        let state = Tensor::scalar(inputs.iterator(0)?.serialize()?);
        Ok(one(Boxed::new(Shape::scalar(), vec![state.into()])?))
    });
    ops.insert("DeserializeIterator", |_, site| {
        let again = again(site);
        simple(move |mut inputs, context| {
            let iterator = inputs.iterator(0)?;
            let Token::Variant(Variant::Boxed(boxed)) = inputs.token(1)? else {
                return Err(Failure::invalid("input 1 must be the state of an iterator, as SerializeIterator returns"));
            };
            let state = boxed.items().first().cloned().ok_or_else(|| Failure::invalid("the state of no iterator"))?;
            iterator.restore(&state.host()?.item::<Vec<u8>>()?, &context.pull(), &again)?;
            Ok(nothing())
        })
    });
    ops.insert("IteratorToStringHandle", |_, _| {
        simple(|mut inputs, _| Ok(one(Tensor::scalar(written("iterator", inputs.iterator(0)?.key()).into_bytes()))))
    });
    ops.insert("IteratorFromStringHandleV2", |node, site| {
        let spec = if node.attrs.dtypes("output_types")?.is_empty() { None } else { Some(spec(node)?) };
        let find = find_written("iterator", site);
        simple(move |mut inputs, _| {
            let iterator = find(&inputs.host(0)?.item::<Vec<u8>>()?, true)?.typed::<Iterator>()?;
            spec.as_ref().map_or(Ok(()), |spec| iterator.spec().check_against(spec))?;
            Ok(one(Token::Resource(iterator)))
        })
    });
}

/// Makes the dataset of a loaded iterator, as the site's ops call functions.
pub(super) fn again(site: &Site) -> impl Fn(&Function, Vec<Tensor>, &Pull) -> Result<Arc<Dataset>> + Send + use<> {
    let site = site.apart();
    move |function, args, pull| {
        let args = args.into_iter().map(Token::from).collect();
        dataset_of((site.callee)(function, &site).instance(Vec::new(), pull)?.call(args, pull)?)
    }
}

/// The iterator that a node names, made if there is none.
fn found(named: &mut Named<Iterator>, spec: &Spec) -> Result<Arc<Iterator>> {
    let key = named.key().clone();
    let iterator = named.find(|_| Iterator::new(key, spec.clone()))?;
    iterator.spec().check_against(spec)?;
    Ok(iterator)
}

/// A handle as text, of that kind.
pub(super) fn written(kind: &str, key: &ResourceKey) -> String {
    let own = if key.session.is_some() { "own" } else { "shared" };
    format!("{kind}\n{}:{}\n{own}\n{}\n{}", key.device.0.name(), key.device.1, key.container, key.name)
}

/// Finds the resource of a handle as text; if the second argument is true, only on the site's own device.
pub(super) fn find_written(
    kind: &'static str,
    site: &Site,
) -> impl Fn(&[u8], bool) -> Result<Arc<dyn Resource>> + Send + use<> {
    let (resources, session, device) = (Arc::clone(&site.resources), site.session, site.device);
    move |text, has_to_be_here| {
        let Written { at, is_own, container, name } = read(kind, text).ok_or_else(|| {
            let (text, article) = (String::from_utf8_lossy(text), if kind.starts_with('i') { "an" } else { "a" });
            Failure::invalid(format!(
                "'{text}' is not a handle of {article} {kind}, as the op that writes them returns"
            ))
        })?;
        if has_to_be_here && at != device {
            let name = |(kind, index): (DeviceKind, u32)| format!("{}:{index}", kind.name());
            return Err(Failure::invalid(format!(
                "Attempted create an iterator on device {} from handle defined on device {}",
                name(device),
                name(at)
            )));
        }
        let session = (is_own || resources.is_isolated(session)).then_some(session);
        let key = ResourceKey { container: container.to_owned(), name: name.to_owned(), session, device: at };
        resources.find(&key).ok_or_else(|| {
            Failure::new(Code::NotFound, format!("there is no {kind} '{name}' in container '{container}'"))
        })
    }
}

/// A handle that was text.
struct Written<'a> {
    at: (DeviceKind, u32),
    /// Only its session sees it.
    is_own: bool,
    container: &'a str,
    name: &'a str,
}

fn read<'a>(of: &str, text: &'a [u8]) -> Option<Written<'a>> {
    let mut parts = std::str::from_utf8(text).ok()?.splitn(5, '\n');
    (parts.next()? == of).then_some(())?;
    let (device, index) = parts.next()?.split_once(':')?;
    let kind = [DeviceKind::Cpu, DeviceKind::Gpu].into_iter().find(|kind| kind.name() == device)?;
    let at = (kind, index.parse().ok()?);
    Some(Written { at, is_own: parts.next()? == "own", container: parts.next()?, name: parts.next()? })
}
