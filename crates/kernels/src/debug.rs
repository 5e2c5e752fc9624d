//! Ops of TensorFlow's debugger: identities with its names, counts of what is not finite, and summaries of numbers; with
//! CheckNumericsV2, ToBool, Fact and Abort.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, Tensor};

use super::call::{input_dtype, kernel as call, output_dtype, take};
use super::{KernelNode, Outputs, Registry, cast};

/// Registers the ops.
pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(["DebugIdentity", "DebugIdentityV2", "DebugIdentityV3"], |node| {
        check_watched(node)?;
        Ok(Some(call(|[x]: [Tensor; 1]| Ok(x))))
    });
    ops.insert("DebugNanCount", |node| {
        check_watched(node)?;
        let dtype = input_dtype(node, 0)?;
        let is_counted = dtype.is_float() || dtype.is_integer();
        Ok(is_counted.then(|| call(|[x]| Ok(Tensor::vector(vec![Tally::of(&x)?.nans as i64])))))
    });
    ops.insert("DebugNumericSummary", |node| {
        check_watched(node)?;
        if input_dtype(node, 0)? == DType::String {
            return Ok(None);
        }
        let bounds = [node.attrs.float("lower_bound")?, node.attrs.float("upper_bound")?];
        Ok(Some(call(move |[x]| summary(&x, bounds))))
    });
    ops.insert("DebugNumericSummaryV2", |node| {
        let (mode, id, dtype) = (node.attrs.int("tensor_debug_mode")?, node.attrs.int("tensor_id")?, output_dtype(node, 0)?);
        if input_dtype(node, 0)? == DType::String {
            return Ok(None);
        }
        if dtype == DType::F32 && id > 1 << 24 {
            let why = "DebugNumericSummaryV2Op requires tensor_id to be less than or equal to (1 << 24) for output dtype \
                       float32";
            return Err(Failure::invalid(format!("{why}, got {id}")));
        }
        Ok(Some(call(move |[x]| cast(Tensor::vector(health(&x, mode, id)?), dtype))))
    });
    ops.insert("CheckNumericsV2", |node| {
        let message = node.attrs.str("message")?.to_owned();
        let is_float = input_dtype(node, 0)?.is_float();
        Ok(is_float.then(|| call(move |[x]| check(x, &message))))
    });
    ops.insert("ToBool", |_| Ok(Some(call(|[x]| Ok(Tensor::scalar(truth(&x)?))))));
    ops.insert("Fact", |_| Ok(Some(call(|[]| Ok(Tensor::scalar(b"0! == 1".to_vec()))))));
    ops.insert("Abort", |node| {
        let said = node.attrs.str("error_msg")?.to_owned();
        let why = match (node.attrs.bool("exit_without_error")?, said.is_empty()) {
            (true, _) => "Abort ends the step; the node continues".to_owned(),
            (false, true) => "Abort_op intentional failure".to_owned(),
            (false, false) => format!("Abort_op intentional failure; {said}"),
        };
        Ok(Some(Box::new(move |inputs| -> Result<Outputs> {
            let [] = take(inputs)?;
            Err(Failure::new(Code::Aborted, why.clone()))
        })))
    });
}

/// Refuses a node whose tensor has no name, and one that is to publish what it sees: its debugger would be a server or a
/// folder outside of the task's.
fn check_watched(node: &KernelNode) -> Result<()> {
    if node.attrs.get("tensor_name").is_some() {
        let name = node.attrs.str("tensor_name")?;
        let mut parts = name.split(':');
        let is_name = !parts.next().unwrap_or("").is_empty()
            && parts.next().is_none_or(|port| port.parse::<u32>().is_ok())
            && parts.next().is_none();
        if !is_name {
            return Err(Failure::invalid(format!("Failed to parse tensor name: \"{name}\"")));
        }
    }
    match node.attrs.get("debug_urls").map(|_| node.attrs.strs("debug_urls")).transpose()? {
        Some(urls) if !urls.is_empty() => {
            let why = format!("{} publishes nothing: its debug_urls must be empty. Fetch the tensor instead", node.op);
            Err(Failure::new(Code::Unimplemented, why))
        }
        _ => Ok(()),
    }
}

/// Counts of the elements of a tensor.
#[derive(Default)]
struct Tally {
    count: u64,
    nans: u64,
    /// Infinite, or at or beyond a bound.
    low: u64,
    high: u64,
    negative: u64,
    zero: u64,
    positive: u64,
    least: f64,
    most: f64,
    /// Of those that are neither NaN nor infinite.
    finite: u64,
    sum: f64,
}

impl Tally {
    fn of(x: &Tensor) -> Result<Tally> {
        Tally::within(x, [f32::NEG_INFINITY, f32::INFINITY])
    }

