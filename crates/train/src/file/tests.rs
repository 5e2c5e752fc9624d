//! Tests of valid sections, with their contents; and of invalid ones, with the position and the cause of the error.

use meshtf_tensor::Tensor;

use super::*;
use crate::data::{
    Category, ClassWeights, Classes, DatePart, HoldOutBy, ImageOptions, LayoutOptions, Missing, Normalize, Standardize,
    TableOptions, TextOptions, TokenKind, VocabularyChoice, Window,
};

#[test]
fn what_is_said_is_read() {
    let text = r#"{
        "data": {"feed": {"x": {"file": "a.csv", "except": ["label"], "scale": 0.5}, "y": "y.npy"},
                 "batch": 32, "shuffle": 7, "hold_out": 0.25},
        "train": {"loss": "loss", "optimizer": {"name": "rmsprop", "momentum": 0.5, "centered": true},
                  "rate": {"cosine": {"rate": 0.1, "steps": 100}}, "warm_up": 10, "clip_norm": 2, "weight_decay": 0.01,
                  "average": 0.99, "epochs": 3, "metrics": ["accuracy"], "workers": 2, "ps": 1, "mode": "async", "variables": ["w"]},
        "evaluate": {"every": 50, "metrics": ["accuracy"]}, "init": ["start"]}"#;
    let Sections { data, train, evaluate, init } = read(text).unwrap();
    let except = vec!["label".to_owned()];
    let x = DataSource { file: "a.csv".to_owned(), except, scale: Some(0.5), ..DataSource::default() };
    let y = DataSource { file: "y.npy".to_owned(), ..DataSource::default() };
    assert_eq!(data.feed, [("x".to_owned(), x), ("y".to_owned(), y)]);
    assert_eq!((data.batch, data.shuffle, data.hold_out), (32, Some(7), 0.25));
    let mut optimizer = Optimizer::of_name("rmsprop").unwrap();
    optimizer.set("momentum", 0.5).and(Ok(())).unwrap();
    optimizer.set("centered", 1.0).unwrap();
    let cosine = Schedule::Cosine { rate: 0.1, steps: 100, last: 0.0 };
    let wanted = Training {
        clip: Some(Clip::GlobalNorm(2.0)),
        weight_decay: 0.01,
        average: Some(0.99),
        ..Training::new(optimizer, Schedule::WarmUp(WarmUp { steps: 10, then: Box::new(cosine) }))
    };
    assert_eq!(train.training, wanted);
    assert_eq!((train.steps, train.epochs, train.workers, train.ps), (None, Some(3), 2, 1));
    assert!(train.mode == UpdateMode::Async && init == ["start"] && train.fewest.is_none());
    let some = read(&text.replace(r#""workers": 2"#, r#""workers": {"min": 2, "max": 8}"#)).unwrap().train;
    assert_eq!((some.fewest, some.workers, some.least()), (Some(2), 8, 2));
    // Those that make their own updates share no batch.
    assert!(!some.is_elastic());
    for mode in [UpdateMode::Sync, UpdateMode::Mirrored] {
        let some = TrainSection { mode, ..some.clone() };
        assert!(some.is_elastic() && some.least() == 2);
        // As many as can share it equally, neither fewer than the least nor more than the greatest number.
        for (up, batch, wanted) in [
            (9, 24, Some(8)),
            (7, 24, Some(6)),
            (5, 24, Some(4)),
            (2, 24, Some(2)),
            (1, 24, None),
            (7, 64, Some(4)),
            (3, 64, Some(2)),
            (6, 7, None),
            (8, 7, Some(7)),
            (0, 8, None),
        ] {
            assert_eq!(some.sharing(up, batch), wanted, "{up} up, a batch of {batch}");
        }
    }
    let wanted = EvaluateSection { every: 50, metrics: vec!["accuracy".to_owned()], ..EvaluateSection::default() };
    assert_eq!(evaluate.unwrap(), wanted);
}

#[test]
fn files_have_parts_and_folders_have_images() {
    let text = r#"{"data": {"feed": {"x": {"images": "photos", "size": [28, 32]}, "y": {"classes": "photos"}, "z": "a/z.npz:z/0",
            "w": {"file": "w.csv:a,b", "scale": 2}}, "batch": 1},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}"#;
    let feed = read(text).unwrap().data.feed;
    let source = |file: &str, part: Option<&str>, take: Take| DataSource {
        file: file.to_owned(),
        part: part.map(str::to_owned),
        take,
        ..DataSource::default()
    };
    let images = DataSource { size: Some([28, 32]), ..source("photos", None, Take::Images) };
    let columns = DataSource { scale: Some(2.0), ..source("w.csv", Some("a,b"), Take::Values) };
    let wanted = [images, source("photos", None, Take::Classes), source("a/z.npz", Some("z/0"), Take::Values), columns];
    assert_eq!(feed.into_iter().map(|(_, source)| source).collect::<Vec<_>>(), wanted);
}

