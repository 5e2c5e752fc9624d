//! `meshtf runs compare`: the differences of several runs' inputs, and their results side by side.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::curve::Curve;
use super::record::Record;
use super::show::flat;
use super::steps;
use crate::cli::paint::{Paint, Tone};
use crate::cli::table::{TableRow, duration, number, table};
use crate::cli::{Trouble, output};

/// The inputs of a run, by name.
type Inputs = BTreeMap<String, Value>;

pub fn compare(records: &[Record], as_json: bool) -> Result<(), Trouble> {
    let (differences, results) = (differences(records), results(records));
    if as_json {
        let ids: Vec<&str> = records.iter().map(|record| record.id.as_str()).collect();
        let differences: Value = differences.into_iter().map(|(name, values)| (name, json!(values))).collect();
        let results: Value = results.into_iter().map(|(name, values)| (name, json!(values))).collect();
        return output::json_value(&json!({ "runs": ids, "differences": differences, "results": results }));
    }
    output::line(&text(records, &differences, &results, Paint::stdout()))
}

/// The inputs of which the runs have different values; `null` for a run that has none.
fn differences(records: &[Record]) -> Vec<(String, Vec<Value>)> {
    let all: Vec<Inputs> = records.iter().map(inputs).collect();
    let names: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let values = |name: &String| all.iter().map(|one| one.get(name).cloned().unwrap_or(Value::Null)).collect();
    let all_values = names.into_iter().map(|name| (name.clone(), values(name)));
    all_values.filter(|(_, values): &(String, Vec<Value>)| values.iter().any(|value| *value != values[0])).collect()
}

fn inputs(record: &Record) -> Inputs {
    let mut inputs = Inputs::new();
    for (name, section) in &record.sections {
        let of = |path: String| if path.is_empty() { name.clone() } else { format!("{name}.{path}") };
        inputs.extend(flat(section).into_iter().map(|(path, value)| (of(path), value.clone())));
    }
    let mut add = |name: &str, value: Value| inputs.insert(name.to_owned(), value);
    add("graph", record.graph.display().to_string().into());
    add("graph.hash", record.graph_hash.clone().into());
    add("command", flags(record).into());
    add("steps.total", record.steps.total.into());
    add("machine.host", record.machine.host.clone().into());
    add("machine.system", record.machine.system.clone().into());
    add("machine.cores", record.machine.cores.into());
    add("meshtf.version", record.machine.version.clone().into());
    add("tasks", record.tasks.join(", ").into());
    if let Some(git) = &record.git {
        add("git.commit", git.commit.clone().into());
        add("git.changes", git.dirty.into());
    }
    inputs
}

