//! `--guard`, for the commands whose steps continue after the loss of a task.

use std::time::Duration;

use super::reach::seconds;

/// Whether the steps are guarded.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct GuardArgs {
    /// Least time between two copies of the state to the memory of other tasks, in seconds, or off: if a task is lost and its
    /// name is taken again within 60 s, the steps continue from the newest copy. The first is taken after that time. Copies are
    /// taken less often where they would cost more than 3 % of the time. A training whose "workers" have a "min" and a "max"
    /// keeps the copies itself, and continues without a lost worker. A line says why steps are not guarded; of submit, only
    /// if this is given [default: 0.5 if the mesh has several tasks]
    #[arg(long, value_name = "TIME|off", value_parser = guard)]
    guard: Option<Guarding>,
}

/// The time between two copies if none is given.
const DEFAULT: Duration = Duration::from_millis(500);

/// The value of `--guard`.
#[derive(Clone, Copy, Debug)]
struct Guarding(Option<Duration>);

impl GuardArgs {
    /// The time between two copies on a mesh of so many tasks; `None`: there are none.
    pub fn every(self, tasks: usize) -> Option<Duration> {
        match self.guard {
            Some(Guarding(every)) => every,
            // A task alone has no other to keep its copies.
            None => (tasks > 1).then_some(DEFAULT),
        }
    }

    /// Whether it was asked for: then it is said why steps are not guarded.
    pub fn is_asked(self) -> bool {
        self.guard.is_some()
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
    fn steps_on_several_tasks_are_guarded_unless_that_is_off() {
        let every = |given: Option<&str>, tasks| {
            GuardArgs { guard: given.map(|text| guard(text).unwrap()) }.every(tasks).map(|every| every.as_millis())
        };
        assert_eq!([every(None, 2), every(None, 1), every(None, 0)], [Some(500), None, None]);
        assert_eq!([every(Some("off"), 2), every(Some("2"), 2), every(Some("2"), 1)], [None, Some(2000), Some(2000)]);
    }

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
