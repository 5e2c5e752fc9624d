//! The outputs of a training: the best weights, logs, pictures, the node that made a NaN.

use meshtf::trainer::stored;
use meshtf_tensor::safetensors::Contents;

use super::*;
use crate::cli::export::{ExportArgs, ImportArgs, export, import};

/// Replaces parts of the graph's file.
fn change(folder: &TempDir, changes: &[(&str, &str)]) {
    let mut graph = std::fs::read_to_string(folder.child("graph.json")).unwrap();
    for (find, replace) in changes {
        assert!(graph.contains(find), "{find}");
        graph = graph.replace(find, replace);
    }
    std::fs::write(folder.child("graph.json"), graph).unwrap();
}

const EVALUATE: &str = r#""evaluate": {"every": 50, "metrics": ["accuracy"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_training_that_becomes_no_better_ends_and_the_best_weights_are_kept() {
    let folder = files(r#", "steps": 2000"#, "");
    let more = r#""evaluate": {"every": 50, "metrics": ["accuracy"], "patience": 2, "best": {"greatest": "accuracy"},
        "confusion": {"labels": "y", "predictions": "best"}}"#;
    // Nothing is learned: the first evaluation is the best, and two more are not better.
    change(&folder, &[(EVALUATE, more), (r#""rate": 0.02"#, r#""rate": 0.0"#)]);
    let dir = folder.child("run").display().to_string();
    assert_eq!(run(&folder, &["--checkpoint", &dir]).await.unwrap(), Exit::Ok);
    let (_, best) = stored::read(&folder.child("run").join("best.safetensors"), stored::Which::Last).unwrap();
    let said = |best: &Contents| [&best.metadata["meshtf.step"], &best.metadata["meshtf.best_of"]].map(String::clone);
    assert_eq!(said(&best), ["50", "greatest accuracy"]);
    let counted = saved(&folder, "run", 150);
    assert_eq!(counted.iter().find(|(name, _)| name == "global_step").unwrap().1, Tensor::scalar(150i64));
    // Patience is exhausted for a continued training, too.
    run(&folder, &["--checkpoint", &dir, "--resume", "--steps", "2000"]).await.unwrap();
    let last = stored::states(&folder.child("run")).unwrap().pop().unwrap();
    assert!(last.ends_with("step-000000000200.safetensors"), "{}", last.display());
    // A best value of another metric is not compared.
    change(&folder, &[(r#""best": {"greatest""#, r#""best": {"least""#)]);
    run(&folder, &["--checkpoint", &dir, "--resume", "--steps", "250"]).await.unwrap();
    let (_, best) = stored::read(&folder.child("run").join("best.safetensors"), stored::Which::Last).unwrap();
    assert_eq!(said(&best), ["250", "least accuracy"]);
    std::fs::write(folder.child("run").join("best.safetensors"), "no tensors").unwrap();
    let trouble = run(&folder, &["--checkpoint", &dir, "--resume", "--steps", "300"]).await.unwrap_err();
    assert!(trouble.to_string().contains("best.safetensors: "), "{trouble}");
    for (find, replace, why) in [
        (r#""labels": "y""#, r#""labels": "x""#, "column 22): x: it is float32; expected a class"),
        (r#""labels": "x""#, r#""labels": "z""#, "$.evaluate.confusion (line 20, column 22): z: "),
    ] {
        change(&folder, &[(find, replace)]);
        let trouble = run(&folder, &["--steps", "50"]).await.unwrap_err();
        assert!(trouble.exit == Exit::BadInput && trouble.to_string().contains(why), "{trouble}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_pictures_are_written() {
    let folder = files(r#", "steps": 100"#, "");
    let (log, plot) = (folder.child("log").display().to_string(), folder.child("curves.svg").display().to_string());
    run(&folder, &["--log", &log, "--plot", &plot, "--report", "50"]).await.unwrap();
    let picture = std::fs::read_to_string(&plot).unwrap();
    for name in ["loss", "accuracy", "loss (held out)", "accuracy (held out)", "step"] {
        assert!(picture.contains(&format!("{name}\n")), "{name}: {picture}");
    }
    let lines = std::fs::read_to_string(folder.child("log").join("log.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // 50 steps between two lines are ten points; and two evaluations.
    let losses: Vec<u64> = lines
        .iter()
        .filter(|line| line["values"]["loss"].is_f64())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(losses, (1..=20).map(|i| i * 5).collect::<Vec<u64>>());
    let evaluated: Vec<u64> = lines
        .iter()
        .filter(|line| line["evaluated"]["accuracy"].is_f64())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(evaluated, [50, 100]);
    // A path that cannot be written is refused before the training.
    let none = folder.child("none");
    for wrong in [folder.path(), &none.join("curves.svg")] {
        let (wrong, dir) = (wrong.display().to_string(), none.display().to_string());
        let trouble = run(&folder, &["--plot", &wrong, "--checkpoint", &dir]).await.unwrap_err();
        assert!(trouble.exit == Exit::BadInput && trouble.to_string().contains("--plot "), "{trouble}");
    }
    assert!(!none.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_made_a_nan_is_named() {
    for workers in ["", r#", "workers": 2, "ps": 1"#, r#", "workers": 2, "mode": "async""#] {
        let folder = files(&format!(r#", "steps": 40{workers}"#), "");
        // The logarithm of a negative number, which the first layer makes of any batch.
        change(
            &folder,
            &[(
                r#""h": {"op": "Tanh", "inputs": ["a"]}"#,
                r#""less": {"op": "Sub", "inputs": ["a", 1000.0]}, "h": {"op": "Log", "inputs": ["less"]}"#,
            )],
        );
        let trouble = run(&folder, &[]).await.unwrap_err().to_string();
        assert!(trouble.contains("--check-numerics) says which node made it"), "{trouble}");
        let trouble = run(&folder, &["--check-numerics"]).await.unwrap_err();
        assert_eq!(trouble.exit, Exit::GraphFailed);
        let trouble = trouble.to_string();
        assert!(trouble.contains("the loss is NaN or infinite in step "), "{trouble}");
        assert!(
            trouble.contains("the first node whose output contains NaN or infinity is ")
                && trouble.contains("h, a Log"),
            "{trouble}"
        );
    }
    let folder = files(r#", "steps": 40, "workers": 3, "backup": 1"#, "");
    let trouble = run(&folder, &["--check-numerics"]).await.unwrap_err();
    assert!(
        trouble.exit == Exit::BadInput && trouble.to_string().contains("cannot be used with \"backup\""),
        "{trouble}"
    );
    let folder = files(r#", "steps": 40"#, "");
    let mut rows = vec![0.5f32; 400];
    rows[3] = f32::NAN;
    std::fs::write(folder.child("x.npy"), npy::write(&Tensor::from_vec([200, 2], rows)).unwrap()).unwrap();
    change(
        &folder,
        &[
            (r#"{"file": "points.csv", "columns": ["a", "b"]}"#, r#""x.npy""#),
            (&format!(",\n        {EVALUATE}"), ""),
            (r#""hold_out": 0.1"#, r#""hold_out": 0"#),
        ],
    );
    let trouble = run(&folder, &["--check-numerics"]).await.unwrap_err().to_string();
    assert!(
        trouble.contains("the data for x contains NaN or infinity, in example 2 of those to train with"),
        "{trouble}"
    );
}

/// `meshtf export` and its arguments.
#[derive(Parser)]
struct Exporting {
    #[command(flatten)]
    args: ExportArgs,
}

fn exporting(from: &std::path::Path, to: &std::path::Path, more: &[&str]) -> ExportArgs {
    let [from, to] = [from, to].map(|path| path.display().to_string());
    Exporting::parse_from(["export", &from, "--to", &to].iter().chain(more)).args
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_go_to_other_programs_and_back() {
    let folder = files(r#", "steps": 60"#, "");
    // The evaluation after the last step is not the best.
    change(
        &folder,
        &[(EVALUATE, r#""evaluate": {"every": 20, "metrics": ["accuracy"], "best": {"least": "accuracy"}}"#)],
    );
    let dir = folder.child("run").display().to_string();
    run(&folder, &["--checkpoint", &dir]).await.unwrap();
    let end = saved(&folder, "run", 60);
    for (i, name) in ["m.safetensors", "m.npz", "tf/m"].into_iter().enumerate() {
        let model = folder.child(name);
        assert_eq!(export(exporting(&folder.child("run"), &model, &["--all", "--last"])).unwrap(), Exit::Ok);
        let back = format!("back{i}");
        import(ImportArgs { from: model.clone(), to: folder.child(&back) }).unwrap();
        assert_eq!(saved(&folder, &back, 60), end, "{name}");
        let twice = import(ImportArgs { from: model, to: folder.child(&back) }).unwrap_err();
        assert!(twice.to_string().contains("it contains saved training states"), "{twice}");
        // It continues from the file without the removed tensors.
        let back = folder.child(&back).display().to_string();
        run(&folder, &["--checkpoint", &back, "--resume", "--steps", "70"]).await.unwrap();
    }
    assert_eq!(saved(&folder, "back0", 70), saved(&folder, "back2", 70));
    // Unless requested otherwise, the model's variables alone are exported, the best ones if an evaluation found some.
    let (_, best) = stored::read(&folder.child("run").join("best.safetensors"), stored::Which::Last).unwrap();
    let own = |tensors: &[(String, Tensor)]| {
        let own = tensors.iter().filter(|(name, _)| ["w1", "b1", "w2", "b2"].contains(&name.as_str()));
        own.cloned().collect::<std::collections::BTreeMap<_, _>>()
    };
    for (more, wanted) in [(&[][..], own(&best.tensors)), (&["--last"], own(&end))] {
        let model = folder.child("own.npz");
        export(exporting(&folder.child("run"), &model, more)).unwrap();
        let (_, exported) = stored::read(&model, stored::Which::Best).unwrap();
        assert_eq!(exported.tensors.into_iter().collect::<std::collections::BTreeMap<_, _>>(), wanted);
    }
    let refused = export(exporting(&folder.child("run"), &folder.child("m.onnx"), &[])).unwrap_err();
    assert!(refused.exit == Exit::BadInput && refused.to_string().contains("weights alone, and no graph"), "{refused}");
    // Weights instead of initial values: a training that learns nothing ends with them.
    change(&folder, &[(r#""rate": 0.02"#, r#""rate": 0.0"#)]);
    let (model, dir) = (folder.child("m.npz").display().to_string(), folder.child("anew").display().to_string());
    run(&folder, &["--weights", &model, "--checkpoint", &dir, "--steps", "10"]).await.unwrap();
    let of = |tensors: &[(String, Tensor)], name: &str| tensors.iter().find(|(own, _)| own == name).unwrap().1.clone();
    let anew = saved(&folder, "anew", 10);
    assert_eq!(of(&anew, "w1"), of(&end, "w1"));
    assert_eq!(of(&anew, "global_step"), Tensor::scalar(10i64));
    let trouble = run(&folder, &["--weights", &folder.child("none").display().to_string()]).await.unwrap_err();
    assert!(trouble.to_string().contains("weights ") && trouble.to_string().contains("no such model"), "{trouble}");
}
