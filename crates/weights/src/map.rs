//! Rules by which the tensors of a file get the names that the variables of a graph have: `--map map.json`.
//!
//! ```json
//! [
//!   {"name": "fc.weight", "to": "out/kernel", "transpose": [1, 0]},
//!   {"prefix": "model.", "to": ""},
//!   {"pattern": "layers\\.(\\d+)\\.", "to": "layer_$1/"},
//!   {"prefix": "optimizer.", "drop": true}
//! ]
//! ```
//!
//! Each tensor passes through all rules in their order; a rule that matches applies to the name that the ones before made.

use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::half::{bf16, f16};
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, Data, Tensor, memory};
use regex_automata::meta::{Config, Regex};
use regex_automata::util::interpolate;
use serde_json::{Map, Value};

use super::{Entry, Load, wrong};

/// Most rules.
const MAX_RULES: usize = 4096;
/// Most bytes that a compiled pattern may take.
const MAX_PATTERN: usize = 4 << 20;
/// Longest name that a rule makes.
const MAX_NAME: usize = 4096;

/// Rules for names.
#[derive(Debug)]
pub struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    by: By,
    /// The new name, prefix or replacement; the name stays if there is none.
    to: Option<String>,
    drop: bool,
    transpose: Option<Vec<usize>>,
    dtype: Option<DType>,
}

#[derive(Debug)]
enum By {
    Name(String),
    Prefix(String),
    Pattern(String, Regex),
}

impl By {
    fn shown(&self) -> String {
        match self {
            By::Name(name) => format!("name {name:?}"),
            By::Prefix(prefix) => format!("prefix {prefix:?}"),
            By::Pattern(pattern, _) => format!("pattern {pattern:?}"),
        }
    }
}

/// The tensors under their new names.
#[derive(Debug)]
pub struct Mapped {
    /// The tensors.
    pub tensors: Vec<Entry>,
    /// Rules that matched no tensor, as text, with the nearest names.
    pub idle: Vec<String>,
}

impl Rules {
    /// Reads rules.
    ///
    /// # Errors
    /// InvalidArgument with the rule and what is wrong with it.
    pub fn read(text: &str) -> Result<Rules> {
        let json: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let rules = json
            .as_array()
            .ok_or_else(|| wrong("expected a list of rules, such as [{\"prefix\": \"model.\", \"to\": \"\"}]"))?;
        if rules.len() > MAX_RULES {
            return Err(super::limit(format!("it has more than {MAX_RULES} rules")));
        }
        let one = |(place, rule): (usize, &Value)| {
            let rule = rule.as_object().ok_or_else(|| wrong("expected an object")).and_then(rule_of);
            rule.map_err(|failure| wrong(format!("rule {}: {}", place + 1, failure.message)))
        };
        Ok(Rules(rules.iter().enumerate().map(one).collect::<Result<_>>()?))
    }

    /// Renames tensors.
    ///
    /// # Errors
    /// InvalidArgument if two tensors get one name, or axes do not fit a tensor.
    pub fn apply(&self, tensors: Vec<Entry>) -> Result<Mapped> {
        let before: Vec<String> = tensors.iter().map(|entry| entry.name.clone()).collect();
        let mut is_idle = vec![true; self.0.len()];
        let mut mapped = Vec::with_capacity(tensors.len());
        'tensors: for mut entry in tensors {
            let original = entry.name.clone();
            for (rule, is_idle) in self.0.iter().zip(&mut is_idle) {
                let Some(name) = rule.renamed(&entry.name) else { continue };
                *is_idle = false;
                if rule.drop {
                    continue 'tensors;
                }
                if name.is_empty() || name.len() > MAX_NAME {
                    return Err(wrong(format!(
                        "rule {} gives tensor {original} the name {name:.80?}",
                        rule.by.shown()
                    )));
                }
                entry.name = name;
                if let Some(axes) = &rule.transpose {
                    entry = transposed(entry, axes).map_err(|failure| {
                        wrong(format!("rule {}: tensor {original}: {}", rule.by.shown(), failure.message))
                    })?;
                }
                if let Some(dtype) = rule.dtype {
                    entry = cast(entry, dtype).map_err(|failure| {
                        wrong(format!("rule {}: tensor {original}: {}", rule.by.shown(), failure.message))
                    })?;
                }
            }
            mapped.push(entry);
        }
        let mut names: Vec<&str> = mapped.iter().map(|entry| entry.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(format!("two tensors get the name {}", pair[0])));
        }
        let idle = self.0.iter().zip(is_idle).filter(|(_, is_idle)| *is_idle).map(|(rule, _)| {
            let near = match &rule.by {
                By::Name(name) => nearest(name, before.iter().map(String::as_str)),
                _ => Vec::new(),
            };
            let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
            format!("{} matches no tensor{hint}", rule.by.shown())
        });
        Ok(Mapped { idle: idle.collect(), tensors: mapped })
    }
}

