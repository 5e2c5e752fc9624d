//! RegexFullMatch and StaticRegexFullMatch: whether a whole string is what a pattern describes.
//!
//! Patterns are written as for RE2, whose matching takes time linear in the string, as this one's does.

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use super::super::call::kernel as call;
use super::super::math::map_to;
use super::super::{HostKernel, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

/// Most bytes that a pattern may need once compiled.
const MOST_BYTES: usize = 8 << 20;
/// Most groups within groups.
const MOST_NESTED: u32 = 100;

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    if node.op == "StaticRegexFullMatch" {
        let pattern = compiled(node.attrs.bytes("pattern")?)?;
        return Ok(call(move |[input]| matches(&input, &pattern)));
    }
    let mut last: Option<(Vec<u8>, Regex)> = None;
    Ok(call(move |[input, pattern]| {
        if pattern.rank() != 0 {
            return Err(Failure::invalid(format!("Pattern must be scalar, but received {}", pattern.shape())));
        }
        let text = &pattern.slice::<Vec<u8>>()?[0];
        match &last {
            Some((known, regex)) if known == text => matches(&input, regex),
            _ => matches(&input, &last.insert((text.clone(), compiled(text)?)).1),
        }
    }))
}

fn matches(input: &Tensor, pattern: &Regex) -> Result<Tensor> {
    map_to(input, |text: &Vec<u8>| pattern.is_match(text.as_slice()))
}

/// # Errors
/// InvalidArgument where the pattern is none, is not UTF-8 or needs too much.
fn compiled(pattern: &[u8]) -> Result<Regex> {
    let invalid =
        |why: String| Failure::invalid(format!("Invalid pattern: {}, error: {why}", String::from_utf8_lossy(pattern)));
    let text = std::str::from_utf8(pattern).map_err(|error| invalid(error.to_string()))?;
    // By itself first: `)(` would be one between brackets.
    let syntax = syntax::Config::new().nest_limit(MOST_NESTED).utf8(false);
    syntax::parse_with(text, &syntax).map_err(|error| invalid(error.to_string()))?;
    let limits = Config::new().utf8_empty(false).nfa_size_limit(Some(MOST_BYTES));
    Regex::builder()
        .syntax(syntax)
        .configure(limits)
        .build(&format!(r"\A(?:{text})\z"))
        .map_err(|error| invalid(error.to_string()))
}
