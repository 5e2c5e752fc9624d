//! A traced step: its timeline as a file, and a report of its times as text.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use meshtf_graph::trace::{Costs, DeviceTrace, PathPart, Timeline};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::memory::Bytes;

use super::Trouble;
use super::paint::{Paint, Tone};
use super::table::table;

/// Ops, and nodes of the critical path, that the report names.
const MOST_OPS: usize = 10;
const MOST_OF_PATH: usize = 5;
/// Pairs of devices that it names.
const MOST_LINKS: usize = 10;

/// Writes the timeline of steps, one after the other, and returns the report of their times.
pub(super) fn write(path: &Path, steps: u64, traces: &[DeviceTrace]) -> Result<String, Trouble> {
    let (timeline, paint) = (Timeline::of(traces), Paint::stderr());
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, &timeline.chrome_trace())?;
        file.flush()
    };
    write().map_err(|error: std::io::Error| Trouble::input(format!("--trace {}: {error}", path.display())))?;
    Ok(format!(
        "{}\n{}: the timeline; open it at https://ui.perfetto.dev",
        report(paint, steps, &timeline.costs()),
        path.display()
    ))
}

/// The report of the times of steps.
fn report(paint: Paint, steps: u64, costs: &Costs) -> String {
    let percent = |part_us: f64| format!("{:.0} %", 100.0 * part_us / costs.took_us.max(f64::MIN_POSITIVE));
    let devices = costs.devices.iter().map(|time| {
        let shares = [time.busy_us, time.waiting_us, time.idle_us].map(percent);
        [vec![time.device.to_string()], shares.to_vec()].concat()
    });
    let ops = costs
        .ops
        .iter()
        .take(MOST_OPS)
        .map(|op| vec![op.op.clone(), time(op.took_us), percent(op.took_us), op.runs.to_string()]);
    let mut parts = vec![
        paint.tone(
            Tone::Strong,
            match steps {
                1 => format!("the traced step took {}", time(costs.took_us)),
                _ => format!("the {steps} traced steps took {}", time(costs.took_us)),
            },
        ),
        table(paint, &["device", "busy", "waiting", "idle"], devices),
        table(paint, &["op", "time", if steps == 1 { "of the step" } else { "of the steps" }, "runs"], ops),
    ];
    parts.extend(path(paint, &costs.path));
    let links = costs.links.iter().take(MOST_LINKS).map(|link| {
        let ends = [&link.from, &link.to].map(DeviceName::to_string);
        [&ends[..], &[link.values.to_string(), Bytes(link.bytes as usize).to_string()]].concat()
    });
    if costs.links.is_empty() {
        parts.push("nothing travelled between devices".to_owned());
    } else {
        parts.push(table(paint, &["from", "to", "values", "bytes"], links));
    }
    parts.join("\n\n")
}

/// The critical path of the step; `None` if nothing ran.
fn path(paint: Paint, path: &[PathPart]) -> Option<String> {
    let took = |part: &PathPart| part.took_us + part.waited_us;
    let sum = |of: fn(&PathPart) -> f64| path.iter().map(of).sum::<f64>();
    let (ran, waited) = (sum(|part| part.took_us), sum(|part| part.waited_us));
    let mut longest: Vec<&PathPart> = path.iter().filter(|part| took(part) > 0.0).collect();
    longest.sort_by(|a, b| took(b).total_cmp(&took(a)));
    let rows = longest.into_iter().take(MOST_OF_PATH).map(|part| {
        vec![part.name.clone(), part.op.clone(), part.device.to_string(), time(part.took_us), time(part.waited_us)]
    });
    let rows = table(paint, &["node", "op", "device", "ran", "waited before"], rows);
    let nodes = if path.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", path.len()) };
    (!path.is_empty()).then(|| {
        let title = format!("the critical path: {nodes}, {} running and {} waiting", time(ran), time(waited));
        format!("{}; most of it:\n{rows}", paint.tone(Tone::Strong, title))
    })
}

/// `12.3 ms`.
fn time(us: f64) -> String {
    match us {
        0.0..1e3 => format!("{us:.0} us"),
        1e3..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::check_file;
    use meshtf_graph::trace::NodeTrace;
    use meshtf_tensor::device::{DeviceKind, Task};

    #[test]
    fn a_report_names_devices_ops_and_the_critical_path() {
        let node = |name: &str, op: &str, inputs: &[&str], start_us: u64, took_us: u64| NodeTrace {
            name: name.to_owned(),
            op: op.to_owned(),
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            start_ns: start_us * 1000,
            took_ns: took_us * 1000,
            ..NodeTrace::default()
        };
        let nodes = vec![node("a", "Exp", &[], 0, 1500), node("b", "Neg", &["a"], 1600, 400)];
        let device = Task::new("w", 0).device(DeviceKind::Cpu, 0);
        let folder = temp_dir::TempDir::new().unwrap();
        let file = folder.child("trace.json");
        check_file("--trace", &file).unwrap();
        let told = write(&file, 1, &[DeviceTrace { device, nodes }]).unwrap();
        let wanted = [
            "the traced step took 2.0 ms",
            "/job:w/task:0/device:CPU:0  95 %  5 %      0 %",
            "Exp  1.5 ms  75 %         1",
            "2 nodes, 1.9 ms running and 100 us waiting",
        ];
        for wanted in wanted {
            assert!(told.contains(wanted), "{wanted}\n{told}");
        }
        let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(written["traceEvents"].as_array().unwrap().len(), 4);
        for wrong in [folder.path(), &folder.child("none/trace.json")] {
            assert!(check_file("--trace", wrong).is_err(), "{}", wrong.display());
        }
    }
}
