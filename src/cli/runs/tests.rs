//! The list of runs, and their removal.

use std::path::Path;

use temp_dir::TempDir;

use super::record::How;
use super::*;

fn ended(id: &str, began_ms: u64, how: How, message: Option<&str>) -> Record {
    let mut run = Record::new(Kind::Train, Path::new("/m/digits.json"), "ab".into());
    (run.id, run.began_ms) = (id.to_owned(), began_ms);
    run.ended(how, message.map(str::to_owned));
    (run.ended_ms, run.updated_ms) = (Some(began_ms + 61_000), began_ms + 61_000);
    run
}

/// The row as a table without colours.
fn shown(record: &Record) -> String {
    table(Paint::OFF, &[""; 8], [row(record)])
}

#[test]
fn a_run_is_a_line_with_its_results_and_its_end() {
    // 2026-05-04 09:12 UTC, by `date -d`.
    let mut run = ended("3f09c12a", 1_777_885_920_000, How::Stopped, Some("stopped by SIGINT after step 3 of 9\nmore"));
    (run.steps.done, run.steps.total) = (3, 9);
    run.value("loss", false, 3, 0.123_456_7);
    run.value("loss", true, 3, f64::NAN);
    let cells = shown(&run);
    for part in
        ["3f09c12a", "2026-05-04 09:12Z", "digits.json", "3/9", "0.12346", "NaN", "stopped by SIGINT after step 3 of 9"]
    {
        assert!(cells.contains(part), "{part}: {cells}");
    }
    assert!(!cells.contains("more"), "{cells}");
    let summary = summary(&run);
    assert_eq!(
        (&summary["state"], &summary["seconds"], &summary["values"][1]["last"]),
        (&json!("stopped"), &json!(61), &Value::Null)
    );
    run.kind = Kind::Submit;
    assert_eq!(model(&run), "digits.json (submit)");
    assert_eq!(loss(&run), "0.12346");
    run.curves[0].name = "r".to_owned();
    assert_eq!(loss(&run), "r 0.12346");
}

#[test]
fn runs_are_removed_by_name_or_age_and_never_while_they_run() {
    let folder = TempDir::new().unwrap();
    let store = Store::at(folder.path().to_owned());
    let day = 86_400_000;
    store.write(&ended("00000001", now_ms() - 40 * day, How::Done, None)).unwrap();
    store.write(&ended("00000002", now_ms() - 20 * day, How::Failed, Some("no"))).unwrap();
    let running = Record { id: "00000003".into(), ..Record::new(Kind::Run, Path::new("g"), String::new()) };
    store.write(&Record { updated_ms: 1, ..running }).unwrap();
    let left = || store.records().unwrap().into_iter().map(|run| run.id).collect::<Vec<_>>();
    let named = |names: &[&str]| remove(&store, &names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), None);
    for (names, why) in [(&["00000001", "9"][..], "no run 9"), (&["00000001", "00000003"], "is not over")] {
        let trouble = named(names).unwrap_err().to_string();
        assert!(trouble.contains(why), "{trouble}");
        assert_eq!(left().len(), 3, "nothing is removed");
    }
    remove(&store, &[], Some(age("30d").unwrap())).unwrap();
    assert_eq!(left(), ["00000003", "00000002"]);
    named(&["00000002", "00000002"]).unwrap();
    remove(&store, &[], Some(Duration::ZERO)).unwrap();
    assert_eq!(left(), ["00000003"]);
    for (text, seconds) in [("90min", 5400), ("12h", 43_200), ("2w", 1_209_600)] {
        assert_eq!(age(text), Ok(Duration::from_secs(seconds)));
    }
    for wrong in ["30", "d", "-1d", "1y", ""] {
        assert!(age(wrong).is_err(), "{wrong}");
    }
}
