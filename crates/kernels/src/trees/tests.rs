//! Tests of ensembles by hand: what recorded sessions of TensorFlow 1.15 do not have.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};

use super::ensemble::leaf;
use super::proto::{BucketizedSplit, Kind, Node, Tree, TreeEnsemble, TreeMetadata};
use super::{Cached, Candidates, EQUALITY, Ensemble, Features, Pruning};

fn split(split: BucketizedSplit) -> Node {
    Node { kind: Some(Kind::Bucketized(split)), metadata: None }
}

fn of(values: &[f32]) -> Node {
    Node { kind: Some(Kind::Leaf(leaf(values))), metadata: None }
}

fn one_tree(nodes: Vec<Node>) -> Ensemble {
    let tree_metadata = vec![TreeMetadata::default()];
    Ensemble(TreeEnsemble {
        trees: vec![Tree { nodes }],
        tree_weights: vec![1.0],
        tree_metadata,
        growing_metadata: None,
    })
}

fn predicted(ensemble: &Ensemble, features: &[Tensor], logits: usize) -> Result<Vec<f32>, Failure> {
    ensemble.predict(&Features::of(features)?, logits)?.into_vec()
}

fn column(values: &[f32]) -> Tensor {
    Tensor::from_vec([values.len(), 1], values.to_vec())
}

#[test]
fn a_missing_value_goes_in_the_direction_of_its_split() {
    let buckets = Tensor::from_vec([3, 2], vec![9, -1, 9, 3, 9, 4]);
    for (default_direction, wanted) in [(0, [1.0, 1.0, 2.0]), (1, [2.0, 1.0, 2.0])] {
        let by = BucketizedSplit {
            feature_id: 0,
            threshold: 3,
            left_id: 1,
            right_id: 2,
            dimension_id: 1,
            default_direction,
        };
        let ensemble = one_tree(vec![split(by), of(&[1.0]), of(&[2.0])]);
        assert_eq!(predicted(&ensemble, std::slice::from_ref(&buckets), 1).unwrap(), wanted);
        let narrow = Tensor::from_vec([3, 1], vec![9, 9, 9]);
        let failure = predicted(&ensemble, &[narrow], 1).unwrap_err();
        assert!(failure.message.contains("dimension 1 of feature 0, which has 1"), "{failure}");
        // A vector has one dimension and no missing values.
        assert_eq!(predicted(&ensemble, &[Tensor::vector(vec![-1, 4])], 1).unwrap(), [1.0, 2.0]);
    }
}

/// A layer with one candidate, by feature 0 up to bucket 3.
fn grown(ensemble: &mut Ensemble, node: i32, gain: f32, sides: [&Tensor; 2], kind: Option<&str>, logits: usize) {
    let kinds = kind.map(|kind| Tensor::vector(vec![kind.as_bytes().to_vec()]));
    let candidates = Candidates {
        features: &[0],
        dimensions: None,
        nodes: &Tensor::vector(vec![node]),
        gains: &Tensor::vector(vec![gain]),
        thresholds: &Tensor::vector(vec![3]),
        left: sides[0],
        right: sides[1],
        kinds: kinds.as_ref(),
    };
    ensemble.grow(&[candidates], (2, 0.5), Pruning::After, logits).unwrap();
}