fn rule_of(rule: &Map<String, Value>) -> Result<Rule> {
    const KEYS: &[&str] = &["name", "prefix", "pattern", "to", "drop", "transpose", "dtype"];
    if let Some(key) = rule.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(wrong(format!("unknown key {key:?}; expected one of {}", KEYS.join(", "))));
    }
    let text = |key: &str| match rule.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(format!("{key:?} is not a text"))),
    };
    let by = match (text("name")?, text("prefix")?, text("pattern")?) {
        (Some(name), None, None) => By::Name(name),
        (None, Some(prefix), None) => By::Prefix(prefix),
        (None, None, Some(pattern)) => {
            let config = Config::new().nfa_size_limit(Some(MAX_PATTERN)).hybrid_cache_capacity(MAX_PATTERN);
            let regex = Regex::builder().configure(config).build(&pattern);
            let regex = regex.map_err(|error| wrong(format!("pattern {pattern:?}: {error}")))?;
            By::Pattern(pattern, regex)
        }
        _ => return Err(wrong("expected one of \"name\", \"prefix\" and \"pattern\"")),
    };
    let drop = match rule.get("drop") {
        None => false,
        Some(Value::Bool(drop)) => *drop,
        Some(_) => return Err(wrong("\"drop\" is neither true nor false")),
    };
    let transpose = match rule.get("transpose") {
        None => None,
        Some(Value::Array(axes)) => {
            let axes: Option<Vec<usize>> = axes.iter().map(|axis| axis.as_u64().map(|axis| axis as usize)).collect();
            Some(axes.ok_or_else(|| wrong("\"transpose\" is not a list of axes, such as [1, 0]"))?)
        }
        Some(_) => return Err(wrong("\"transpose\" is not a list of axes, such as [1, 0]")),
    };
    let dtype = match text("dtype")? {
        None => None,
        Some(name) => Some(DType::from_name(&name).ok_or_else(|| wrong(format!("there is no dtype {name:?}")))?),
    };
    let to = text("to")?;
    if to.is_none() && !drop && transpose.is_none() && dtype.is_none() {
        return Err(wrong("it does nothing: expected \"to\", \"drop\", \"transpose\" or \"dtype\""));
    }
    Ok(Rule { by, to, drop, transpose, dtype })
}

impl Rule {
    /// The new name; `None` if the rule does not match.
    fn renamed(&self, name: &str) -> Option<String> {
        let same = || name.to_owned();
        Some(match &self.by {
            By::Name(own) => {
                if own != name {
                    return None;
                }
                self.to.clone().unwrap_or_else(same)
            }
            By::Prefix(prefix) => {
                let rest = name.strip_prefix(prefix.as_str())?;
                self.to.as_ref().map_or_else(same, |to| format!("{to}{rest}"))
            }
            By::Pattern(_, regex) => {
                if !regex.is_match(name) {
                    return None;
                }
                let Some(to) = &self.to else { return Some(same()) };
                let (mut renamed, mut end) = (String::new(), 0);
                for captures in regex.captures_iter(name) {
                    let found = captures.get_match()?;
                    renamed.push_str(&name[end..found.start()]);
                    let group = |index: usize, into: &mut String| {
                        if let Some(span) = captures.get_group(index) {
                            into.push_str(&name[span]);
                        }
                    };
                    let number = |group: &str| regex.group_info().to_index(found.pattern(), group);
                    interpolate::string(to, group, number, &mut renamed);
                    end = found.end();
                    if renamed.len() > MAX_NAME {
                        return Some(renamed);
                    }
                }
                renamed.push_str(&name[end..]);
                renamed
            }
        })
    }
}

/// A tensor with its axes in another order.
fn transposed(entry: Entry, axes: &[usize]) -> Result<Entry> {
    let rank = entry.shape.len();
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(wrong(format!("axes {axes:?} are no order of its {rank} axes")));
    }
    let shape: Vec<usize> = axes.iter().map(|&axis| entry.shape[axis]).collect();
    let (load, axes) = (Arc::clone(&entry.load), axes.to_vec());
    let load: Load = Arc::new(move || meshtf_tensor::transposed(&load()?, &axes));
    Ok(Entry { shape, load, ..entry })
}

/// Whether every value of a float dtype is one of another, too.
pub fn widens(from: DType, to: DType) -> bool {
    matches!((from, to), (DType::F16 | DType::BF16, DType::F32 | DType::F64) | (DType::F32, DType::F64))
}

/// A tensor of floats as one of another float dtype, rounded where that is narrower.
///
/// # Errors
/// InvalidArgument for other dtypes.
pub fn cast(entry: Entry, dtype: DType) -> Result<Entry> {
    const FLOATS: &[DType] = &[DType::F16, DType::BF16, DType::F32, DType::F64];
    match entry.dtype {
        Some(own) if own == dtype => Ok(entry),
        Some(own) if FLOATS.contains(&own) && FLOATS.contains(&dtype) => {
            let load = Arc::clone(&entry.load);
            let load: Load = Arc::new(move || {
                let tensor = load()?;
                memory::admit(tensor.len() * dtype.size().unwrap_or(1))?;
                Tensor::new(tensor.shape().clone(), floats(&tensor, dtype)?)
            });
            Ok(Entry { dtype: Some(dtype), load, ..entry })
        }
        _ => Err(Failure::invalid(format!(
            "{} is not converted to {dtype}: only floats are, among each other",
            entry.stored
        ))),
    }
}

fn floats(tensor: &Tensor, dtype: DType) -> Result<Data> {
    let wide: Vec<f64> = match tensor.dtype() {
        DType::F16 => tensor.slice::<f16>()?.iter().map(|value| value.to_f64()).collect(),
        DType::BF16 => tensor.slice::<bf16>()?.iter().map(|value| value.to_f64()).collect(),
        DType::F32 => tensor.slice::<f32>()?.iter().map(|&value| value.into()).collect(),
        _ => tensor.slice::<f64>()?.to_vec(),
    };
    Ok(match dtype {
        DType::F16 => Data::F16(wide.into_iter().map(f16::from_f64).collect()),
        DType::BF16 => Data::BF16(wide.into_iter().map(bf16::from_f64).collect()),
        DType::F32 => Data::F32(wide.into_iter().map(|value| value as f32).collect()),
        _ => Data::F64(wide),
    })
}
