//! UnicodeScript: the scripts of characters.

use std::sync::LazyLock;

use super::super::HostKernel;
use super::super::call::kernel as call;
use super::super::math::map_to;

/// The first code point of each run of one script, and the number of the script.
static RUNS: LazyLock<Vec<(u32, i32)>> = LazyLock::new(|| {
    let lines = include_str!("scripts.txt").lines().filter(|line| !line.starts_with('#'));
    let run = |line: &str| {
        let (first, script) = line.split_once(' ')?;
        Some((u32::from_str_radix(first, 16).ok()?, script.parse().ok()?))
    };
    lines.filter_map(run).collect()
});

pub(super) fn kernel() -> HostKernel {
    call(|[codes]| map_to(&codes, |&code: &i32| script(code)))
}

/// ICU's number of the script of a code point; -1 for an invalid code point.
#[inline]
fn script(code: i32) -> i32 {
    let Some(code) = u32::try_from(code).ok().filter(|&code| code <= char::MAX.into()) else { return -1 };
    let after = RUNS.partition_point(|(first, _)| *first <= code);
    after.checked_sub(1).and_then(|run| RUNS.get(run)).map_or(-1, |&(_, script)| script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_whole_and_in_order() {
        let lines = include_str!("scripts.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert!(RUNS.len() == lines && lines > 1000, "{} of {lines}", RUNS.len());
        assert!(RUNS.is_sorted_by(|a, b| a.0 < b.0) && RUNS[0].0 == 0);
    }
}