#[test]
fn leaves_with_two_logits_grow() {
    let mut ensemble = Ensemble::default();
    let row = |values: [f32; 2]| Tensor::from_vec([1, 2], values.to_vec());
    grown(&mut ensemble, 0, 1.0, [&row([1.0, 2.0]), &row([3.0, 4.0])], None, 2);
    let features = [Tensor::vector(vec![1, 5])];
    assert_eq!(predicted(&ensemble, &features, 2).unwrap(), [0.5, 1.0, 1.5, 2.0]);
    let states = ensemble.states().unwrap();
    assert_eq!((states.trees, states.finalized, states.layers, states.last_layer), (1, 0, 1, [1, 3]));
    // The second layer loses, and is pruned with the tree complete.
    grown(&mut ensemble, 2, -1.0, [&row([8.0, 8.0]), &row([6.0, 6.0])], None, 2);
    assert_eq!(predicted(&ensemble, &features, 2).unwrap(), [0.5, 1.0, 1.5, 2.0]);
    let cached = Cached { trees: &[0, 0], nodes: &[1, 4] };
    let [change, trees, nodes] = ensemble.continued(&Features::of(&features).unwrap(), &cached, 2).unwrap();
    assert_eq!(change.into_vec::<f32>().unwrap(), [0.0, 0.0, -3.0, -3.0]);
    assert_eq!((trees.into_vec::<i32>().unwrap(), nodes.into_vec::<i32>().unwrap()), (vec![1, 1], vec![0, 0]));
    let states = ensemble.states().unwrap();
    assert_eq!((states.trees, states.finalized, states.layers, states.last_layer), (2, 1, 2, [0, 1]));
}

#[test]
fn a_split_by_category_is_pruned() {
    let mut ensemble = Ensemble::default();
    grown(&mut ensemble, 0, -1.0, [&column(&[2.0]), &column(&[4.0])], Some(EQUALITY), 1);
    let features = [Tensor::vector(vec![3, 2])];
    assert_eq!(predicted(&ensemble, &features, 1).unwrap(), [1.0, 2.0]);
    grown(&mut ensemble, 1, -1.0, [&column(&[2.0]), &column(&[4.0])], Some(EQUALITY), 1);
    assert_eq!(predicted(&ensemble, &features, 1).unwrap(), [0.0, 0.0]);
}

#[test]
fn an_ensemble_that_leads_nowhere_is_refused() {
    let to = |left_id, feature_id| {
        let by =
            BucketizedSplit { feature_id, threshold: 9, left_id, right_id: 1, dimension_id: 0, default_direction: 0 };
        let ensemble = one_tree(vec![split(by), of(&[1.0])]);
        let failure = predicted(&ensemble, &[Tensor::vector(vec![1])], 1).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
        failure.message
    };
    assert!(to(0, 0).contains("below itself"));
    assert!(to(7, 0).contains("node 7 is not one of the 2"));
    assert!(to(-1, 0).contains("node -1 is not one of the 2"));
    assert!(to(1, 4).contains("feature 4"));
    let failure = predicted(&one_tree(vec![]), &[Tensor::vector(vec![1])], 1).unwrap_err();
    assert!(failure.message.contains("node 0"), "{failure}");
    let failure = predicted(&one_tree(vec![of(&[1.0, 2.0])]), &[Tensor::vector(vec![1])], 1).unwrap_err();
    assert_eq!(failure.code, Code::Internal, "{failure}");
}

#[test]
fn a_tree_that_is_none_is_not_pruned() {
    let by =
        BucketizedSplit { feature_id: 0, threshold: 9, left_id: 1, right_id: 1, dimension_id: 0, default_direction: 0 };
    let mut ensemble = one_tree(vec![split(by), of(&[1.0])]);
    let failure = ensemble.prune(0, 1).unwrap_err();
    assert!(failure.message.contains("node 1 is the child of several nodes"), "{failure}");
}

#[test]
fn a_part_of_an_ensemble_is_read_or_refused() {
    let by =
        BucketizedSplit { feature_id: 0, threshold: 9, left_id: 1, right_id: 2, dimension_id: 3, default_direction: 1 };
    let ensemble = one_tree(vec![split(by), of(&[1.0]), of(&[2.0, 3.0])]);
    let bytes = ensemble.written().unwrap();
    assert_eq!(Ensemble::read(&bytes).unwrap(), ensemble);
    for length in 0..bytes.len() {
        if let Ok(read) = Ensemble::read(&bytes[..length]) {
            assert_eq!(Ensemble::read(&read.written().unwrap()).unwrap(), read);
        }
    }
}
