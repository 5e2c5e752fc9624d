//! The section `variables` of a document: the specification and the initial value of each variable.

use meshtf_tensor::json::{Fault, Kind, Member, Path, Value, is_whole};
use meshtf_tensor::{DType, literal};

use super::draft::{self, Draft, Made};
use crate::build::is_node_name;
use crate::variable::{Initializer, VariableSpec};
use crate::{Attrs, GraphError, op};

type Read<T> = Result<T, Fault>;

/// The initial values without parameters.
const NAMED: &[(&str, Initializer)] = &[
    ("zeros", Initializer::Zeros),
    ("ones", Initializer::Ones),
    ("glorot_uniform", Initializer::GlorotUniform),
    ("glorot_normal", Initializer::GlorotNormal),
    ("he_uniform", Initializer::HeUniform),
    ("he_normal", Initializer::HeNormal),
];

/// The initial values with parameters, and the names of these.
const WITH_NUMBERS: &[(&str, [&str; 2])] =
    &[("uniform", ["low", "high"]), ("normal", ["mean", "stddev"]), ("truncated_normal", ["mean", "stddev"])];

/// Reads the section.
pub(super) fn read(value: &Value, path: Path) -> Read<Vec<VariableSpec>> {
    let members = value.object(path, "variables is an object of variables by their names")?;
    members.iter().map(|member| variable(member, path.key(&member.key))).collect()
}

/// A draft of a variable for the inference of dtypes: an op without inputs whose dtype is stated.
pub(super) fn draft<'v, 'a>(spec: &'v VariableSpec) -> Option<Draft<'v, 'a>> {
    let attrs = Attrs::from([("dtype", spec.dtype.into())]);
    let made = Made::Op { op: op::lookup("ReadVariableOp")?, inputs: Vec::new(), attrs };
    Some(Draft { name: &spec.name, device: String::new(), control: Vec::new(), made })
}

fn variable(member: &Member, path: Path) -> Read<VariableSpec> {
    if !is_node_name(&member.key) {
        let why = GraphError::BadName { name: member.key.to_string() }.to_string();
        return Err(Fault::of_content(member.at, path, why));
    }
    let members = member.value.object(path, "a variable is an object with a \"shape\"")?;
    let mut spec = VariableSpec::new(&member.key, meshtf_tensor::Shape::scalar(), Initializer::Zeros);
    let (mut has_shape, mut initial) = (false, None);
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "shape" => (spec.shape, has_shape) = (draft::shape(value, path)?, true),
            "dtype" => spec.dtype = super::attr::dtype_of_value(value, path)?,
            "initial" => initial = Some(value),
            "seed" => spec.seed = whole(value, path)?,
            "trainable" => spec.trainable = truth(value, path)?,
            "device" => spec.device = draft::device(value, path)?,
            "description" => _ = value.text(path)?,
            _ => {
                let known = ["shape", "dtype", "initial", "seed", "trainable", "device", "description"];
                return Err(draft::unknown_key(key, *at, path, &known));
            }
        }
    }
    if !has_shape {
        return Err(Fault::content(&member.value, path, "a variable has a \"shape\"; that of one number is []"));
    }
    if let Some(value) = initial {
        spec.initial = first_value(value, path.key("initial"), spec.dtype)?;
    }
    Ok(spec)
}

fn first_value(value: &Value, path: Path, dtype: DType) -> Read<Initializer> {
    let unknown = |name: &str, at: usize, path: Path| {
        let names = NAMED.iter().map(|(name, _)| *name).chain(WITH_NUMBERS.iter().map(|(name, _)| *name));
        let names: Vec<&str> = names.collect();
        let near = meshtf_tensor::nearest::nearest(name, names.iter().copied());
        let hint = near
            .first()
            .map_or_else(|| format!("there are {}", names.join(", ")), |near| format!("did you mean {near}?"));
        Fault::of_content(at, path, format!("unknown initial value {name:?}; {hint}"))
    };
    match &value.kind {
        Kind::String(name) => match NAMED.iter().find(|(known, _)| known == name) {
            Some((_, initial)) => Ok(initial.clone()),
            None => match WITH_NUMBERS.iter().find(|(known, _)| known == name) {
                Some((name, _)) => Ok(drawn(name, first_numbers(name))),
                None => Err(unknown(name, value.at, path)),
            },
        },
        Kind::Object(members) => {
            let [Member { key, at, value }] = &members[..] else {
                let why = "an initial value with numbers is an object with one key, as {\"normal\": {\"stddev\": 0.1}}";
                return Err(Fault::content(value, path, why));
            };
            let path = path.key(key);
            let Some((name, names)) = WITH_NUMBERS.iter().find(|(known, _)| known == key) else {
                return Err(match NAMED.iter().any(|(known, _)| known == key) {
                    true => {
                        Fault::of_content(*at, path, format!("{key} takes no numbers: write \"initial\": \"{key}\""))
                    }
                    false => unknown(key, *at, path),
                });
            };
            let mut numbers = first_numbers(name);
            for Member { key, at, value } in value.object(path, "its numbers are an object")? {
                match names.iter().position(|known| known == key) {
                    Some(i) => numbers[i] = number(value, path.key(key))?,
                    None => return Err(draft::unknown_key(key, *at, path.key(key), names)),
                }
            }
            Ok(drawn(name, numbers))
        }
        _ => literal::from_json(value, Some(dtype), path).map(Initializer::Constant),
    }
}

/// The numbers of a distribution unless others are stated.
fn first_numbers(name: &str) -> [f64; 2] {
    if name == "uniform" { [-0.05, 0.05] } else { [0.0, 1.0] }
}

/// The initial values of a distribution.
fn drawn(name: &str, [first, second]: [f64; 2]) -> Initializer {
    match name {
        "uniform" => Initializer::Uniform { low: first, high: second },
        "normal" => Initializer::Normal { mean: first, stddev: second },
        _ => Initializer::TruncatedNormal { mean: first, stddev: second },
    }
}

fn number(value: &Value, path: Path) -> Read<f64> {
    let number = if let Kind::Number(number) = value.kind { number.parse::<f64>().ok() } else { None };
    number.ok_or_else(|| Fault::content(value, path, format!("expected a number, found {}", value.describe())))
}

fn whole(value: &Value, path: Path) -> Read<i64> {
    let number = match value.kind {
        Kind::Number(number) if is_whole(number) => number.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| Fault::content(value, path, "expected a whole number of 64 bits"))
}

fn truth(value: &Value, path: Path) -> Read<bool> {
    match value.kind {
        Kind::Bool(truth) => Ok(truth),
        _ => Err(Fault::content(value, path, format!("expected true or false, found {}", value.describe()))),
    }
}
