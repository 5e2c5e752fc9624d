//! `--memory`: the memory budget of a process that runs graphs, and its default.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use meshtf_tensor::memory::{self, Bytes};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// The default share of the available memory, in percent: the rest is for code, stacks, memory that the allocator keeps between
/// steps, and the machine's other programs.
const SHARE_PERCENT: u64 = 80;

/// A smaller budget leaves no memory for values in addition to a node's own needs.
const LEAST_BYTES: u64 = 32 << 20;

/// Address space under `ulimit -v` that is reserved for threads' stacks and for the allocator's mappings ahead of use.
const ADDRESS_MARGIN_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Memory for tensors, variables, queues and messages: 4GB, 512MiB, or 50% of the machine's or container's memory.
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

    /// Sets the budget of this process. Call this before the first tensor is made.
    pub fn apply(&self) {
        let bytes = match self.memory {
            // With more than `ulimit -v` allows, the process would be killed before the budget refuses.
            Some(Size::Bytes(bytes)) => Some(addresses(100).map_or(bytes, |most| most.min(bytes))),
            Some(Size::Percent(percent)) => available(percent),
            None => default_budget(),
        };
        if let Some(bytes) = bytes {
            memory::set_limit(usize::try_from(bytes.max(LEAST_BYTES)).unwrap_or(usize::MAX));
        }
    }
}

/// The budget as shown in a node's serving line: ` memory=4.00GB`.
pub(super) fn shown() -> String {
    memory::limit().map_or_else(String::new, |limit| format!(" memory={}", Bytes(limit).to_string().replace(' ', "")))
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
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let bytes = (number * factor as f64) as u64;
    if bytes < LEAST_BYTES {
        return Err(format!("{text:?} is too little: a node needs at least {}", Bytes(LEAST_BYTES as usize)));
    }
    Ok(Size::Bytes(bytes))
}

/// The budget of a process for which none is given; `None` if the system does not report its memory.
pub(super) fn default_budget() -> Option<u64> {
    available(SHARE_PERCENT)
}

/// A percentage of the memory available to this process: of the machine's memory or the container's limit, and of the address
/// space that `ulimit -v` leaves. `None` if the system reports neither.
fn available(percent: u64) -> Option<u64> {
    let memory = [machine(), cgroup(Path::new("/"))].into_iter().flatten().min().map(|bytes| bytes / 100 * percent);
    memory.into_iter().chain(addresses(percent)).min()
}

/// A percentage of the address space that `ulimit -v` leaves for values.
fn addresses(percent: u64) -> Option<u64> {
    addresses_left().map(|bytes| bytes.saturating_sub(ADDRESS_MARGIN_BYTES) / 100 * percent.min(SHARE_PERCENT))
}

fn machine() -> Option<u64> {
    reported(SysconfVar::_PHYS_PAGES)?.checked_mul(reported(SysconfVar::PAGE_SIZE)?)
}

/// The least limit of this process's control groups, of either version, and of their parents. `root` is where the file
/// systems are mounted.
fn cgroup(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    let limits = groups.lines().flat_map(|line| {
        // `0::/path` of version 2, `4:memory:/path` of version 1.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let (mount, file) = if controllers.is_empty() {
            (mount.clone(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            return Vec::new();
        };
        let path = PathBuf::from(path.trim_start_matches('/'));
        // In a container that sees its own group as the root, this path does not exist: the root has the limit.
        path.ancestors().filter_map(|group| limit_in(&mount.join(group).join(file))).collect()
    });
    limits.min()
}

/// The limit in a file; `None` for `max`, and for version 1's equivalent, a number greater than any memory.
fn limit_in(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < 1 << 60).then_some(bytes)
}

/// Address space that this process may still map; `None` if it is unlimited.
fn addresses_left() -> Option<u64> {
    let (limit, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    (limit != RLIM_INFINITY).then(|| limit.saturating_sub(mapped().unwrap_or(0)))
}

/// Address space that this process has mapped.
fn mapped() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').next()?.parse().ok()?;
    pages.checked_mul(reported(SysconfVar::PAGE_SIZE)?)
}

/// A number that the system reports.
fn reported(name: SysconfVar) -> Option<u64> {
    u64::try_from(sysconf(name).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_least_limit_of_a_container_and_its_parents_counts() {
        let check = |groups: &str, files: &[(&str, &str)], want: Option<u64>| {
            let root = temp_dir::TempDir::new().unwrap();
            let write = |path: &str, text: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            write("proc/self/cgroup", groups);
            files.iter().for_each(|(path, text)| write(&format!("sys/fs/cgroup/{path}"), text));
            assert_eq!(cgroup(root.path()), want, "{groups} {files:?}");
        };
        check("0::/", &[("memory.max", "4294967296\n")], Some(4 << 30));
        check("0::/", &[("memory.max", "max\n")], None);
        check("0::/a/b", &[("a/memory.max", "100\n"), ("a/b/memory.max", "max\n")], Some(100));
        check("0::/a/b", &[("memory.max", "70\n")], Some(70));
        check(
            "4:memory:/x\n2:cpu:/\n0::/\n",
            &[("memory/memory.limit_in_bytes", "9223372036854771712\n"), ("memory/x/memory.limit_in_bytes", "500\n")],
            Some(500),
        );
        check("3:cpu,memory:/\n", &[("memory/memory.limit_in_bytes", "9223372036854771712\n")], None);
        check("", &[], None);
    }
}
