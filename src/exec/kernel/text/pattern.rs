//! RegexFullMatch and StaticRegexFullMatch: whether a pattern matches a whole string.
//!
//! Patterns have RE2's syntax; as with RE2, matching takes time linear in the string.

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use super::super::call::kernel as call;
use super::super::math::map_to;
use super::super::{HostKernel, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

/// Most bytes that a compiled pattern may take.
const MOST_BYTES: usize = 8 << 20;
/// Most nested groups.
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
/// InvalidArgument if the pattern is invalid, is not UTF-8 or takes too much memory.
fn compiled(pattern: &[u8]) -> Result<Regex> {
    let invalid =
        |why: String| Failure::invalid(format!("Invalid pattern: {}, error: {why}", String::from_utf8_lossy(pattern)));
    let text = std::str::from_utf8(pattern).map_err(|error| invalid(error.to_string()))?;
    // Parsed by itself first: `)(` would be valid between the brackets added below.
    let syntax = syntax::Config::new().nest_limit(MOST_NESTED).utf8(false);
    syntax::parse_with(text, &syntax).map_err(|error| invalid(error.to_string()))?;
    let limits = Config::new().utf8_empty(false).nfa_size_limit(Some(MOST_BYTES));
    Regex::builder()
        .syntax(syntax)
        .configure(limits)
        .build(&format!(r"\A(?:{text})\z"))
        .map_err(|error| invalid(error.to_string()))
}
