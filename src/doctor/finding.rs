//! A finding of a check: its severity, its text and its remedy.

/// The severity of a finding, from the least to the greatest.
///
/// ```
/// use meshtf::doctor::Level;
///
/// let levels = [Level::Ok, Level::Warning, Level::Note];
/// let worst = levels.into_iter().max().unwrap();
/// assert_eq!(worst.name(), "warning");
/// assert!(worst < Level::Problem);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// All is well.
    Ok,
    /// Worth knowing.
    Note,
    /// A possible problem.
    Warning,
    /// A problem.
    Problem,
}

impl Level {
    /// Its name: `ok`, `note`, `warning`, `problem`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// A finding of a check.
///
/// ```
/// use meshtf::doctor::{Finding, Level};
///
/// /// The steps by which the owner of the machine mends the problems.
/// fn remedies(findings: &[Finding]) -> Vec<&str> {
///     let problems = findings.iter().filter(|finding| finding.level == Level::Problem);
///     problems.filter_map(|finding| finding.remedy.as_deref()).collect()
/// }
/// let (what, remedy) = ("there is none for this mesh".to_owned(), Some("meshtf join TICKET".to_owned()));
/// assert_eq!(remedies(&[Finding { check: "key", level: Level::Problem, what, remedy }]), ["meshtf join TICKET"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check: `key`, `multicast`, …
    pub check: &'static str,
    /// Its severity.
    pub level: Level,
    /// The observation.
    pub what: String,
    /// The remedy; set unless all is well.
    pub remedy: Option<String>,
}

impl Finding {
    #[doc(hidden)]
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Finding { check, level: Level::Ok, what: what.into(), remedy: None }
    }

    pub(crate) fn note(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { check, level: Level::Note, what: what.into(), remedy: Some(remedy.into()) }
    }

    pub(crate) fn warning(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Warning, ..Finding::note(check, what, remedy) }
    }

    #[doc(hidden)]
    pub fn problem(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Problem, ..Finding::note(check, what, remedy) }
    }
}

/// `nothing is wrong`, or `2 problems, 1 warning`.
pub fn summary(findings: &[Finding]) -> String {
    let counted =
        [(Level::Problem, "problem"), (Level::Warning, "warning")].into_iter().filter_map(
            |(level, word)| match findings.iter().filter(|finding| finding.level == level).count() {
                0 => None,
                1 => Some(format!("1 {word}")),
                count => Some(format!("{count} {word}s")),
            },
        );
    let counted: Vec<String> = counted.collect();
    if counted.is_empty() { "nothing is wrong".to_owned() } else { counted.join(", ") }
}

/// `3 min 12 s`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_summed_up() {
        let (ok, note) = (Finding::ok("a", "b"), Finding::note("a", "b", "c"));
        let (warning, problem) = (Finding::warning("a", "b", "c"), Finding::problem("a", "b", "c"));
        assert_eq!(summary(&[ok.clone(), note]), "nothing is wrong");
        assert_eq!(summary(&[problem.clone(), ok, warning, problem]), "2 problems, 1 warning");
    }
}
