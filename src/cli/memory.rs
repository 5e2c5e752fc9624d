//! `--memory`: the memory budget of a process that runs graphs, and its default.

use std::fmt;
use std::sync::Arc;

use meshtf::machine;
use meshtf_tensor::memory::{Budget, Bytes};

/// A smaller budget leaves no memory for values in addition to a node's own needs.
const LEAST_BYTES: u64 = 32 << 20;

#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Memory budget of tensors, variables, queues and messages: 4GB, 512MiB, or 50% of the memory of the machine or container.
    /// Steps that exceed it fail with ResourceExhausted [default: 80%]
    #[arg(long, value_name = "SIZE", env = "MESHTF_MEMORY", value_parser = size)]
    memory: Option<Size>,
}

/// A size on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Size {
    Bytes(u64),
    Percent(u64),
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(bytes) => write!(f, "{bytes}"),
            Size::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl MemoryArgs {
    /// The same as flags, for another process.
    pub fn flags(&self) -> Vec<String> {
        self.memory.iter().flat_map(|size| ["--memory".to_owned(), size.to_string()]).collect()
    }

    /// The budget that the flags request. One that exceeds the memory there is leads to a warning.
    pub fn budget(&self) -> Arc<Budget> {
        if let Some(Size::Bytes(bytes)) = self.memory
            && let Some(warning) = beyond(bytes, machine::memory())
        {
            tracing::warn!("{warning}");
        }
        let bytes = match self.memory {
            // With more than `ulimit -v` allows, the process would be killed before the budget refuses.
            Some(Size::Bytes(bytes)) => Some(machine::addresses(100).map_or(bytes, |most| most.min(bytes))),
            Some(Size::Percent(percent)) => machine::available(percent),
            None => machine::default_budget(),
        };
        bytes.map_or_else(Arc::default, |bytes| {
            Budget::of(usize::try_from(bytes.max(LEAST_BYTES)).unwrap_or(usize::MAX))
        })
    }
}

/// The warning about a budget that exceeds the memory of the machine or container, `there`.
fn beyond(bytes: u64, there: Option<u64>) -> Option<String> {
    let there = there.filter(|there| bytes > *there)?;
    let shown = |bytes: u64| Bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    Some(format!(
        "--memory {}: this machine or container has {}. The system may end the process before a step fails with \
         ResourceExhausted; the default is {}.",
        shown(bytes),
        shown(there),
        shown(machine::default_of(there)),
    ))
}

/// The budget as shown in a node's serving line: ` memory=4.00GB`.
pub(super) fn shown(budget: &Budget) -> String {
    budget.limit().map_or_else(String::new, |limit| format!(" memory={}", Bytes(limit).to_string().replace(' ', "")))
}

/// `4GB`, `512 MiB`, `1.5g`, `50%`, or a number of bytes. No library reads the percentage, too.
fn size(text: &str) -> Result<Size, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim().to_ascii_lowercase());
    let wrong = || format!("{text:?} is not a size such as 4GB, 512MiB or 50%");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    if unit == "%" {
        if !(1.0..=100.0).contains(&number) {
            return Err(format!("{text:?}: a percentage must be between 1% and 100%"));
        }
        return Ok(Size::Percent(number as u64));
    }
    let bytes = bytes_of(trimmed).ok_or_else(wrong)?;
    if bytes < LEAST_BYTES {
        return Err(format!("{text:?} is too little: a node needs at least {}", Bytes(LEAST_BYTES as usize)));
    }
    Ok(Size::Bytes(bytes))
}

/// The bytes of `4GB`, `512 MiB`, `1.5g`, or of a number.
pub(super) fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    Some((number * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_beyond_the_memory_is_reported_with_the_true_figure() {
        let warning = beyond(900_000_000_000, Some(24_000_000_000)).unwrap();
        for part in ["--memory 900 GB", "has 24.0 GB", "the default is 19.2 GB"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        assert_eq!(beyond(24_000_000_000, Some(24_000_000_000)), None);
        assert_eq!(beyond(u64::MAX, None), None);
    }

    #[test]
    fn sizes_have_units() {
        let check = |text: &str, want: Option<Size>| assert_eq!(size(text).ok(), want, "{text}");
        check("4GB", Some(Size::Bytes(4_000_000_000)));
        check("4 gb", Some(Size::Bytes(4_000_000_000)));
        check("512MiB", Some(Size::Bytes(512 << 20)));
        check("1.5g", Some(Size::Bytes(1_500_000_000)));
        check("200000000", Some(Size::Bytes(200_000_000)));
        check("50%", Some(Size::Percent(50)));
        for shown in ["50%", "200000000"] {
            assert_eq!(size(shown).unwrap().to_string(), shown);
        }
        for wrong in ["", "GB", "4 apples", "-4GB", "1.2.3GB", "0%", "101%", "31MB", "4", "nan", "inf"] {
            check(wrong, None);
        }
    }
}
