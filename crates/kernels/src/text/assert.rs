//! Assert: fails its step with the values of its inputs if the condition is false.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Data, Tensor};

use super::super::{HostKernel, Inputs, KernelNode, Outputs};

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let most = usize::try_from(node.attrs.int("summarize")?).unwrap_or(usize::MAX);
    Ok(Box::new(move |inputs: Inputs| {
        let [condition, data @ ..] = inputs.as_slice() else {
            return Err(Failure::invalid("Assert takes a condition"));
        };
        if condition.item::<bool>()? {
            return Ok(Outputs::new());
        }
        let data: Vec<String> = data.iter().map(|tensor| format!("[{}]", summary(tensor, most))).collect();
        Err(Failure::invalid(format!("assertion failed: {}", data.join(" "))))
    }))
}

/// The first elements, with each row of a matrix in brackets, as TensorFlow formats them: `[1 2][3 4]...`.
fn summary(tensor: &Tensor, most: usize) -> String {
    let shown = tensor.len().min(most);
    let mut text = String::new();
    for i in 0..shown {
        let mut size = 1;
        let closed = tensor.dims().iter().skip(1).rev().filter(|&&dim| {
            size *= dim;
            i.is_multiple_of(size)
        });
        let closed = closed.count();
        if i > 0 {
            text.push_str(&"]".repeat(closed));
            text.push_str(if closed == 0 { " " } else { "" });
        }
        text.push_str(&"[".repeat(closed));
        text.push_str(&element(tensor.data(), i));
    }
    if shown < tensor.len() {
        text.push_str("...");
    } else if shown > 0 {
        text.push_str(&"]".repeat(tensor.rank().saturating_sub(1)));
    }
    text
}

fn element(data: &Data, i: usize) -> String {
    macro_rules! show {
        ($($variant:ident),*) => {
            match data {
                $(Data::$variant(v) => v[i].to_string(),)*
                Data::Bool(v) => u8::from(v[i]).to_string(),
                Data::String(v) => String::from_utf8_lossy(&v[i]).into_owned(),
                Data::C64(v) => format!("({},{})", v[i].re, v[i].im),
                Data::C128(v) => format!("({},{})", v[i].re, v[i].im),
            }
        };
    }
    show!(F16, BF16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, QI8, QI16, QI32, QU8, QU16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_summarised_as_tensorflow_does() {
        let check = |tensor: Tensor, most: usize, text: &str| assert_eq!(summary(&tensor, most), text);
        check(Tensor::scalar(3i32), 3, "3");
        check(Tensor::vector(vec![1i32, 2, 3, 4]), 3, "1 2 3...");
        check(Tensor::vector(vec![1i32, 2, 3]), 3, "1 2 3");
        check(Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]), 9, "[1 2][3 4]");
        check(Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]), 3, "[1 2][3...");
        check(Tensor::scalar(b"so it is".to_vec()), 3, "so it is");
        check(Tensor::scalar(meshtf_tensor::Complex::new(1.5f32, -2.0)), 3, "(1.5,-2)");
        check(Tensor::scalar(true), 3, "1");
    }
}
