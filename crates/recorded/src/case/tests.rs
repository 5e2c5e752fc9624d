//! Valid cases, and invalid folders.

use std::fs;

use meshtf_testing::means::recorded_sessions;
use proptest::prelude::*;

use super::*;

/// A folder with a one-node graph and this case.json.
fn folder(case: &str) -> temp_dir::TempDir {
    let folder = temp_dir::TempDir::new().unwrap();
    fs::write(folder.path().join("graph.json"), r#"{"node": [{"name": "n", "op": "NoOp"}]}"#).unwrap();
    fs::write(folder.path().join("case.json"), case).unwrap();
    folder
}

/// A case of one step.
fn with_step(step: &str) -> String {
    format!(r#"{{"case": "c", "cluster": null, "config": null, "rtol": 1e-05, "atol": 1e-06, "steps": [{step}]}}"#)
}

#[test]
fn every_recorded_case_is_read() {
    for path in recorded_sessions() {
        let case = Case::read(&path).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(Some(case.name.as_str()), path.file_name().unwrap().to_str());
        assert!(!case.steps.is_empty(), "{}", case.name);
        for step in &case.steps {
            for fetch in step.fetches.iter().chain(step.feeds.iter().map(|(name, _)| name)) {
                case.graph.output(fetch).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            }
        }
    }
}

#[test]
fn a_case_says_what_its_json_says() {
    let root = meshtf_testing::means::root().join("tests/cases");
    let split = Case::read(&root.join("seed_c_238_split")).unwrap();
    assert_eq!(split.tasks(), [Task::new("local", 0), Task::new("local", 1)]);
    assert!(split.has_cluster && !split.soft_placement);
    assert_eq!(split.steps[0].fetches, ["add_1:0"]);
    assert_eq!(split.steps[0].expected, Expected::Values(vec![Tensor::scalar(238i32)]));

    let soft = Case::read(&root.join("seed_h_gpu_0_soft")).unwrap();
    assert!(soft.soft_placement);
    let hard = Case::read(&root.join("seed_h_gpu_0_hard")).unwrap();
    let Expected::Error(error) = &hard.steps[0].expected else { panic!("an error") };
    assert_eq!(error.code, Code::InvalidArgument);
    assert!(error.message.starts_with("Cannot assign a device for operation b"));

    let hello = Case::read(&root.join("seed_g_hello")).unwrap();
    let want = Tensor::scalar("Hello, 分散 TensorFlow!".as_bytes().to_vec());
    assert_eq!(hello.steps[1].expected, Expected::Values(vec![want]));

    let single = Case::read(&root.join("seed_d0_mean_single")).unwrap();
    assert_eq!((single.tasks(), single.has_cluster), (vec![Task::new("localhost", 0)], false));
    assert_eq!(single.steps[0].feeds[0].1.dims(), [100]);
}

#[test]
fn values_may_be_in_the_file() {
    let folder = folder(&with_step(
        r#"{"feeds": [{"name": "x:0", "dtype": "float32", "shape": [2, 1], "data": [NaN, -Infinity]}],
            "fetches": ["y:0"], "check": "exact",
            "expected": [{"name": "y:0", "dtype": "int64", "shape": [], "data": [7]}]}"#,
    ));
    let case = Case::read(folder.path()).unwrap();
    let fed = case.steps[0].feeds[0].1.slice::<f32>().unwrap().to_vec();
    assert!(fed[0].is_nan() && fed[1] == f32::NEG_INFINITY);
    assert_eq!(case.steps[0].check, Check::Exact);
    assert_eq!(case.steps[0].expected, Expected::Values(vec![Tensor::scalar(7i64)]));
}

#[test]
fn an_invalid_case_is_refused_with_the_position() {
    let check = |case: &str, part: &str| {
        let folder = folder(case);
        fs::write(folder.path().join("lying.npy"), npy::write(&Tensor::scalar(2i32)).unwrap()).unwrap();
        fs::write(folder.path().join("cut.npy"), &npy::write(&Tensor::scalar(2i32)).unwrap()[..40]).unwrap();
        let failure = Case::read(folder.path()).map(|_| ()).expect_err(case);
        assert!(failure.message.contains(part), "{failure}");
    };
    check("{", "case.json: line 1, column 2");
    check("[]", "case.json is an object");
    check("{}", "\"steps\" is missing");
    check(&with_step("1"), "$.steps[0] (line 1");
    check(&with_step(r#"{"check": "close"}"#), "not allclose");
    check(&with_step(r#"{"fetches": ["y"]}"#), "there are 0 expected values for 1 fetches");
    check(&with_step(r#"{"error": {"code": 99}}"#), "99 is not a canonical code");
    let fed = |tensor: &str| with_step(&format!(r#"{{"feeds": [{{"name": "x", "dtype": "int32", {tensor}}}]}}"#));
    check(&fed(r#""shape": []"#), "\"npy\", \"data\" or \"b64\"");
    check(&fed(r#""shape": [-1], "data": [1]"#), "dimension -1 is negative");
    check(&fed(r#""shape": [2], "data": [1]"#), "$.steps[0].feeds[0].data");
    check(&fed(r#""shape": [], "npy": "none.npy""#), "none.npy");
    check(&fed(r#""shape": [], "npy": "../case.json""#), "leads out of the case's folder");
    check(&fed(r#""shape": [], "npy": "/etc/passwd""#), "leads out of the case's folder");
    check(&fed(r#""shape": [2], "npy": "lying.npy""#), "it contains int32 of shape [], not int32 of shape [2]");
    check(&fed(r#""shape": [], "npy": "cut.npy""#), "cut off");
    check(r#"{"cluster": {"a-b": ["x"]}, "steps": []}"#, "task name");
    check(r#"{"config": "{", "steps": []}"#, "the config is not JSON");
    let empty = temp_dir::TempDir::new().unwrap();
    assert_eq!(Case::read(empty.path()).unwrap_err().code, Code::NotFound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_damaged_case_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = with_step(
            r#"{"feeds": [{"name": "x:0", "dtype": "string", "shape": [1], "b64": ["AA=="]}], "fetches": [],
                "targets": ["n"], "check": "skip", "error": {"code": 3, "class": "E", "message": "m"}}"#,
        ).into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut { bytes.truncate(at); }
        let folder = folder("");
        fs::write(folder.path().join("case.json"), bytes).unwrap();
        let _ = Case::read(folder.path());
    }
}
