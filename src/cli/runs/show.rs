//! `meshtf runs show`: a run as text, with its curves, or as its record.

use serde_json::Value;

use super::curve::Curve;
use super::record::{How, Record, State};
use super::{model, steps, time};
use crate::cli::paint::{Paint, Tone};
use crate::cli::table::{TableRow, duration, number, table};
use crate::cli::train::plot::{Size, dots_of};
use crate::cli::{Trouble, output};

/// Columns of the names at the left.
const NAMES: usize = 12;
/// The size of a curve on a terminal.
const CURVE: Size = Size { columns: 60, lines: 6 };

pub fn show(record: &Record, as_json: bool) -> Result<(), Trouble> {
    let state = record.state_now();
    if as_json {
        let cannot = |error: serde_json::Error| Trouble::input(error.to_string());
        let mut value = serde_json::to_value(record).map_err(cannot)?;
        value["state"] = state.name().into();
        return output::json_value(&value);
    }
    output::line(&text(record, state, Paint::stdout()))
}

fn text(record: &Record, state: State, paint: Paint) -> String {
    let mut lines = vec![
        paint.tone(Tone::Strong, format_args!("run {}  {}", record.id, model(record))),
        named("state", &of_state(record, state, paint)),
        named("began", &format!("{}, took {}", time(record.began_ms), duration(record.seconds(state)))),
        named("steps", &of_steps(record)),
        named("graph", &format!("{} (hash {})", record.graph.display(), record.graph_hash)),
        named("command", &command(record)),
        named("folder", &record.folder.display().to_string()),
    ];
    if let Some(git) = &record.git {
        lines.push(named("git", &git.text()));
    }
    let machine = &record.machine;
    lines.push(named(
        "machine",
        &format!("{}, {}, {} cores, meshtf {}", machine.host, machine.system, machine.cores, machine.version),
    ));
    if !record.tasks.is_empty() {
        lines.push(named("tasks", &record.tasks.join(", ")));
    }
    // Only the last few states are kept in their folder.
    let kept = record.checkpoints.iter().filter(|saved| saved.file.exists());
    lines.extend(kept.map(|saved| named("saved", &format!("{} (step {})", saved.file.display(), saved.step))));
    lines.extend(record.files.iter().map(|(flag, path)| named(flag, &path.display().to_string())));
    lines.extend(record.notices.iter().map(|notice| named("notice", notice)));
    for (name, section) in &record.sections {
        let values = flat(section);
        let shown = values.iter().map(
            |(key, value)| {
                if key.is_empty() { value.to_string() } else { format!("{key} = {value}") }
            },
        );
        lines.push(named(name, &shown.collect::<Vec<_>>().join(", ")));
    }
    let curves: Vec<&Curve> = record.curves.iter().filter(|curve| curve.last.is_some()).collect();
    if !curves.is_empty() {
        let header = ["VALUE", "LAST", "LEAST", "AT STEP", "GREATEST", "AT STEP"];
        lines.push(String::new());
        lines.push(table(paint, &header, curves.iter().map(|curve| TableRow::from(cells(curve)))));
    }
    for curve in curves {
        if let Some(dots) = dots_of(&curve.title(), &curve.finite(), CURVE) {
            lines.push(format!("\n{dots}"));
        }
    }
    lines.join("\n")
}

fn named(name: &str, value: &str) -> String {
    format!("{name:NAMES$}{value}")
}

fn of_state(record: &Record, state: State, paint: Paint) -> String {
    let message = record.end.as_ref().and_then(|end| end.message.as_deref()).unwrap_or_default();
    let text = match state {
        State::Running => format!("running as process {} on {}", record.process.pid, record.machine.host),
        State::Killed => {
            format!("killed: its process is gone and wrote no end; last sign of life {}", time(record.updated_ms))
        }
        State::Lost => {
            let host = &record.machine.host;
            format!("lost: no sign of life from {host} since {}", time(record.updated_ms))
        }
        State::Ended(How::Done) => "done".to_owned(),
        State::Ended(How::Enough) => format!("done before its last step: {message}"),
        State::Ended(How::Stopped) => message.to_owned(),
        State::Ended(How::Failed) => format!("failed: {message}"),
    };
    let tone = match state {
        State::Running | State::Ended(How::Done | How::Enough) => Tone::Good,
        State::Ended(How::Stopped) => Tone::Warning,
        State::Killed | State::Lost | State::Ended(How::Failed) => Tone::Bad,
    };
    paint.tone(tone, text)
}

/// `420 of 1000, from 100 on, continued twice after a loss`
fn of_steps(record: &Record) -> String {
    let from = if record.steps.start > 0 { format!(", from {} on", record.steps.start) } else { String::new() };
    let retries = match record.retries {
        0 => String::new(),
        1 => ", continued once after the loss of a task".to_owned(),
        more => format!(", continued {more} times after the loss of a task"),
    };
    format!("{}{from}{retries}", steps(record).replace('/', " of "))
}

/// The command line as a shell takes it.
fn command(record: &Record) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./=:,@%+".contains(letter);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    record.command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn cells(curve: &Curve) -> Vec<String> {
    let none = || "-".to_owned();
    let at = |point: Option<(u64, f64)>| match point {
        Some((step, value)) => [number(value), step.to_string()],
        None => [none(), none()],
    };
    let last = curve.last.map_or_else(none, |(_, value)| value.map_or("NaN".into(), number));
    let ([least, at_least], [greatest, at_greatest]) = (at(curve.least), at(curve.greatest));
    vec![curve.title(), last, least, at_least, greatest, at_greatest]
}

/// The values of a section by their paths: `feed.x.file`.
pub fn flat(section: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), section)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(members) if !members.is_empty() => {
                // The last is taken first.
                for (key, value) in members.iter().rev() {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    open.push((path, value));
                }
            }
            value => found.push((path, value)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::record::Kind;
    use super::*;

    #[test]
    fn a_run_is_shown_with_all_that_is_known() {
        let mut record = Record::new(Kind::Train, Path::new("/models/digits.json"), "ab12".into())
            .with_sections(r#"{"train": {"rate": 0.5, "schedule": {"kind": "cosine", "steps": 10}}}"#)
            .file("log", Some(Path::new("/runs/1")));
        record.id = "3f09c12a".into();
        record.command = ["meshtf", "train", "digits.json", "--checkpoint", "it's here"].map(str::to_owned).to_vec();
        record.steps = super::super::record::Steps { start: 5, done: 20, total: 100 };
        (1..=20).for_each(|step| record.value("loss", false, step, 1.0 / step as f64));
        record.value("accuracy", true, 20, 0.75);
        record.ended(How::Failed, Some("the loss is NaN".into()));
        let text = text(&record, State::Ended(How::Failed), Paint::OFF);
        for part in [
            "run 3f09c12a  digits.json\n",
            "state       failed: the loss is NaN\n",
            "steps       20 of 100, from 5 on\n",
            "graph       /models/digits.json (hash ab12)\n",
            r"command     meshtf train digits.json --checkpoint 'it'\''s here'",
            "log         /runs/1\n",
            "train       rate = 0.5, schedule.kind = \"cosine\", schedule.steps = 10\n",
            "accuracy (held out)  0.75000",
            "0.050000 to 1, step 1 to 20",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_section_is_flattened_in_order() {
        let section = json!({ "b": { "c": 1, "a": [1, 2] }, "a": {}, "z": null });
        let flat: Vec<String> = flat(&section).into_iter().map(|(path, value)| format!("{path}={value}")).collect();
        assert_eq!(flat, ["a={}", "b.a=[1,2]", "b.c=1", "z=null"]);
    }
}
