//! The ops of a session's own tensors, which stay on the device between steps; and the clock.

use std::sync::Arc;

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::resource::{SessionTensors, seconds};
use super::super::token::Token;
use super::named::{Named, Site};
use super::op::{StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("GetSessionHandle", |node, site| keep(node, site, false));
    ops.insert("GetSessionHandleV2", |node, site| keep(node, site, true));
    ops.insert("GetSessionTensor", |node, site| {
        let (dtype, mut named) = (node.attrs.dtype("dtype")?, tensors(site));
        simple(move |mut inputs, _| {
            let handle = handle(&mut inputs)?;
            let tensor = find(&mut named).ok().and_then(|all| all.get(&handle));
            let tensor = tensor.ok_or_else(|| unknown(&handle))?;
            if tensor.dtype() != dtype {
                let why = format!("the tensor with handle '{handle}' is of {}, not of {dtype}", tensor.dtype());
                return Err(Failure::invalid(why));
            }
            Ok(one(tensor))
        })
    });
    ops.insert("DeleteSessionTensor", |_, site| {
        let mut named = tensors(site);
        simple(move |mut inputs, _| {
            let handle = handle(&mut inputs)?;
            let tensor = find(&mut named).ok().and_then(|all| all.remove(&handle));
            tensor.map(|_| nothing()).ok_or_else(|| {
                Failure::invalid(format!("Failed to delete a tensor with handle '{handle}' in the session store."))
            })
        })
    });
    ops.insert_call("Timestamp", |_, _| Ok(one(Tensor::scalar(seconds()))));
}

/// The session's tensors on this device.
fn tensors(site: &Site) -> Named<SessionTensors> {
    Named::of_session("tensors of session handles", site)
}

fn find(named: &mut Named<SessionTensors>) -> Result<Arc<SessionTensors>> {
    named.find(|_| SessionTensors::default())
}

fn keep(node: &KernelNode, site: &Site, is_resource: bool) -> Result<StateOp> {
    let (mut named, name, place) = (tensors(site), node.name.to_owned(), Arc::clone(&site.place));
    if node.attrs.dtype("T")?.is_handle() {
        return Err(Failure::invalid("a session keeps tensors, and neither handles nor variants"));
    }
    simple(move |mut inputs, _| {
        let all = find(&mut named)?;
        // TensorFlow's form, of which its client reads the device.
        let handle = all.keep(inputs.host(0)?, |number| format!("{name};{number};{place}"))?;
        Ok(if is_resource { one(Token::Resource(all)) } else { one(Tensor::scalar(handle.into_bytes())) })
    })
}

fn handle(inputs: &mut StateInputs) -> Result<String> {
    let handle = inputs.host(0)?;
    if handle.dtype() != DType::String || handle.rank() != 0 {
        return Err(Failure::invalid(format!("a session handle is one string, got shape {}", handle.shape())));
    }
    Ok(String::from_utf8_lossy(&handle.item::<Vec<u8>>()?).into_owned())
}

fn unknown(handle: &str) -> Failure {
    let why = format!("The tensor with handle '{handle}' is not in the session store.");
    Failure::new(Code::InvalidArgument, why)
}
