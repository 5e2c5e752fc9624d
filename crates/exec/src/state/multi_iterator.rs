//! The ops of iterators whose elements are dealt to several devices.

use meshtf_kernels::KernelNode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::resource::MultiIterator;
use super::super::token::Token;
use super::dataset::spec;
use super::iterator::{again, find_written, written};
use super::named::Named;
use super::op::{one, simple};
use super::registry::Registry;

/// The first line of a handle as text.
const KIND: &str = "multi-device iterator";

pub(super) fn register(ops: &mut Registry) {
    ops.insert("MultiDeviceIterator", |node, site| {
        let (spec, devices) = (spec(node)?, devices(node)?);
        let mut named = Named::<MultiIterator>::new_own(node, site)?;
        let key = named.key().clone();
        simple(move |_, _| {
            let iterator = named.find(|_| MultiIterator::new(key.clone(), spec.clone(), devices))?;
            iterator.spec().check_against(&spec)?;
            Ok(one(Token::Resource(iterator)))
        })
    });
    ops.insert_call("MultiDeviceIteratorInit", |mut inputs, context| {
        let (dataset, iterator) = (inputs.dataset(0)?, inputs.resource(1)?.typed::<MultiIterator>()?);
        // Elements wait for a device that is behind, however many there are: nothing is made ahead.
        inputs.host(2)?.item::<i64>()?;
        Ok(one(Tensor::scalar(iterator.begin(dataset, &context.pull())?)))
    });
    ops.insert("MultiDeviceIteratorGetNextFromShard", |node, site| {
        let (spec, again) = (spec(node)?, again(site));
        simple(move |mut inputs, context| {
            let iterator = inputs.resource(0)?.typed::<MultiIterator>()?;
            let (device, incarnation) = (inputs.host(1)?.item::<i32>()?, inputs.host(2)?.item::<i64>()?);
            let element = iterator.next(device, incarnation, &context.pull(), &again)?;
            let element = element.ok_or_else(|| Failure::new(Code::OutOfRange, "End of sequence"))?;
            spec.check(&element)?;
            Ok(element.into_iter().map(Some).collect())
        })
    });
    ops.insert("MultiDeviceIteratorToStringHandle", |_, _| {
        simple(|mut inputs, _| {
            let iterator = inputs.resource(0)?.typed::<MultiIterator>()?;
            Ok(one(Tensor::scalar(written(KIND, iterator.key()).into_bytes())))
        })
    });
    ops.insert("MultiDeviceIteratorFromStringHandle", |node, site| {
        let spec = if node.attrs.dtypes("output_types")?.is_empty() { None } else { Some(spec(node)?) };
        let find = find_written(KIND, site);
        simple(move |mut inputs, _| {
            // Its devices take their elements by the handle, wherever on the task it is.
            let iterator = find(&inputs.host(0)?.item::<Vec<u8>>()?, false)?.typed::<MultiIterator>()?;
            spec.as_ref().map_or(Ok(()), |spec| iterator.spec().check_against(spec))?;
            Ok(one(Token::Resource(iterator)))
        })
    });
}

fn devices(node: &KernelNode) -> Result<usize> {
    let devices = node.attrs.strs("devices")?.len();
    if devices == 0 {
        return Err(Failure::invalid("a multi-device iterator needs at least one device"));
    }
    Ok(devices)
}