    fn within(x: &Tensor, [lower, upper]: [f32; 2]) -> Result<Tally> {
        let mut tally = Tally { least: f64::INFINITY, most: f64::NEG_INFINITY, ..Tally::default() };
        if x.dtype() == DType::String {
            return Ok(Tally { count: x.len() as u64, ..tally });
        }
        let numbers = cast(x.clone(), DType::F64)?;
        let (lower, upper) = (f64::from(lower), f64::from(upper));
        let mut pace = Pace::new();
        for &number in numbers.slice::<f64>()? {
            pace.go(4);
            tally.count += 1;
            if number.is_nan() {
                tally.nans += 1;
                continue;
            }
            if number <= lower {
                tally.low += 1;
            } else if number >= upper {
                tally.high += 1;
            } else if number < 0.0 {
                tally.negative += 1;
            } else if number > 0.0 {
                tally.positive += 1;
            } else {
                tally.zero += 1;
            }
            if number.is_finite() {
                tally.least = tally.least.min(number);
                tally.most = tally.most.max(number);
                tally.finite += 1;
                tally.sum += number;
            }
        }
        Ok(tally)
    }
}

/// 14 numbers about a tensor, and its dimensions.
fn summary(x: &Tensor, bounds: [f32; 2]) -> Result<Tensor> {
    let tally = Tally::within(x, bounds)?;
    let (mut mean, mut variance) = (f64::NAN, f64::NAN);
    if tally.finite > 0 {
        mean = tally.sum / tally.finite as f64;
        let numbers = cast(x.clone(), DType::F64)?;
        let finite = numbers.slice::<f64>()?.iter().filter(|number| number.is_finite());
        variance = finite.map(|number| (number - mean) * (number - mean)).sum::<f64>() / tally.finite as f64;
    }
    let counts = [tally.count, tally.nans, tally.low, tally.negative, tally.zero, tally.positive, tally.high];
    let mut all: Vec<f64> = [1.0].into_iter().chain(counts.map(|count| count as f64)).collect();
    all.extend([tally.least, tally.most, mean, variance, f64::from(x.dtype().proto_number()), x.rank() as f64]);
    all.extend(x.dims().iter().map(|&size| size as f64));
    Ok(Tensor::vector(all))
}

/// The numbers of one of TensorFlow's modes: 2 and 3 are about health, 4 in full, 5 about the shape, 8 for a reduction.
fn health(x: &Tensor, mode: i64, id: i64) -> Result<Vec<f64>> {
    let id = id as f64;
    let (dtype, rank, size) = (f64::from(x.dtype().proto_number()), x.rank() as f64, x.len() as f64);
    let counted = || -> Result<[f64; 6]> {
        let tally = Tally::of(x)?;
        let counts = [tally.low, tally.high, tally.nans, tally.negative, tally.zero, tally.positive];
        Ok(counts.map(|count| count as f64))
    };
    Ok(match mode {
        2 => {
            let [low, high, nans, ..] = counted()?;
            vec![id, if low + high + nans > 0.0 { 1.0 } else { 0.0 }]
        }
        3 => {
            let [low, high, nans, ..] = counted()?;
            vec![id, size, low, high, nans]
        }
        4 => [id, -1.0, dtype, rank, size].into_iter().chain(counted()?).collect(),
        5 => {
            // The last six sizes; zeros follow those of fewer dimensions.
            let dims = x.dims();
            let last = dims[dims.len().saturating_sub(6)..].iter().map(|&size| size as f64);
            let zeros = std::iter::repeat(0.0);
            [id, dtype, rank, size].into_iter().chain(last.chain(zeros).take(6)).collect()
        }
        8 => {
            let [low, high, nans, ..] = counted()?;
            let if_any = |count: f64, value: f64| if count > 0.0 { value } else { 0.0 };
            vec![if_any(low, f64::NEG_INFINITY), if_any(high, f64::INFINITY), if_any(nans, f64::NAN)]
        }
        other => {
            let why = format!("Unimplemented tensor debug mode: {other}. It must be 2, 3, 4, 5 or 8");
            return Err(Failure::new(Code::Unimplemented, why));
        }
    })
}

/// The tensor, if all of it is finite.
fn check(x: Tensor, message: &str) -> Result<Tensor> {
    let tally = Tally::of(&x)?;
    let found: Vec<&str> = [(tally.low, "-Inf"), (tally.high, "+Inf"), (tally.nans, "NaN")]
        .into_iter()
        .filter_map(|(count, name)| (count > 0).then_some(name))
        .collect();
    let shown = match found[..] {
        [] => return Ok(x),
        [one] => one.to_owned(),
        [one, other] => format!("{one} and {other}"),
        _ => "-Inf, +Inf, and NaN".to_owned(),
    };
    Err(Failure::invalid(format!("{message} : Tensor had {shown} values")))
}

/// Whether a scalar is not zero or empty; for others, whether there are elements.
fn truth(x: &Tensor) -> Result<bool> {
    if x.rank() > 0 {
        return Ok(!x.is_empty());
    }
    match x.data() {
        Data::String(texts) => Ok(texts.first().is_some_and(|text| !text.is_empty())),
        Data::Bool(truths) => Ok(truths.first().copied().unwrap_or(false)),
        _ => Ok(cast(x.clone(), DType::F64)?.item::<f64>()? != 0.0),
    }
}