/// The command line without the program and the file of the graph, which are compared by themselves.
fn flags(record: &Record) -> String {
    let words = record.command.iter().skip(1).filter(|word| {
        record.graph.file_name() != std::path::Path::new(word).file_name() || record.graph.file_name().is_none()
    });
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// The results by name; `null` for a run that has none.
fn results(records: &[Record]) -> Vec<(String, Vec<Value>)> {
    let mut rows = vec![
        ("state".to_owned(), records.iter().map(|record| json!(record.state_now().name())).collect()),
        ("steps".to_owned(), records.iter().map(|record| json!(record.steps.done)).collect()),
        ("seconds".to_owned(), records.iter().map(|record| json!(record.seconds(record.state_now()))).collect()),
    ];
    let mut names: Vec<(bool, String)> = Vec::new();
    for curve in records.iter().flat_map(|record| &record.curves) {
        let name = (curve.is_held_out, curve.name.clone());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|(is_held_out, _)| *is_held_out);
    for (is_held_out, name) in names {
        let is_own = |curve: &&Curve| curve.is_held_out == is_held_out && curve.name == name;
        let curves: Vec<Option<&Curve>> = records.iter().map(|record| record.curves.iter().find(is_own)).collect();
        let title = curves.iter().flatten().next().map_or_else(|| name.clone(), |curve| curve.title());
        let mut row = |what: &str, of: &dyn Fn(&Curve) -> Option<f64>| {
            let values = curves.iter().map(|curve| json!(curve.and_then(of)));
            rows.push((format!("{title} {what}"), values.collect()));
        };
        row("last", &|curve| curve.last.and_then(|(_, value)| value));
        row("least", &|curve| curve.least.map(|(_, value)| value));
        row("greatest", &|curve| curve.greatest.map(|(_, value)| value));
    }
    // The best evaluation, where the file says which one that is.
    let best = |record: &Record| {
        let best = record.best.as_ref()?;
        let curve = record.curves.iter().find(|curve| curve.is_held_out && curve.name == best.of)?;
        let (_, value) = if best.is_greatest { curve.greatest } else { curve.least }?;
        Some(value)
    };
    if records.iter().any(|record| record.best.is_some()) {
        rows.push(("best evaluation".to_owned(), records.iter().map(|record| json!(best(record))).collect()));
    }
    rows
}

fn text(
    records: &[Record],
    differences: &[(String, Vec<Value>)],
    results: &[(String, Vec<Value>)],
    paint: Paint,
) -> String {
    let header = |first: &'static str| -> Vec<&str> {
        std::iter::once(first).chain(records.iter().map(|record| record.id.as_str())).collect()
    };
    let shown = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let row = |(name, values): &(String, Vec<Value>)| {
        TableRow::from(std::iter::once(name.clone()).chain(values.iter().map(shown)).collect::<Vec<_>>())
    };
    let measured = |(name, values): &(String, Vec<Value>)| {
        let of = |(record, value): (&Record, &Value)| match (name.as_str(), value.as_f64()) {
            ("seconds", _) => duration(record.seconds(record.state_now())),
            ("steps", _) => steps(record),
            (_, Some(value)) => number(value),
            _ => shown(value),
        };
        let values = records.iter().zip(values).map(of);
        TableRow::from(std::iter::once(name.clone()).chain(values).collect::<Vec<_>>())
    };
    let results = table(paint, &header("RESULT"), results.iter().map(measured));
    match differences {
        [] => format!("{}\n\n{results}", paint.tone(Tone::Dim, "The inputs are the same.")),
        differences => format!("{}\n\n{results}", table(paint, &header("INPUT"), differences.iter().map(row))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::record::{Best, How, Kind};
    use super::*;

    fn run(id: &str, rate: f64, losses: &[f64]) -> Record {
        let text = format!(r#"{{"train": {{"rate": {rate}, "optimizer": "adam"}}}}"#);
        let mut run = Record::new(Kind::Train, Path::new("/m/g.json"), "ab".into()).with_sections(&text);
        run.id = id.to_owned();
        run.command = ["meshtf", "train", "g.json"].map(str::to_owned).to_vec();
        run.best = Some(Best { of: "accuracy".into(), is_greatest: true });
        for (step, loss) in (1..).zip(losses) {
            run.steps.done = step;
            run.value("loss", false, step, *loss);
            run.value("accuracy", true, step, 1.0 - loss);
        }
        run.steps.total = 3;
        run.ended(How::Done, None);
        run
    }

    #[test]
    fn only_differences_of_the_inputs_are_shown_and_all_results() {
        let mut other = run("bbbbbbbb", 0.25, &[0.5, 0.125]);
        other.command.extend(["--steps", "2"].map(str::to_owned));
        other.sections["train"]["clip_norm"] = json!(1);
        let records = [run("aaaaaaaa", 0.5, &[0.75, 0.25, 0.5]), other];
        let found = differences(&records);
        let wanted = [
            ("command".to_owned(), vec![json!("train"), json!("train --steps 2")]),
            ("train.clip_norm".to_owned(), vec![Value::Null, json!(1)]),
            ("train.rate".to_owned(), vec![json!(0.5), json!(0.25)]),
        ];
        assert_eq!(found, wanted);
        let results = results(&records);
        let of = |name: &str| results.iter().find(|(own, _)| own == name).map(|(_, values)| values.clone());
        assert_eq!(of("steps"), Some(vec![json!(3), json!(2)]));
        assert_eq!(of("loss last"), Some(vec![json!(0.5), json!(0.125)]));
        assert_eq!(of("loss least"), Some(vec![json!(0.25), json!(0.125)]));
        assert_eq!(of("accuracy (held out) last"), Some(vec![json!(0.5), json!(0.875)]));
        assert_eq!(of("best evaluation"), Some(vec![json!(0.75), json!(0.875)]));
        let shown = text(&records, &found, &results, Paint::OFF);
        let line = |part: &str| shown.lines().find(|line| line.contains(part)).unwrap_or_default().to_owned();
        assert_eq!(line("train.rate").split_whitespace().collect::<Vec<_>>(), ["train.rate", "0.5", "0.25"]);
        assert_eq!(line("INPUT").split_whitespace().collect::<Vec<_>>(), ["INPUT", "aaaaaaaa", "bbbbbbbb"]);
        let same = [records[0].clone(), records[0].clone()];
        assert!(text(&same, &differences(&same), &[], Paint::OFF).starts_with("The inputs are the same."));
    }
}
