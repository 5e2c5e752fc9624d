//! The loss of connectionist temporal classification, and its gradient, compared with the sum over all paths.

use burn_ir::{CtcLossBackwardOpIr, CtcLossOpIr, ModuleOperationIr, OperationIr, TensorId, TensorIr};
use burn_std::{DType as Burn, Shape};
use meshtf::LocalCluster;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Result;

use super::run;

const STEPS: usize = 4;
const CLASSES: usize = 3;

/// A batch of examples: the number of counted steps of each, its targets and the number of those that are labels.
struct Batch {
    blank: usize,
    lengths: Vec<i32>,
    targets: Vec<Vec<i32>>,
    labels: Vec<i32>,
}

impl Batch {
    /// Numbers that are not logarithms of probabilities that add up to 1: the loss does not require that.
    fn log_probs(&self) -> Vec<f64> {
        (0..STEPS * self.lengths.len() * CLASSES).map(|i| -0.25 - ((i * 7) % 11) as f64 / 8.0).collect()
    }

    fn factor(example: usize) -> f64 {
        0.5 + example as f64
    }

    /// The loss of each example, and the gradient of their sum, each with its factor.
    fn counted(&self) -> (Vec<f64>, Vec<f64>) {
        let batch = self.lengths.len();
        let log_probs = self.log_probs();
        let mut gradient = vec![0.0; log_probs.len()];
        let losses = (0..batch).map(|n| {
            let steps = self.lengths[n].clamp(1, STEPS as i32) as usize;
            let at = |t: usize, class: usize| (t * batch + n) * CLASSES + class;
            let wanted: Vec<usize> = self.targets[n][..self.labels[n] as usize].iter().map(|&l| l as usize).collect();
            let (mut whole, mut among) = (0.0, vec![0.0; gradient.len()]);
            for path in 0..CLASSES.pow(steps as u32) {
                let path: Vec<usize> = (0..steps).map(|t| path / CLASSES.pow(t as u32) % CLASSES).collect();
                let mut labels = path.clone();
                labels.dedup();
                labels.retain(|&class| class != self.blank);
                if labels == wanted {
                    let likely = path.iter().enumerate().map(|(t, &class)| log_probs[at(t, class)]).sum::<f64>().exp();
                    whole += likely;
                    path.iter().enumerate().for_each(|(t, &class)| among[at(t, class)] += likely);
                }
            }
            for (t, class) in (0..steps).flat_map(|t| (0..CLASSES).map(move |class| (t, class))) {
                if whole > 0.0 {
                    let i = at(t, class);
                    gradient[i] = Self::factor(n) * (log_probs[i].exp() - among[i] / whole);
                }
            }
            -whole.ln()
        });
        (losses.collect(), gradient)
    }

    async fn run(&self, cluster: &LocalCluster) -> Result<Vec<Tensor>> {
        let (batch, most) = (self.lengths.len(), self.targets[0].len());
        let ir = |id, dtype, dims: &[usize]| TensorIr::uninit(TensorId::new(id), Shape::from(dims.to_vec()), dtype);
        let dims = [STEPS, batch, CLASSES];
        let (log_probs, targets) = (|| ir(0, Burn::F32, &dims), || ir(1, Burn::I64, &[batch, most]));
        let lengths = |id| ir(id, Burn::I32, &[batch]);
        let loss = CtcLossOpIr {
            log_probs: log_probs(),
            targets: targets(),
            input_lengths: lengths(2),
            target_lengths: lengths(3),
            blank: self.blank,
            out: ir(8, Burn::F32, &[batch]),
        };
        let gradient = CtcLossBackwardOpIr {
            log_probs: log_probs(),
            targets: targets(),
            input_lengths: lengths(2),
            target_lengths: lengths(3),
            grad_loss: ir(4, Burn::F32, &[batch]),
            blank: self.blank,
            out: ir(9, Burn::F32, &dims),
        };
        let operations = [
            OperationIr::Module(ModuleOperationIr::CtcLoss(loss)),
            OperationIr::Module(ModuleOperationIr::CtcLossBackward(gradient)),
        ];
        let floats = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        let targets = self.targets.concat().into_iter().map(i64::from).collect::<Vec<i64>>();
        let inputs = [
            Tensor::from_vec(dims.to_vec(), floats(self.log_probs())),
            Tensor::from_vec(vec![batch, most], targets),
            Tensor::vector(self.lengths.clone()),
            Tensor::vector(self.labels.clone()),
            Tensor::vector(floats((0..batch).map(Self::factor).collect())),
        ];
        let inputs: Vec<(TensorId, Tensor)> = (0..).map(TensorId::new).zip(inputs).collect();
        run(cluster, &operations, &inputs, &[TensorId::new(8), TensorId::new(9)], false).await
    }
}

#[tokio::test]
async fn the_loss_counts_all_paths() {
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    let close = |got: &Tensor, wanted: &[f64]| {
        let got = got.slice::<f32>().unwrap();
        let near = |(&x, &y): (&f32, &f64)| f64::from(x) == y || (f64::from(x) - y).abs() < 1e-5;
        assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(near), "{got:?}, wanted {wanted:?}");
    };
    // Two labels, one, none; twice the same, which needs three steps, in three and in two; more than the steps; no step and too
    // many. Targets that do not count are not classes.
    let lengths = vec![4, 3, 4, 3, 2, 1, 0, 9];
    let labels = vec![2, 1, 0, 2, 2, 2, 1, 2];
    let targets = |a: i32, b: i32| {
        [[a, b], [b, -7], [99, 99], [a, a], [b, b], [a, b], [b, 5], [b, a]].iter().map(|row| row.to_vec()).collect()
    };
    for (blank, a, b) in [(0, 1, 2), (1, 0, 2), (2, 1, 0)] {
        let batch = Batch { blank, lengths: lengths.clone(), targets: targets(a, b), labels: labels.clone() };
        let (losses, gradient) = batch.counted();
        assert_eq!(losses.iter().filter(|loss| loss.is_infinite()).count(), 2);
        let got = batch.run(&cluster).await.unwrap();
        close(&got[0], &losses);
        close(&got[1], &gradient);
    }
    // No example has any target.
    let batch = Batch { blank: 1, lengths: vec![4, 2], targets: vec![Vec::new(); 2], labels: vec![0, 0] };
    let (losses, gradient) = batch.counted();
    let got = batch.run(&cluster).await.unwrap();
    close(&got[0], &losses);
    close(&got[1], &gradient);
}

#[tokio::test]
async fn labels_that_are_no_classes_fail() {
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    for (target, labels, why) in [
        (3, 2, "indices[0,1] = 3 is not in [0, 3)"),
        (0, 2, "All labels must be nonnegative integers"),
        (1, 3, "indices[0] = 3 is not in [0, 3)"),
    ] {
        let batch = Batch { blank: 0, lengths: vec![4], targets: vec![vec![1, target]], labels: vec![labels] };
        let failure = batch.run(&cluster).await.unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
}
