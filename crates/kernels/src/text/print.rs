//! Print: writes values to the standard error of the node that runs the op.

use std::io::Write;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::{HostKernel, Inputs, KernelNode};

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let message = node.attrs.str("message")?.to_owned();
    let mut left = u64::try_from(node.attrs.int("first_n")?).unwrap_or(u64::MAX);
    let most = usize::try_from(node.attrs.int("summarize")?).unwrap_or(usize::MAX);
    Ok(Box::new(move |mut inputs: Inputs| {
        if inputs.is_empty() {
            return Err(Failure::invalid("Print takes an input"));
        }
        if left > 0 {
            left -= 1;
            let shown: String = inputs[1..].iter().map(|tensor| format!("[{}]", summary(tensor, most))).collect();
            write(&format!("{message}{shown}\n"));
        }
        inputs.truncate(1);
        Ok(inputs.into_iter().collect())
    }))
}

/// The first elements, separated by spaces.
fn summary(tensor: &Tensor, most: usize) -> String {
    let shown: Vec<String> = (0..tensor.len().min(most)).map(|i| element(tensor, i)).collect();
    format!("{}{}", shown.join(" "), if tensor.len() > most { "..." } else { "" })
}

fn element(tensor: &Tensor, i: usize) -> String {
    let element = tensor.element(i);
    // TensorFlow's Print writes a bool as a number.
    match tensor.dtype() {
        DType::Bool => u8::from(element.item::<bool>().unwrap_or_default()).to_string(),
        _ => element.to_string(),
    }
}

/// Writes to the standard error. Ignores errors: a closed standard error must not fail a step.
pub(super) fn write(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
