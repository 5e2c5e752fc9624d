//! Colours and weights of text for people: on a terminal, unless NO_COLOR or TERM=dumb is set. Pipes and files get none.

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Color, Style};

use super::os_error::in_words;

/// Whether one stream shows colours; by default not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Paint(bool);

/// The role of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// A problem.
    Bad,
    /// A possible problem.
    Warning,
    /// All is well.
    Good,
    /// A remedy, or a name.
    Accent,
    /// A heading, or a requested value.
    Strong,
    /// Secondary text.
    Dim,
}

impl Paint {
    pub fn stdout() -> Paint {
        Paint::chosen(AutoStream::choice(&io::stdout()))
    }

    pub fn stderr() -> Paint {
        if STDERR_IS_JSON.load(Ordering::Relaxed) {
            return Paint(false);
        }
        Paint::chosen(AutoStream::choice(&io::stderr()))
    }

    /// The automatic choice shows colours wherever CI is set, even on a terminal that has none.
    fn chosen(choice: ColorChoice) -> Paint {
        let has_none = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint(choice != ColorChoice::Never && !has_none)
    }

    pub fn is_on(self) -> bool {
        self.0
    }

    /// The text in that tone, or plain.
    pub fn tone(self, tone: Tone, text: impl Display) -> String {
        if !self.0 {
            return text.to_string();
        }
        let style = tone.style();
        format!("{style}{text}{style:#}")
    }
}

impl Tone {
    fn style(self) -> Style {
        let color = |color: AnsiColor| Style::new().fg_color(Some(Color::Ansi(color)));
        match self {
            Tone::Bad => color(AnsiColor::Red).bold(),
            Tone::Warning => color(AnsiColor::Yellow),
            Tone::Good => color(AnsiColor::Green),
            Tone::Accent => color(AnsiColor::Cyan),
            Tone::Strong => Style::new().bold(),
            Tone::Dim => Style::new().dimmed(),
        }
    }
}

/// Whether stderr is for programs: one object per line.
static STDERR_IS_JSON: AtomicBool = AtomicBool::new(false);

/// Sets whether later messages on stderr are objects, one per line, as the log is then.
pub(super) fn speak_json(is_json: bool) {
    STDERR_IS_JSON.store(is_json, Ordering::Relaxed);
}

/// Reports a failure on stderr.
pub(super) fn complain(what: impl Display) {
    say("error", Tone::Bad, &what);
}

/// Reports a possible problem on stderr.
pub(super) fn warn(what: impl Display) {
    say("warning", Tone::Warning, &what);
}

/// Reports a notice on stderr.
pub(super) fn mention(what: impl Display) {
    say("info", Tone::Dim, &what);
}

fn say(level: &str, tone: Tone, what: &dyn Display) {
    let what = what.to_string();
    let what = in_words(&what);
    if STDERR_IS_JSON.load(Ordering::Relaxed) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        eprintln!("{}", object(now, level, &what));
    } else {
        eprintln!("{} {what}", Paint::stderr().tone(tone, "meshtf:"));
    }
}

/// A line in the log's JSON form.
fn object(unix_ms: u64, level: &str, what: &dyn Display) -> serde_json::Value {
    serde_json::json!({ "unix_ms": unix_ms, "level": level, "target": "meshtf", "text": what.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Paint {
        pub const OFF: Paint = Paint(false);
        pub const ON: Paint = Paint(true);
    }

    #[test]
    fn text_has_escapes_only_where_they_are_shown() {
        assert_eq!(Paint::OFF.tone(Tone::Bad, "no"), "no");
        for (tone, want) in [
            (Tone::Bad, "\x1b[1m\x1b[31mno\x1b[0m"),
            (Tone::Good, "\x1b[32mno\x1b[0m"),
            (Tone::Strong, "\x1b[1mno\x1b[0m"),
            (Tone::Dim, "\x1b[2mno\x1b[0m"),
        ] {
            assert_eq!(Paint::ON.tone(tone, "no"), want, "{tone:?}");
        }
    }

    #[test]
    fn what_is_said_to_programs_is_an_object_a_line() {
        let line = object(7, "error", &"no \"key\"\n  Tried:").to_string();
        assert!(!line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&read["level"], &read["unix_ms"], &read["text"]),
            (&"error".into(), &7.into(), &"no \"key\"\n  Tried:".into())
        );
    }
}
