//! Every kernel against TensorFlow's answers: the cases of `tests/data/kernels/*.json` (see `meshtf_cases` for their
//! format).

use meshtf_cases::{cases, list, same, tensor, with_node};
use meshtf_graph::op;
use meshtf_kernels::{Inputs, Outputs, compile};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use serde_json::Value;

#[test]
fn kernels_answer_as_tensorflow_does() {
    // Read first: once denormals are flushed, they would be read as zero.
    let read = |value: &Value| -> Vec<Tensor> { list(value).iter().map(tensor).collect() };
    let read = |(name, case): (String, Value)| (name, read(&case["inputs"]), read(&case["outputs"]), case);
    let cases: Vec<_> = cases().into_iter().map(read).collect();
    meshtf_loops::denormals::flush();
    let mut wrong = Vec::new();
    for (name, inputs, wanted, case) in &cases {
        if let Err(why) = check(case, inputs.iter().cloned().collect(), wanted) {
            let inputs: String = case["inputs"].to_string().chars().take(300).collect();
            wrong.push(format!("{name} {} {} {inputs}: {why}", case["op"], case["attrs"]));
        }
    }
    let cases = cases.len();
    assert!(cases > 3000, "{cases} cases");
    let shown: Vec<&str> = wrong.iter().take(40).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {cases} cases are wrong:\n{}", wrong.len(), shown.join("\n"));
}

fn check(case: &Value, inputs: Inputs, wanted: &[Tensor]) -> Result<(), String> {
    let got = run(case, inputs);
    match (case["error"].as_str(), got) {
        (Some(class), Err(failure)) => {
            let words = case["message"].as_str().unwrap_or("");
            if failure.code.class().trim_end_matches("Error") == class && failure.message.contains(words) {
                Ok(())
            } else {
                Err(format!("failed with {failure}, wanted {class}: {words}"))
            }
        }
        (Some(class), Ok(outputs)) => Err(format!("answered {outputs:?}, wanted {class}: {}", case["message"])),
        (None, Err(failure)) => Err(format!("failed with {failure}")),
        (None, Ok(outputs)) => {
            if outputs.len() != wanted.len() {
                return Err(format!("{} outputs, wanted {}", outputs.len(), wanted.len()));
            }
            outputs.iter().zip(wanted).try_for_each(|(got, want)| same(case, got, want))
        }
    }
}

fn run(case: &Value, inputs: Inputs) -> Result<Outputs> {
    let op = case["op"].as_str().unwrap();
    let compiled = with_node(case, &inputs, compile)?;
    let mut kernel = compiled.ok_or_else(|| Failure::invalid(format!("{op} has no kernel")))?;
    // Once with shared inputs and once with inputs that the kernel may overwrite.
    let shared = kernel(inputs.clone());
    let own = inputs
        .into_iter()
        .map(|input| Tensor::new(input.shape().clone(), input.data().clone()))
        .collect::<Result<_>>()?;
    let result = kernel(own);
    if let (Ok(shared), Ok(result)) = (&shared, &result) {
        let stateful = op::lookup(op).is_some_and(|op| op.stateful);
        assert!(
            stateful || format!("{shared:?}") == format!("{result:?}"),
            "{op}: {shared:?} once, {result:?} in place"
        );
    }
    result
}
