//! A finding of a check: its severity, its text and its remedy.

use serde_json::{Value, json};

use super::super::paint::{Paint, Tone};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Note,
    Warning,
    Problem,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }

    pub fn tone(self) -> Tone {
        match self {
            Level::Ok => Tone::Good,
            Level::Note => Tone::Dim,
            Level::Warning => Tone::Warning,
            Level::Problem => Tone::Bad,
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check: `key`, `multicast`, …
    pub check: &'static str,
    pub level: Level,
    pub what: String,
    /// The remedy; set unless all is well.
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Finding { check, level: Level::Ok, what: what.into(), remedy: None }
    }

    pub fn note(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { check, level: Level::Note, what: what.into(), remedy: Some(remedy.into()) }
    }

    pub fn warning(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Warning, ..Finding::note(check, what, remedy) }
    }

    pub fn problem(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Problem, ..Finding::note(check, what, remedy) }
    }

    /// As lines for people.
    pub fn shown(&self, paint: Paint) -> String {
        let level = paint.tone(self.level.tone(), format_args!("{:8}", self.level.name()));
        let line = format!("{level} {:11} {}", self.check, self.what);
        match &self.remedy {
            Some(remedy) => format!("{line}\n{:20} {}", "", paint.tone(Tone::Accent, format_args!("→ {remedy}"))),
            None => line,
        }
    }

    pub fn json(&self) -> Value {
        json!({ "check": self.check, "level": self.level.name(), "what": self.what, "remedy": self.remedy })
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
