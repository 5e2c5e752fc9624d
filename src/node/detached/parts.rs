//! The parts of a run: its steps are made in parts of about a second. A part has as many steps as that takes.

use std::time::Duration;

/// The time of a part, and the longest one; values that are large take a while to come, so such parts are longer.
const PART: Duration = Duration::from_secs(1);
const LONGEST_PART: Duration = Duration::from_secs(30);
/// Bytes of fetched values for which a part is a second longer.
const BYTES_A_SECOND: usize = 16 << 20;
/// Most steps of a part.
const MAX_PART: u64 = 1 << 24;

/// The next steps, and the distance of those whose values are lines among them: `most` at most, after those that are done. Steps
/// whose values are lines count from the first of the run: a part that does not begin at one ends there.
pub(super) fn part(most: u64, done: u64, count: u64, every: u64) -> (u64, u64) {
    let left = most.min(count - done);
    match done.checked_rem(every) {
        None => (left, 0),
        Some(0) => (left, every),
        Some(after) => (left.min(every - after), 0),
    }
}

/// The most steps of the next part, after one with `steps` of `most` steps that took this long and whose values have these
/// bytes. The time of a shorter part is no reason for longer ones.
pub(super) fn next_part((most, steps): (u64, u64), took: Duration, bytes: usize) -> u64 {
    let wanted = (PART + PART.mul_f64(bytes as f64 / BYTES_A_SECOND as f64)).min(LONGEST_PART);
    if took < wanted / 2 && steps == most {
        (2 * most).min(MAX_PART)
    } else if took > 2 * wanted {
        (steps / 2).max(1)
    } else {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_steps_whose_values_are_lines() {
        // Whatever the sizes of parts, each tenth step is a line: inside of a part, or at its end.
        for most in [1, 3, 10, 64] {
            let (mut done, mut lines) = (0, Vec::new());
            while done < 42 {
                let (steps, every) = part(most, done, 42, 10);
                assert!((1..=most).contains(&steps) && done + steps <= 42);
                lines.extend((1..steps).filter(|step| every > 0 && step % every == 0).map(|step| done + step));
                done += steps;
                lines.extend((done % 10 == 0).then_some(done));
            }
            assert_eq!(lines, [10, 20, 30, 40], "{most}");
        }
        assert_eq!(part(8, 0, 5, 0), (5, 0));
    }

    #[test]
    fn a_part_takes_about_a_second_and_longer_with_large_values() {
        let after = |most, ms, bytes| next_part((most, most), Duration::from_millis(ms), bytes);
        assert_eq!([after(8, 100, 0), after(8, 900, 0), after(8, 2100, 0), after(1, 60_000, 0)], [16, 8, 4, 1]);
        assert_eq!(after(8, 900, BYTES_A_SECOND * 2), 16);
        assert_eq!(after(8, 61_000, usize::MAX), 4, "the longest is 30 s");
        assert_eq!(after(MAX_PART, 1, 0), MAX_PART);
        let cut = |ms| next_part((64, 6), Duration::from_millis(ms), 0);
        assert_eq!([cut(1), cut(900), cut(2100)], [64, 64, 3], "a part that ended at a line");
    }
}
