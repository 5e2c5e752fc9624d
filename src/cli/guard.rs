//! `--guard`, for the commands whose steps continue after the loss of a task.

use std::time::Duration;

use super::reach::seconds;

/// Whether the steps are guarded.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct GuardArgs {
    /// Least time between two copies of the state to the memory of other tasks, in seconds, or off: if a task is lost and its
    /// name is taken again within 60 s, the steps continue from the newest copy. The first is taken after that time. Copies are
    /// taken less often where they would cost more than 3 % of the time
    #[arg(long, value_name = "TIME|off", default_value = "off", value_parser = guard)]
    guard: Guarding,
}

/// The value of `--guard`.
#[derive(Clone, Copy, Debug)]
struct Guarding(Option<Duration>);

impl GuardArgs {
    /// The distance between two copies; `None`: there are none.
    pub fn every(self) -> Option<Duration> {
        self.guard.0
    }
}

fn guard(text: &str) -> Result<Guarding, String> {
    match text {
        "off" => Ok(Guarding(None)),
        _ => seconds(text).map(|every| Guarding(Some(every))).map_err(|why| format!("{why}, or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_a_time_or_off() {
        assert_eq!(guard("off").unwrap().0, None);
        assert_eq!(guard("0.5").unwrap().0, Some(Duration::from_millis(500)));
        assert_eq!(guard("3s").unwrap().0, Some(Duration::from_secs(3)));
        for wrong in ["0", "-1", "on", ""] {
            assert!(guard(wrong).unwrap_err().ends_with(", or off"), "{wrong}");
        }
    }
}
