//! Every update against TensorFlow's result for the same variables: the cases of `tests/data/updates/*.json`.
//!
//! A case is like those of kernels, with `variables` as well as `inputs`; `outputs` are the variables after the update.
//! It applies to both forms of the op: with references and with resources.

use meshtf_cases::{list, same, tensor, updates as cases, with_update};
use meshtf_graph::op;
use meshtf_kernels::update::update;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
use serde_json::Value;

#[test]
fn variables_change_as_in_tensorflow() {
    let cases = cases();
    let mut wrong = Vec::new();
    for case in &cases {
        let op = case["op"].as_str().unwrap();
        let bare = op.strip_prefix("Resource").unwrap_or(op);
        let forms = [bare.to_owned(), format!("Resource{bare}")];
        for form in forms.iter().filter(|form| op::lookup(form).is_some()) {
            if let Err(why) = check(case, form) {
                wrong.push(format!("{form} {} {} {}: {why}", case["attrs"], case["variables"], case["inputs"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn check(case: &Value, op: &str) -> Result<(), String> {
    let before: Vec<Tensor> = list(&case["variables"]).iter().map(tensor).collect();
    // A reader holds the old values, which must not change.
    let mut variables = before.clone();
    let result = apply(case, op, &mut variables);
    if let Some(class) = case["error"].as_str() {
        let words = case["message"].as_str().unwrap_or("");
        return match result {
            Err(failure) if failure.message.contains(words) && failure.code.class().starts_with(class) => {
                if variables == before { Ok(()) } else { Err(format!("failed, but changed {variables:?}")) }
            }
            other => Err(format!("answered {other:?}, wanted {class}: {words}")),
        };
    }
    result.map_err(|failure| failure.to_string())?;
    let wanted: Vec<Tensor> = list(&case["outputs"]).iter().map(tensor).collect();
    variables.iter().zip(&wanted).try_for_each(|(got, want)| same(case, got, want))
}

fn apply(case: &Value, op: &str, variables: &mut [Tensor]) -> Result<()> {
    changed(case, op, variables, &list(&case["inputs"]).iter().map(tensor).collect::<Vec<_>>())
}

fn changed(case: &Value, op: &str, variables: &mut [Tensor], rest: &[Tensor]) -> Result<()> {
    let update = with_update(case, op, variables, rest, update)?.expect("the op is an update");
    assert_eq!(update.variables, variables.len(), "{op}");
    update.apply(variables, rest)
}

#[test]
fn variables_change_alike_whatever_their_size() {
    let mut ran = 0;
    for case in cases() {
        let op = case["op"].as_str().unwrap();
        let is_dense = op.contains("Apply") && !op.contains("Sparse");
        let is_by_row = op.contains("SparseApply") || op.contains("Scatter") && !op.contains("ScatterNd");
        let variables: Vec<Tensor> = list(&case["variables"]).iter().map(tensor).collect();
        let first = &variables[0];
        if !(is_dense || is_by_row) || first.dtype() != DType::F32 || first.is_empty() || !case["error"].is_null() {
            continue;
        }
        // Rows, or all of a dense update, are made longer: enough for several threads, and a few elements more.
        let width = first.dims()[usize::from(is_by_row)..].iter().product::<usize>();
        let times = if is_dense { 140_003 } else { 70_003 } / width;
        let larger = |tensor: Tensor| match tensor.slice::<f32>() {
            Ok(all) if tensor.rank() > 0 => {
                let rows: Vec<f32> = all.chunks(width).flat_map(|row| row.repeat(times)).collect();
                let rows_of = if is_by_row { vec![all.len() / width, width * times] } else { vec![width * times] };
                Tensor::from_vec(rows_of, rows)
            }
            _ => tensor,
        };
        let rest: Vec<Tensor> = list(&case["inputs"]).iter().map(tensor).collect();
        // The updates have the shape of the indices followed by that of a row, so only a vector of indices fits the
        // longer rows.
        if is_by_row && rest.iter().any(|input| input.dtype().is_integer() && input.rank() != 1) {
            continue;
        }
        let mut large: Vec<Tensor> = variables.iter().cloned().map(larger).collect();
        let mut small = variables;
        changed(&case, op, &mut small, &rest).unwrap();
        changed(&case, op, &mut large, &rest.into_iter().map(larger).collect::<Vec<_>>()).unwrap();
        for (small, large) in small.into_iter().map(larger).zip(&large) {
            let bits =
                |tensor: &Tensor| -> Vec<u32> { tensor.slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect() };
            assert!(bits(&small) == bits(large), "{op} {}", case["attrs"]);
        }
        ran += 1;
    }
    assert!(ran > 100, "{ran} cases");
}
