//! States that are kept, or not: on a disk that is full, and of a training that did nothing.

use std::path::{Path, PathBuf};

use super::*;
use crate::trainer::stored::{self, BEST_FILE, STEP, Which};
use meshtf_tensor::safetensors::Contents;

/// A folder at the place of the best weights, so that they cannot be written, up to an evaluation or to the end.
struct Blocked {
    best: PathBuf,
    until: Option<u64>,
    failed: usize,
}

impl Blocked {
    fn free(&self) {
        let _ = std::fs::remove_dir(&self.best);
    }
}

impl Observer for Blocked {
    fn begins(&mut self, _: u64) -> Observed {
        Ok(std::fs::create_dir(&self.best)?)
    }

    fn evaluated(&mut self, step: u64, _: &Evaluated) -> Observed {
        if self.until == Some(step) {
            self.free();
        }
        Ok(())
    }

    fn save_failed(&mut self, _: u64, _: &Error, is_last: bool) -> bool {
        self.failed += 1;
        if is_last {
            self.free();
        }
        true
    }
}

/// The step of the best weights in a folder.
fn best_step(folder: &Path) -> String {
    let (_, Contents { metadata, .. }) = stored::read(&folder.join(BEST_FILE), Which::Last).unwrap();
    metadata[STEP].clone()
}

/// The loss does not change, so the first weights are the best.
#[tokio::test(flavor = "multi_thread")]
async fn the_best_weights_wait_for_room_and_are_not_replaced_by_worse_ones() {
    let m = Model::new();
    let (x, y) = (m.placeholder("x", DType::F32, [None, Some(2)]), m.placeholder("y", DType::I32, [None]));
    x.dense("logits", 2).sparse_cross_entropy(&y).mean().named("loss");
    let graph = m.finish().unwrap();
    let folder = TempDir::new().unwrap();
    // Failures: after steps 1 and 2; or after 1 to 5 and, once, at the end.
    for (until, failed) in [(Some(3), 2), (None, 6)] {
        let mut sections = sections(2, 5);
        (sections.data.hold_out, sections.train.training.rate) = (0.5, meshtf_train::Schedule::Constant(0.0));
        sections.evaluate = Some(EvaluateSection { every: 1, ..EvaluateSection::default() });
        let at = folder.child(format!("until {until:?}"));
        let options = Options { checkpoint: Some(at.clone()), ..Options::default() };
        let trainer = Trainer::new(graph.clone(), sections, examples(), &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let mut observer = Blocked { best: at.join(BEST_FILE), until, failed: 0 };
        trainer.run(&session, &mut observer).await.unwrap();
        assert_eq!((best_step(&at), observer.failed), ("1".to_owned(), failed));
    }
}

/// The folder is free for the corrected training.
#[tokio::test(flavor = "multi_thread")]
async fn a_training_that_fails_in_its_first_step_leaves_no_state() {
    let folder = TempDir::new().unwrap();
    let at = folder.child("run");
    let options = Options { checkpoint: Some(at.clone()), ..Options::default() };
    let wrong = Tensor::vector(vec![5i32; 8]);
    let with = |y: Tensor| {
        let x = Tensor::from_vec([8, 2], X.to_vec());
        let examples = Examples::new(vec![("x".to_owned(), x), ("y".to_owned(), y)]).unwrap();
        Trainer::new(normed(), sections(4, 2), examples, &options).unwrap()
    };
    let trainer = with(wrong);
    let (_cluster, session) = session(&trainer).await;
    let failed = trainer.run(&session, &mut ()).await.unwrap_err().to_string();
    assert!(!failed.contains("saved") && stored::states(&at).unwrap().is_empty(), "{failed}");
    let trainer = with(Tensor::vector(vec![1i32; 8]));
    assert_eq!(trainer.run(&session, &mut ()).await.unwrap().step, 2);
}
