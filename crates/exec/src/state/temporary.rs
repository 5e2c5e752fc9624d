//! Temporary variables, which live as long as a reference to them flows through their step; DestroyResourceOp; FakeParam.

use std::sync::Arc;

use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::resource::{Dummy, Variable};
use super::super::token::{Optional, Token, Tokens};
use super::op::{one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("TemporaryVariable", |node, _| {
        let stated = node.attrs.str("var_name")?;
        let name = if stated.is_empty() { node.name } else { stated }.to_owned();
        let (dtype, shape) = (node.attrs.dtype("dtype")?, node.attrs.shape("shape")?.clone());
        if matches!(dtype, DType::Resource | DType::Variant) {
            return Err(Failure::invalid(format!("a temporary variable holds a tensor, not a {dtype}")));
        }
        let whole = shape
            .known()
            .ok_or_else(|| Failure::invalid(format!("a temporary variable has a shape that is known, not {shape}")))?;
        simple(move |_, _| {
            let variable = Variable::new(name.clone(), dtype, shape.clone());
            // TensorFlow's variable has the previous contents of its memory.
            variable.hold().value = Some(Tensor::zeros(dtype, whole.clone())?.into());
            Ok(one(Token::Ref(Arc::new(variable))))
        })
    });
    ops.insert("DestroyTemporaryVariable", |node, _| {
        let name = node.attrs.str("var_name")?.to_owned();
        if name.is_empty() {
            return Err(Failure::invalid("Missing var_name attribute"));
        }
        simple(move |mut inputs, _| {
            let variable = inputs.resource(0)?.typed::<Variable>();
            let variable = variable.map_err(|_| Failure::invalid("lhs input needs to be a ref type"))?;
            let value = if variable.name == name { variable.hold().value.take() } else { None };
            match value {
                Some(value) => Ok(one(value)),
                None => {
                    let why = format!("Resource {name} does not exist: there is no temporary variable of that name");
                    Err(Failure::new(Code::NotFound, why))
                }
            }
        })
    });
    ops.insert("DestroyResourceOp", |node, site| {
        let (tolerates, resources) = (node.attrs.bool("ignore_lookup_error")?, Arc::clone(&site.resources));
        simple(move |mut inputs, _| {
            let resource = inputs.resource(0)?;
            let mut existed = resources.forget(&resource);
            if let Ok(variable) = resource.typed::<Variable>() {
                // In TensorFlow, the first value makes the variable. A handle that the step has already sees that it is gone.
                existed = variable.is_initialized();
                variable.hold().lose();
            }
            match existed || tolerates {
                true => Ok(Tokens::new()),
                false => Err(Failure::new(
                    Code::NotFound,
                    "Resource does not exist: nothing has made it, or it was destroyed",
                )),
            }
        })
    });
    // Output of a branch that nobody may use: the same one of the other branch is kept for a gradient. TensorFlow leaves the
    // elements as the memory was.
    ops.insert("FakeParam", |node, _| {
        let dtype = node.attrs.dtype("dtype")?;
        let sizes = node.attrs.shape("shape")?.0.iter().flatten().map(|size| size.unwrap_or(0));
        let shape: Shape = sizes.collect();
        simple(move |_, _| match dtype {
            DType::Resource => Ok(one(Token::Resource(Arc::new(Dummy)))),
            DType::Variant => Ok(one(Optional::new(None)?)),
            _ => Ok(one(Tensor::zeros(dtype, shape.clone())?)),
        })
    });
}
