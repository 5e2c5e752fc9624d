//! Values with which a training begins, in place of initial ones.

use meshtf_train::{Initializer, Schedule};

use super::*;

/// The mean of (x w + b - 4)² over x = 1 and 3.
fn line() -> (Graph, Examples) {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None]);
    let (w, b) = (m.variable("w", [], Initializer::Ones), m.variable("b", [], Initializer::Constant(0.5f32.into())));
    (x * w + b - 4.0).square().mean().named("loss");
    let examples = Examples::new(vec![("x".to_owned(), Tensor::vector(vec![1f32, 3.0]))]).unwrap();
    (m.finish().unwrap(), examples)
}

/// The variables after one step with the rate 0.05.
async fn after_a_step(options: &Options, workers: usize, mode: UpdateMode) -> Result<Vec<(String, f32)>, Error> {
    let (graph, examples) = line();
    let mut sections = sections(2, 1);
    (sections.train.workers, sections.train.mode) = (workers, mode);
    sections.train.training.rate = Schedule::Constant(0.05);
    let trainer = Trainer::new(graph, sections, examples, options)?;
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await?;
    let values = trainer.values(&session, |one| one.trainable).await?;
    Ok(values.into_iter().map(|(name, value)| (name, value.item::<f32>().unwrap())).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_begins_with_the_values_that_are_given() {
    let near = |got: &[(String, f32)], wanted: [f32; 2]| {
        let named = [("w", wanted[0]), ("b", wanted[1])];
        named.iter().all(|(name, one)| got.iter().any(|(own, value)| own == name && (value - one).abs() < 1e-6))
    };
    let given = |values: &[(&str, f32)]| Options {
        values: values.iter().map(|(name, value)| ((*name).to_owned(), Tensor::scalar(*value))).collect(),
        ..Options::default()
    };
    for (workers, mode) in [(0, UpdateMode::Sync), (2, UpdateMode::Sync), (2, UpdateMode::Mirrored)] {
        for (values, wanted) in [
            // The errors are -2.5 and -0.5: the gradients are (2·1·-2.5 + 2·3·-0.5)/2 = -4, and -3.
            (&[][..], [1.2, 0.65]),
            // -0.5 and 5.5: (2·1·-0.5 + 2·3·5.5)/2 = 16, and 5. The variable b has its first value.
            (&[("w", 3.0)], [2.2, 0.25]),
            // -1 and 5: (2·1·-1 + 2·3·5)/2 = 14, and 4. The order is that of the caller.
            (&[("b", 0.0), ("w", 3.0)], [2.3, -0.2]),
        ] {
            let got = after_a_step(&given(values), workers, mode).await.unwrap();
            assert!(near(&got, wanted), "{workers} {mode:?} {values:?}: {got:?}, expected {wanted:?}");
        }
    }
    // A state that is found has its own.
    let folder = TempDir::new().unwrap();
    let first = Options { checkpoint: Some(folder.child("run")), resume_if_any: true, ..given(&[("w", 3.0)]) };
    let got = after_a_step(&first, 0, UpdateMode::Sync).await.unwrap();
    assert!(near(&got, [2.2, 0.25]), "{got:?}");
    let again = Options { steps: Some(2), ..first };
    // From there: -1.55 and 2.85, so (2·1·-1.55 + 2·3·2.85)/2 = 7, and 1.3.
    let got = after_a_step(&again, 0, UpdateMode::Sync).await.unwrap();
    assert!(near(&got, [1.85, 0.185]), "{got:?}");
}

/// A graph that does not say how its variables begin trains with values for all of them.
#[tokio::test]
async fn values_of_all_variables_need_no_initial_ones() {
    let (graph, examples) = line();
    let mut nodes = graph.to_defs();
    nodes.retain(|node| node.name != "init");
    let graph = Graph::new(nodes).unwrap();
    let made = |values: &[&str]| {
        let values = values.iter().map(|name| ((*name).to_owned(), Tensor::scalar(1f32))).collect();
        let sections = Sections { init: Vec::new(), ..sections(2, 1) };
        Trainer::new(graph.clone(), sections, examples.clone(), &Options { values, ..Options::default() })
    };
    assert!(made(&["w"]).is_err_and(|why| why.to_string().contains("$.init is missing")));
    let trainer = made(&["w", "b"]).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
}
