//! The memory that this process may use: the machine's or the container's, and the address space that `ulimit -v` leaves.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// The default share of the available memory, in percent: the rest is for code, stacks, memory that the allocator keeps between
/// steps, and the machine's other programs.
const SHARE_PERCENT: u64 = 80;

/// Address space under `ulimit -v` that is reserved for threads' stacks and for the allocator's mappings ahead of use.
const ADDRESS_MARGIN_BYTES: u64 = 256 << 20;

/// The budget of a process for which none is given; `None` if the system does not report its memory.
pub fn default_budget() -> Option<u64> {
    available(SHARE_PERCENT)
}

/// The default budget on a machine with that much memory.
pub fn default_of(memory: u64) -> u64 {
    memory / 100 * SHARE_PERCENT
}

/// The machine's memory, or the container's limit if that is lower; `None` if the system reports neither.
pub fn memory() -> Option<u64> {
    [machine(), cgroup(Path::new("/"))].into_iter().flatten().min()
}

/// A percentage of the memory available to this process: of the machine's memory or the container's limit, and of the address
/// space that `ulimit -v` leaves. `None` if the system reports neither.
pub fn available(percent: u64) -> Option<u64> {
    let memory = memory().map(|bytes| bytes / 100 * percent);
    memory.into_iter().chain(addresses(percent)).min()
}

/// A percentage of the address space that `ulimit -v` leaves for values.
pub fn addresses(percent: u64) -> Option<u64> {
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
