//! `--keep-variables`: how often the variables of a node are copied to another one.

use std::time::Duration;

/// The shortest and the longest distance between copies.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(60);

/// The flag, for all commands that start a node.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(in super::super) struct KeepArgs {
    /// Variables that sessions share outlive this process: every TIME (1s, 250ms), those that have changed are copied to the
    /// memory of another node. A process that is started again under the name, with this flag, begins with the newest copy. It
    /// ends when the node is stopped by a signal other than SIGKILL, and after ten minutes without the task
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep_variables: Option<Duration>,
}

impl KeepArgs {
    pub fn every(self) -> Option<Duration> {
        self.keep_variables
    }
}

/// `250ms`, `1s`, or a number of seconds.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time from 50ms to 60s, such as 250ms or 1s");
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 0.001),
        None => (text.trim_end_matches('s'), 1.0),
    };
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    Some(time).filter(|time| (SHORTEST..=LONGEST).contains(time)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_between_copies_is_a_time_within_limits() {
        for (text, ms) in [("1s", 1000), ("250ms", 250), ("0.5", 500), ("2", 2000), ("60s", 60_000), ("50ms", 50)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "0", "49ms", "61s", "-1s", "1min", "NaN", "inf", "1e300"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
