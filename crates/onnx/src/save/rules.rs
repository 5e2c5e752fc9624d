//! The operators of a node: those that have ONNX's name for the same, and products, reductions and losses of a few operators.
//! Convolutions and pools are in `layers`, ops that move elements in `shapes`.

use meshtf_graph::{Node, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::{Writer, int, layers, list, real, shapes, text};
use crate::elem::Elem;
use crate::unsupported;

/// Ops with ONNX's operator of the same meaning, inputs and no attributes.
const SAME: &[(&str, &str)] = &[
    ("Abs", "Abs"),
    ("Acos", "Acos"),
    ("Acosh", "Acosh"),
    ("Add", "Add"),
    ("AddV2", "Add"),
    ("AddN", "Sum"),
    ("Asin", "Asin"),
    ("Asinh", "Asinh"),
    ("Atan", "Atan"),
    ("Atanh", "Atanh"),
    ("Ceil", "Ceil"),
    ("Cos", "Cos"),
    ("Cosh", "Cosh"),
    ("Elu", "Elu"),
    ("Equal", "Equal"),
    ("Erf", "Erf"),
    ("Exp", "Exp"),
    ("Floor", "Floor"),
    ("Greater", "Greater"),
    ("GreaterEqual", "GreaterOrEqual"),
    ("Identity", "Identity"),
    ("Inv", "Reciprocal"),
    ("IsNan", "IsNaN"),
    ("IsInf", "IsInf"),
    ("Less", "Less"),
    ("LessEqual", "LessOrEqual"),
    ("Log", "Log"),
    ("LogicalAnd", "And"),
    ("LogicalNot", "Not"),
    ("LogicalOr", "Or"),
    ("Maximum", "Max"),
    ("Minimum", "Min"),
    ("Mul", "Mul"),
    ("Neg", "Neg"),
    ("PlaceholderWithDefault", "Identity"),
    ("Pow", "Pow"),
    ("PreventGradient", "Identity"),
    ("RealDiv", "Div"),
    ("Reciprocal", "Reciprocal"),
    ("Relu", "Relu"),
    ("Rint", "Round"),
    ("Round", "Round"),
    ("Selu", "Selu"),
    ("SelectV2", "Where"),
    ("Sigmoid", "Sigmoid"),
    ("Sign", "Sign"),
    ("Sin", "Sin"),
    ("Sinh", "Sinh"),
    ("Softplus", "Softplus"),
    ("Softsign", "Softsign"),
    ("Sqrt", "Sqrt"),
    ("StopGradient", "Identity"),
    ("Sub", "Sub"),
    ("Tan", "Tan"),
    ("Tanh", "Tanh"),
    ("CheckNumerics", "Identity"),
    ("EnsureShape", "Identity"),
    ("Snapshot", "Identity"),
];

/// Adds the operators of a node, and names its outputs.
pub fn node(w: &mut Writer, id: NodeId, node: &Node) -> Result<()> {
    let own = |port: u32| Output { node: id, port };
    if let Some((_, op)) = SAME.iter().find(|(name, _)| *name == node.op.name) {
        let inputs = names(w, &node.inputs)?;
        let name = w.put(op, &of(&inputs), Vec::new());
        w.names.insert(own(0), name);
        return Ok(());
    }
    let outputs = match one(w, own(0), node)? {
        Some(name) => vec![name],
        None => match shapes::node(w, id, node)? {
            Some(names) => names,
            None => match layers::node(w, node)? {
                Some(name) => vec![name],
                None => return Err(unsupported("there is no rule for this op")),
            },
        },
    };
    for (port, name) in outputs.into_iter().enumerate() {
        w.names.insert(own(port as u32), name);
    }
    Ok(())
}

/// The names of inputs.
pub fn names(w: &mut Writer, inputs: &[Output]) -> Result<Vec<String>> {
    inputs.iter().map(|&input| w.name(input)).collect()
}

pub fn of(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// The one output of an op that computes element by element, of a product or of a reduction.
fn one(w: &mut Writer, output: Output, node: &Node) -> Result<Option<String>> {
    let dtype = node.inputs.first().map_or(DType::F32, |&input| w.dtype(input));
    let name = node.op.name;
    // Names of constants are made when they are asked for: these rules take all inputs as they are.
    let inputs = match name {
        "Relu6" | "LeakyRelu" | "Rsqrt" | "Square" | "SquaredDifference" | "Log1p" | "Expm1" | "NotEqual"
        | "FloorDiv" | "Div" | "DivNoNan" | "Softmax" | "LogSoftmax" | "Cast" | "MatMul" | "BatchMatMul"
        | "BatchMatMulV2" | "BatchMatMulV3" | "BiasAdd" | "Select" | "Erfc" | "FloorMod" | "Einsum" => {
            names(w, &node.inputs)?
        }
        "Mean" | "Sum" | "Max" | "Min" | "Prod" => return reduced(w, node).map(Some),
        "ArgMax" | "ArgMin" => return place(w, output, node).map(Some),
        _ => return Ok(None),
    };
    let all = of(&inputs);
    Ok(Some(match name {
        "Relu6" => {
            let (zero, six) = (w.float(0.0, dtype)?, w.float(6.0, dtype)?);
            w.put("Clip", &[all[0], &zero, &six], Vec::new())
        }
        "LeakyRelu" => w.put("LeakyRelu", &all, vec![real("alpha", node.attrs.float("alpha").unwrap_or(0.2))]),
        "Rsqrt" => {
            let root = w.put("Sqrt", &all, Vec::new());
            w.put("Reciprocal", &[&root], Vec::new())
        }
        "Square" => w.put("Mul", &[all[0], all[0]], Vec::new()),
        "SquaredDifference" => {
            let difference = w.put("Sub", &all, Vec::new());
            w.put("Mul", &[&difference, &difference], Vec::new())
        }
        "Log1p" => {
            let one = w.float(1.0, dtype)?;
            let sum = w.put("Add", &[all[0], &one], Vec::new());
            w.put("Log", &[&sum], Vec::new())
        }
        "Erfc" => {
            let one = w.float(1.0, dtype)?;
            let error = w.put("Erf", &all, Vec::new());
            w.put("Sub", &[&one, &error], Vec::new())
        }
        "Expm1" => {
            let one = w.float(1.0, dtype)?;
            let power = w.put("Exp", &all, Vec::new());
            w.put("Sub", &[&power, &one], Vec::new())
        }
        "NotEqual" => {
            let equal = w.put("Equal", &all, Vec::new());
            w.put("Not", &[&equal], Vec::new())
        }
        "FloorDiv" if dtype.is_float() => {
            let quotient = w.put("Div", &all, Vec::new());
            w.put("Floor", &[&quotient], Vec::new())
        }
        "Div" if dtype.is_float() => w.put("Div", &all, Vec::new()),
        "FloorMod" if !dtype.is_float() => w.put("Mod", &all, Vec::new()),
        "Softmax" | "LogSoftmax" => w.put(name, &all, vec![int("axis", -1)]),
        "Cast" => {
            let to = Elem::of(w.dtype(output));
            w.put("Cast", &all, vec![int("to", to.0.into())])
        }
        "Select" if w.rank(node.inputs[0])? == w.rank(node.inputs[1])? => w.put("Where", &all, Vec::new()),
        "Einsum" => w.put("Einsum", &all, vec![text("equation", node.attrs.str("equation")?)]),
        "MatMul" => {
            let turns = ["transpose_a", "transpose_b"].map(|name| node.attrs.bool(name).unwrap_or(false));
            product(w, node, &all, turns)?
        }
        "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" => {
            let turns = ["adj_x", "adj_y"].map(|name| node.attrs.bool(name).unwrap_or(false));
            product(w, node, &all, turns)?
        }
        "BiasAdd" => {
            let channels_first = node.attrs.str("data_format").is_ok_and(|format| format == "NCHW");
            let rank = w.rank(node.inputs[0])?;
            if channels_first && rank > 2 {
                let axes = w.ints(&(1..rank as i64 - 1).collect::<Vec<_>>())?;
                let bias = w.put("Unsqueeze", &[all[1], &axes], Vec::new());
                w.put("Add", &[all[0], &bias], Vec::new())
            } else {
                w.put("Add", &all, Vec::new())
            }
        }
        _ => return Err(unsupported(format!("there is no rule for {dtype}"))),
    }))
}

/// A product of matrices, of which some are transposed first.
fn product(w: &mut Writer, node: &Node, inputs: &[&str], turns: [bool; 2]) -> Result<String> {
    let mut turned = Vec::with_capacity(2);
    for ((&input, name), turns) in node.inputs.iter().zip(inputs).zip(turns) {
        turned.push(match turns {
            false => (*name).to_owned(),
            true => {
                let rank = w.rank(input)? as i64;
                let mut axes: Vec<i64> = (0..rank).collect();
                axes.swap(rank as usize - 2, rank as usize - 1);
                w.put("Transpose", &[name], vec![list("perm", &axes)])
            }
        });
    }
    Ok(w.put("MatMul", &of(&turned), Vec::new()))
}

/// A reduction over constant axes.
fn reduced(w: &mut Writer, node: &Node) -> Result<String> {
    let axes = w.numbers(node.inputs[1])?;
    let x = w.name(node.inputs[0])?;
    if axes.is_empty() {
        return Ok(w.put("Identity", &[&x], Vec::new()));
    }
    let keeps = int("keepdims", node.attrs.bool("keep_dims").unwrap_or(false).into());
    Ok(match node.op.name {
        // Its axes are an input since opset 13, those of the others since 18.
        "Sum" => {
            let axes = w.ints(&axes)?;
            w.put("ReduceSum", &[&x, &axes], vec![keeps])
        }
        other => w.put(&format!("Reduce{other}"), &[&x], vec![keeps, list("axes", &axes)]),
    })
}

/// The index of the largest or smallest element.
fn place(w: &mut Writer, output: Output, node: &Node) -> Result<String> {
    let axis = w.numbers(node.inputs[1])?.first().copied().unwrap_or(0);
    let x = w.name(node.inputs[0])?;
    let index = w.put(node.op.name, &[&x], vec![int("axis", axis), int("keepdims", 0)]);
    Ok(match w.dtype(output) {
        DType::I64 => index,
        other => w.put("Cast", &[&index], vec![int("to", Elem::of(other).0.into())]),
    })
}