#[test]
fn a_table_has_options() {
    let with = |options: &str| {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": {{"file": "t.csv", {options}}}}}, "batch": 1}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
        );
        read(&text).map(|sections| sections.data.feed.into_iter().next().unwrap().1)
    };
    let source = with(
        r#""columns": [0, "2..3", "a"], "delimiter": ";", "header": false, "skip": 2, "decimal": ",", "thousands": ".",
        "missing": "median", "missing_values": ["-"], "categories": {"a": "one_hot", "b": "ids", "c": {"hash": 9}},
        "dates": {"t": ["day_of_year", "hour"]}, "date_format": "%d.%m.%Y", "normalize": {"a": "minmax"},
        "window": {"length": 8, "ahead": [2, 3], "stride": 4}"#,
    );
    let source = source.unwrap();
    assert_eq!(source.columns, ["0", "2..3", "a"]);
    let named = |name: &str| name.to_owned();
    let wanted = TableOptions {
        layout: LayoutOptions { delimiter: Some(';'), no_header: true, skip: 2 },
        decimal: Some(','),
        thousands: Some('.'),
        missing: Some(Missing::Median),
        missing_values: vec![named("-")],
        classes: None,
        categories: vec![(named("a"), Category::OneHot), (named("b"), Category::Ids), (named("c"), Category::Hash(9))],
        dates: vec![(named("t"), vec![DatePart::DayOfYear, DatePart::Hour])],
        date_format: Some(named("%d.%m.%Y")),
        normalize: vec![(Some(named("a")), Normalize::MinMax)],
        class_weights: None,
        window: Some(Window { length: 8, ahead: Some((2, 3)), is_range: true, stride: 4 }),
    };
    assert_eq!(source.table, wanted);
    assert_eq!(with(r#""columns": 4"#).unwrap().columns, ["4"]);
    let more = |options: &str| with(options).unwrap().table;
    assert_eq!(more(r#""missing": 0.5"#).missing, Some(Missing::Value(0.5)));
    assert_eq!(more(r#""class_weights": "balanced""#).class_weights, Some(ClassWeights::Balanced));
    let listed = ClassWeights::Listed(vec![(named("a"), 2.5)]);
    assert_eq!(more(r#""class_weights": {"a": 2.5}"#).class_weights, Some(listed));
    assert_eq!(more(r#""classes": "auto""#).classes, Some(Classes::Auto));
    assert_eq!(more(r#""classes": ["b", "a"]"#).classes, Some(Classes::Listed(vec![named("b"), named("a")])));
    assert_eq!(more(r#""normalize": "standard""#).normalize, [(None, Normalize::Standard)]);
    for (options, why) in [
        (r#""delimiter": "tab""#, "x.delimiter (line 1, column 56): \"tab\" is not one character"),
        (r#""header": 1"#, "expected true or false"),
        (r#""missing": "mode""#, "expected \"drop\", \"mean\", \"median\" or a number"),
        (r#""classes": "some""#, "the classes of a column are \"auto\" or a list of labels"),
        (r#""categories": {"a": "hot"}"#, "$.data.feed.x.categories.a"),
        (r#""dates": {"t": ["day_of_yaer"]}"#, "did you mean \"day_of_year\"?"),
        (r#""date_format": "%Q""#, "is not the form of a date"),
        (r#""normalize": "max""#, "expected \"standard\" or \"minmax\""),
        (r#""class_weights": "equal""#, "expected \"balanced\" or an object of weights by class"),
        (r#""class_weights": {"a": -1}"#, "the weight is -1; expected a number of at least 0"),
        (r#""window": {"stride": 2}"#, "\"length\" is missing"),
        (r#""window": {"length": 0}"#, "expected a whole number of at least 1"),
        (r#""window": {"length": 2, "ahead": [3, 1]}"#, "the first and the last of several"),
        (r#""delimeter": ";""#, "did you mean \"delimiter\"?"),
    ] {
        let error = with(options).unwrap_err().to_string();
        assert!(error.contains(why), "{options}: {error}");
    }
    let spreadsheet = r#"{"data": {"feed": {"x": {"file": "s.xlsx", "columns": ["a"]}}, "batch": 1},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}"#;
    let error = read(spreadsheet).unwrap_err().to_string();
    assert!(error.contains("this is a spreadsheet: export it as .csv"), "{error}");
}

#[test]
fn the_examples_that_are_held_out_are_chosen() {
    let with = |hold_out: &str| {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": "t.csv"}}, "batch": 1, "hold_out": {hold_out}}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
        );
        read(&text).map(|sections| (sections.data.hold_out, sections.data.hold_out_by))
    };
    let group = HoldOutBy::Group("g".to_owned());
    for (text, wanted) in [
        ("0.25", (0.25, HoldOutBy::Random)),
        (r#"{"share": 0.25}"#, (0.25, HoldOutBy::Random)),
        (r#"{"last": 0.25}"#, (0.25, HoldOutBy::Last)),
        (r#"{"share": 0, "group": "g"}"#, (0.0, group)),
        (r#"{"stratify": "k", "share": 0.5}"#, (0.5, HoldOutBy::Stratified("k".to_owned()))),
        (r#"{"stratify": 2, "share": 0.5}"#, (0.5, HoldOutBy::Stratified("2".to_owned()))),
        (r#"{"share": 0.5, "group": 0}"#, (0.5, HoldOutBy::Group("0".to_owned()))),
    ] {
        assert_eq!(with(text).unwrap(), wanted, "{text}");
    }
    for (text, why) in [
        (r#"{"group": "g"}"#, "\"share\" is missing"),
        (r#"{"last": 0.2, "group": "g"}"#, "use \"last\", or \"share\" with"),
        (r#"{"share": 0.2, "group": "g", "stratify": "k"}"#, "use \"last\", or \"share\" with"),
        (r#"{"last": 1}"#, "the share is 1; expected a number from 0 to below 1"),
        (r#"{"lats": 0.2}"#, "did you mean \"last\"?"),
    ] {
        let error = with(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn constants_are_as_wide_as_they_need() {
    let text = r#"{"data": {"feed": {"x": "x.npy", "keep": 0.1, "flag": true, "n": [1, 2],
            "half": {"value": 0.5, "dtype": "float16", "shape": [2]}, "text": {"value": "a"}}, "batch": 1},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1},
        "evaluate": {"every": 5, "feed": {"keep": 1, "x": "test.npy"}}}"#;
    let Sections { data, evaluate, .. } = read(text).unwrap();
    let half = Tensor::from_vec([2], vec![half::f16::from_f32(0.5); 2]);
    let wanted = [
        ("keep", Tensor::scalar(0.1f64)),
        ("flag", Tensor::scalar(true)),
        ("n", Tensor::vector(vec![1i64, 2])),
        ("half", half),
        ("text", Tensor::scalar(b"a".to_vec())),
    ];
    assert_eq!(data.constants, wanted.map(|(name, value)| (name.to_owned(), value)));
    let evaluate = evaluate.unwrap();
    assert_eq!(evaluate.constants, [("keep".to_owned(), Tensor::scalar(1i64))]);
    let test = DataSource { file: "test.npy".to_owned(), ..DataSource::default() };
    assert_eq!(evaluate.feed, [("x".to_owned(), test)]);
}

#[test]
fn every_fault_says_where_and_what_would_be_right() {
    let data = r#""data": {"feed": {"x": "x.npy"}, "batch": 2}"#;
    let good = r#""train": {"loss": "l", "optimizer": "sgd", "rate": 0.1, "steps": 5}"#;
    read(&format!("{{{data}, {good}}}")).unwrap();
    let check = |text: String, path: &str, part: &str| {
        let why = read(&text).expect_err(&text).to_string();
        assert!(why.starts_with(&format!("{path} (line 1, column ")) && why.contains(part), "{text}: {why}");
    };
    check(format!("{{{data}}}"), "$", "\"train\" is missing");
    check(format!("{{{data}, {good}, \"evalute\": {{\"every\": 1}}}}"), "$.evalute", "did you mean \"evaluate\"?");
    for (section, path, part) in [
        (r#"{"batch": 2}"#, "$.data", "\"feed\" is missing"),
        (r#"{"feed": {"x": "x.npy"}}"#, "$.data", "\"batch\" is missing"),
        (r#"{"feed": {"x": 1}, "batch": 2}"#, "$.data", "\"feed\" has no file"),
        (r#"{"feed": {"x": null}, "batch": 2}"#, "$.data.feed.x", "null"),
        (r#"{"feed": {"x": [1, "a"]}, "batch": 2}"#, "$.data.feed.x", "a string in a list of int32s"),
        (r#"{"feed": {"x": {"value": 1, "file": "f"}}, "batch": 2}"#, "$.data.feed.x.file", "unknown key \"file\""),
        (r#"{"feed": {"x": {}}, "batch": 2}"#, "$.data.feed.x", "\"file\" is missing"),
        (
            r#"{"feed": {"x": {"file": "f", "colums": []}}, "batch": 2}"#,
            "$.data.feed.x.colums",
            "did you mean \"columns\"?",
        ),
        (r#"{"feed": {"x": "/etc/f.csv"}, "batch": 1}"#, "$.data.feed.x", "in that folder or below it"),
        (r#"{"feed": {"x": {"file": "../f.csv"}}, "batch": 1}"#, "$.data.feed.x.file", "in that folder or below it"),
        (r#"{"feed": {"x": "../x.npz:a"}, "batch": 1}"#, "$.data.feed.x", "in that folder or below it"),
        (r#"{"feed": {"x": {"file": "f", "images": "g"}}, "batch": 1}"#, "$.data.feed.x.images", "one of \"file\""),
        (
            r#"{"feed": {"x": {"file": "f", "size": [1, 2]}}, "batch": 1}"#,
            "$.data.feed.x",
            "are only for \"images\", or a feature of TFRecords",
        ),
        (r#"{"feed": {"x": {"images": "f", "size": [1]}}, "batch": 1}"#, "$.data.feed.x.size", "[HEIGHT, WIDTH]"),
        (r#"{"feed": {"x": {"classes": "f", "columns": ["a"]}}, "batch": 1}"#, "$.data.feed.x", "only a table (.csv"),
        (r#"{"feed": {"x": "f"}, "batch": 0}"#, "$.data.batch", "of at least 1"),
        (r#"{"feed": {"x": "f"}, "batch": 1, "hold_out": 1}"#, "$.data.hold_out", "the share is 1"),
    ] {
        check(format!("{{\"data\": {section}, {good}}}"), path, part);
    }
    for (section, path, part) in [
        (r#"{"optimizer": "sgd", "rate": 1, "steps": 5}"#, "$.train", "\"loss\" is missing"),
        (r#"{"loss": "l", "rate": 1, "steps": 5}"#, "$.train", "\"optimizer\" is missing"),
        (r#"{"loss": "l", "optimizer": "sgd", "steps": 5}"#, "$.train", "\"rate\" is missing"),
        (r#"{"loss": "l", "optimizer": "sgd", "rate": 1}"#, "$.train", "\"steps\" or \"epochs\""),
        (r#"{"optimizer": "adaam"}"#, "$.train.optimizer", "did you mean adam"),
        (r#"{"optimizer": {"name": "adam", "beta3": 1}}"#, "$.train.optimizer.beta3", "it has beta1, beta2, epsilon"),
        (r#"{"rate": "fast"}"#, "$.train.rate", "expected a number"),
        (r#"{"rate": {"cosin": {}}}"#, "$.train.rate.cosin", "did you mean \"cosine\"?"),
        (r#"{"rate": {"cosine": {"rate": 1}}}"#, "$.train.rate.cosine", "\"steps\" is missing"),
        (r#"{"mode": "mirror"}"#, "$.train.mode", r#""mirror" is none of "sync", "async", "mirrored", "local""#),
        (r#"{"mode": "lokal"}"#, "$.train.mode", "did you mean \"local\"?"),
        (r#"{"local": 50}"#, "$.train.local", "local is an object"),
        (r#"{"local": {"step": 50}}"#, "$.train.local.step", "did you mean \"steps\"?"),
        (r#"{"local": {"steps": 0}}"#, "$.train.local.steps", "at least 1"),
        (r#"{"local": {"steps": 5000}}"#, "$.train.local.steps", "expected 1 to 4096"),
        (r#"{"local": {"rate": 0}}"#, "$.train.local.rate", "a number above 0"),
        (r#"{"local": {"momentum": 1}}"#, "$.train.local.momentum", "to below 1"),
        (r#"{"local": {"exchange": "int4"}}"#, "$.train.local.exchange", r#"none of "int8", "float32""#),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "ps": 1, "mode": "mirrored"}"#,
            "$.train",
            "leave \"ps\" out",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "mode": "mirrored"}"#,
            "$.train",
            "mode mirrored needs \"workers\"",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "backup": 2}"#,
            "$.train",
            "fewer than all",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "mode": "async", "backup": 1}"#,
            "$.train",
            "in mode sync",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "staleness": 1}"#,
            "$.train",
            "in mode async",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "ps": 1, "mode": "local"}"#,
            "$.train",
            "in mode local each worker has all variables",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "mode": "local"}"#,
            "$.train",
            "mode local needs \"workers\"",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": {"min": 1, "max": 2}, "mode": "local"}"#,
            "$.train",
            "no worker comes or goes",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "mode": "local", "backup": 1}"#,
            "$.train",
            "in mode sync",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "mode": "local", "staleness": 1}"#,
            "$.train",
            "in mode async",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "local": {"steps": 9}}"#,
            "$.train",
            "\"mode\" is sync",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "microbatches": 4}"#,
            "$.train",
            "are the parts of a batch in mode pipeline, and \"mode\" is sync",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "mode": "pipeline"}"#,
            "$.train",
            "mode pipeline needs \"workers\"",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "ps": 1, "mode": "pipeline"}"#,
            "$.train",
            "each stage has its variables on its worker: leave \"ps\" out",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "backup": 1, "mode": "pipeline"}"#,
            "$.train",
            "an update needs every worker's stage: leave \"backup\" out",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": {"min": 1, "max": 2}, "mode": "pipeline"}"#,
            "$.train",
            "a stage that no other has: state one number of \"workers\"",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 2, "mode": "pipeline", "staleness": 1}"#,
            "$.train",
            "one update on all workers: leave \"staleness\" out",
        ),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": 257, "mode": "pipeline"}"#,
            "$.train",
            "257 stages in mode pipeline; expected at most 256",
        ),
        (r#"{"microbatches": 0}"#, "$.train.microbatches", "at least 1"),
        (r#"{"microbatches": 1025}"#, "$.train.microbatches", "1025 micro-batches; expected 1 to 1024"),
        (r#"{"staleness": 0}"#, "$.train.staleness", "at least 1"),
        (r#"{"staleness": 1025}"#, "$.train.staleness", "1025 steps; a worker may be ahead by 1 to 1024"),
        (r#"{"clip_norm": 1, "clip_value": 1}"#, "$.train.clip_value", "not both"),
        (r#"{"workers": 5000}"#, "$.train.workers", "more than 4096"),
        (r#"{"workers": {"min": 2, "max": 5000}}"#, "$.train.workers.max", "more than 4096"),
        (r#"{"workers": {"min": 0, "max": 3}}"#, "$.train.workers.min", "at least 1"),
        (r#"{"workers": {"min": 4, "max": 3}}"#, "$.train.workers", "a \"max\" of at least as many"),
        (r#"{"workers": {"min": 4}}"#, "$.train.workers", "a \"max\" of at least as many"),
        (r#"{"workers": {"min": 4, "tasks": 5}}"#, "$.train.workers.tasks", "there are min, max"),
        (
            r#"{"loss": "l", "optimizer": "sgd", "rate": 1, "steps": 1, "workers": {"min": 1, "max": 2}, "backup": 1}"#,
            "$.train",
            "or leave \"backup\" out",
        ),
        (
            r#"{"rate": {"exponential": {"rate": 1, "factor": 0.5, "every": 9, "staircase": 1}}}"#,
            "$.train.rate.exponential.staircase",
            "true or false",
        ),
        (r#"{"lossy": "l"}"#, "$.train.lossy", "did you mean \"loss\"?"),
        (r#"{"steps": 1.5}"#, "$.train.steps", "whole number"),
    ] {
        check(format!("{{{data}, \"train\": {section}}}"), path, part);
    }
    for (section, path, part) in [
        ("{}", "$.evaluate", "\"every\", in steps, or \"epochs\""),
        (r#"{"every": 1, "epochs": 2}"#, "$.evaluate", "\"every\", in steps, or \"epochs\""),
        (r#"{"every": 1, "best": {"greatest": "a"}}"#, "$.evaluate.best", "a is not among \"metrics\""),
        (r#"{"every": 1, "best": {"greatest": "a", "least": "a"}}"#, "$.evaluate.best.least", "not both"),
        (r#"{"every": 1, "best": {}}"#, "$.evaluate.best", "\"greatest\" or \"least\""),
        (r#"{"every": 1, "confusion": {"labels": "y"}}"#, "$.evaluate.confusion", "\"predictions\""),
        (r#"{"every": 1, "patience": 0}"#, "$.evaluate.patience", "of at least 1"),
        (r#"{"every": 1, "feed": {}}"#, "$.evaluate.feed", "it is empty"),
        (r#"{"every": 1, "feed": {"x": {"on_workers": "x.npy"}}}"#, "$.evaluate.feed", "x is on_workers"),
    ] {
        check(format!("{{{data}, {good}, \"evaluate\": {section}}}"), path, part);
    }
    let text = r#"{"epochs": 2, "metrics": ["a"], "best": {"greatest": "a"}, "patience": 3,
        "confusion": {"labels": "y", "predictions": "p"}}"#;
    let evaluate = read(&format!("{{{data}, {good}, \"evaluate\": {text}}}")).unwrap().evaluate.unwrap();
    let wanted = EvaluateSection {
        every: 0,
        epochs: Some(2),
        metrics: vec!["a".to_owned()],
        confusion: Some(ConfusionNodes { labels: "y".to_owned(), predictions: "p".to_owned() }),
        best: Best { of: Some("a".to_owned()), is_greatest: true },
        patience: Some(3),
        ..EvaluateSection::default()
    };
    assert_eq!(evaluate, wanted);
}

#[test]
fn texts_have_tokens_and_vocabularies() {
    let file = |feed: &str| {
        format!(
            r#"{{"data": {{"feed": {{{feed}}}, "batch": 1}},
                "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
        )
    };
    let text = file(
        r#""a": {"file": "a.txt", "tokens": "characters", "window": {"length": 5, "stride": 2}},
           "b": {"file": "b.csv", "columns": "review", "tokens": "words", "vocabulary": 100, "standardize": "lower"},
           "c": {"texts": "reviews", "tokens": "words", "vocabulary": ["", "[UNK]", "good", "bad"]},
           "d": {"file": "d.tfrecord", "feature": "text:en", "tokens": "words", "vocabulary": "words.txt"},
           "e": {"file": "d-*.tfrecord.gz:label", "size": [4, 4], "resize": "crop_to_aspect_ratio"}, "f": {"classes": "reviews"}"#,
    );
    let feed = read(&text).unwrap().data.feed;
    let options = |i: usize| feed[i].1.text.clone().unwrap();
    let lower = Standardize { lower: true, strip_punctuation: false };
    let wanted = TextOptions { tokens: TokenKind::Characters, ..TextOptions::default() };
    let window = Window { length: 5, ahead: None, is_range: false, stride: 2 };
    assert!(options(0) == wanted && feed[0].1.table.window == Some(window));
    let vocabulary = VocabularyChoice::Size(100);
    assert_eq!(options(1), TextOptions { tokens: TokenKind::Words, standardize: Some(lower), vocabulary });
    assert_eq!(feed[1].1.columns, ["review"]);
    assert!(options(1).is_measured() && options(3).is_measured() && !options(2).is_measured());
    assert_eq!(options(2).vocabulary, VocabularyChoice::Listed(vec!["good".to_owned(), "bad".to_owned()]));
    assert_eq!((feed[2].1.take, feed[2].1.file.as_str()), (Take::Texts, "reviews"));
    assert_eq!(options(3).vocabulary, VocabularyChoice::File("words.txt".to_owned()));
    assert_eq!((feed[3].1.part.as_deref(), feed[4].1.part.as_deref()), (Some("text:en"), Some("label")));
    assert!(feed[4].1.size == Some([4, 4]) && feed[4].1.images != ImageOptions::default());
    for (source, why) in [
        (r#"{"file": "a.txt", "tokens": "word"}"#, r#""word" is none of "bytes", "characters", "words""#),
        (r#"{"file": "a.txt", "vocabulary": 9}"#, "bytes are their own numbers"),
        (r#"{"file": "a.txt", "tokens": "bytes", "standardize": "lower"}"#, "bytes are their own numbers"),
        (r#"{"file": "a.txt", "tokens": "words", "vocabulary": 2}"#, "expected 3 to 1048578 numbers"),
        (r#"{"file": "a.txt", "tokens": "words", "vocabulary": ["a", "a"]}"#, "has \"a\" twice"),
        (r#"{"file": "a.txt", "tokens": "words", "vocabulary": "../a.txt"}"#, "in the folder of this one"),
        (r#"{"file": "a.txt", "tokens": "words", "vocabulary": "a.csv"}"#, "a .txt file with one token a line"),
        (r#"{"file": "a.txt", "tokens": "words", "vocabulary": true}"#, "a number of tokens, a list of them"),
        (r#"{"file": "a.npy", "tokens": "words"}"#, "only a text has \"tokens\""),
        (r#"{"images": "a", "tokens": "words"}"#, "unknown key \"tokens\""),
        (r#"{"file": "a.csv", "tokens": "words", "window": {"length": 2}}"#, "takes no options of numbers"),
        (r#"{"file": "a.txt", "tokens": "words", "classes": "auto"}"#, "only a table"),
        (r#"{"file": "a.csv", "feature": "x"}"#, "only TFRecords"),
        (r#"{"file": "a.csv", "resize": "stretch", "augment": {"crop": 0.1}}"#, "or a feature of TFRecords"),
        (r#"{"file": "a.tfrecord:x", "feature": "x"}"#, "not in both"),
        (r#"{"texts": "a", "file": "b"}"#, "use only one of"),
        (r#"{"file": "a.tfrecord", "window": {"length": 2}}"#, "only a table"),
    ] {
        let refused = read(&file(&format!(r#""x": {source}"#))).unwrap_err();
        assert!(refused.why.contains(why), "{source}: {refused}");
        assert!(refused.path.starts_with("$.data.feed.x"), "{refused}");
    }
}

#[test]
fn workers_may_make_rounds_of_their_own() {
    let read = |local: &str| {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": "x.npy"}}, "batch": 32}},
                "train": {{"loss": "l", "optimizer": "adam", "rate": 0.1, "steps": 9, "workers": 3, "mode": "local"{local}}}}}"#
        );
        super::read(&text).unwrap().train
    };
    let train = read("");
    assert_eq!((train.mode, train.local), (UpdateMode::Local, LocalSection::default()));
    assert_eq!((train.local.steps, train.local.rate, train.local.momentum), (50, 0.7, 0.9));
    assert_eq!(train.local.exchange, Exchange::Int8);
    // Each takes whole batches, and all are needed.
    assert_eq!((train.rows(32), train.drawn(32)), (Ok(32), Ok(96)));
    assert!((train.needed(), train.least(), train.is_elastic()) == (3, 3, false));
    let stated = read(r#", "local": {"steps": 500, "rate": 1, "momentum": 0, "exchange": "float32"}"#).local;
    let wanted = LocalSection { steps: 500, rate: 1.0, momentum: 0.0, exchange: Exchange::Float32 };
    assert_eq!(stated, wanted);
}

#[test]
fn a_batch_may_go_through_stages_in_parts() {
    let read = |source: &str, train: &str| {
        let text = format!(
            r#"{{"data": {{"feed": {{"x": {source}}}, "batch": 32}},
                "train": {{"loss": "l", "optimizer": "adam", "rate": 0.1, "steps": 9, "workers": 3, "mode": "pipeline"{train}}}}}"#
        );
        super::read(&text)
    };
    let train = read(r#""x.npy""#, "").unwrap().train;
    assert_eq!((train.mode, train.microbatches), (UpdateMode::Pipeline, None));
    assert_eq!((train.rows(32), train.drawn(32), train.microbatch_sizes(32).unwrap().len()), (Ok(32), Ok(32), 12));
    assert!((train.needed(), train.least(), train.is_elastic()) == (3, 3, false));
    let train = read(r#""x.npy""#, r#", "microbatches": 5"#).unwrap().train;
    assert_eq!(train.microbatch_sizes(32).unwrap(), [7, 7, 6, 6, 6]);
    let refused = read(r#"{"on_workers": "x.npy"}"#, "").unwrap_err();
    assert_eq!(refused.path, "$.data.feed.x");
    assert!(refused.why.contains("name the file alone, without \"on_workers\""), "{refused}");
}
