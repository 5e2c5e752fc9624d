//! The ops of ensembles of boosted trees.

use meshtf_kernels::KernelNode;
use meshtf_kernels::trees::{Cached, Candidates, Features, Pruning, matrix, scalar, vector};
use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::resource::TreeEnsemble;
use super::super::token::{Token, Tokens};
use super::named::Named;
use super::op::{StateInputs, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesEnsembleResourceHandleOp", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(named.find(|name| TreeEnsemble::new(name.to_owned()))?))))
    });
    ops.insert_call("IsBoostedTreesEnsembleInitialized", |mut inputs, _| {
        Ok(one(Tensor::scalar(inputs.ensemble(0)?.is_made())))
    });
    ops.insert_call("BoostedTreesCreateEnsemble", |mut inputs, _| {
        let (ensemble, stamp, serialized) = serialized(&mut inputs)?;
        ensemble.make(&serialized, stamp)?;
        Ok(nothing())
    });
    ops.insert_call("BoostedTreesDeserializeEnsemble", |mut inputs, _| {
        let (ensemble, stamp, serialized) = serialized(&mut inputs)?;
        ensemble.replace(&serialized, stamp)?;
        Ok(nothing())
    });
    ops.insert_call("BoostedTreesSerializeEnsemble", |mut inputs, _| {
        let held = inputs.ensemble(0)?.held()?;
        Ok(all([Tensor::scalar(held.stamp), Tensor::scalar(held.ensemble.written()?)]))
    });
    ops.insert_call("BoostedTreesGetEnsembleStates", |mut inputs, _| {
        let held = inputs.ensemble(0)?.held()?;
        let states = held.ensemble.states()?;
        let [stamp, last_layer] = [Tensor::scalar(held.stamp), Tensor::vector(states.last_layer.to_vec())];
        let [trees, finalized, layers] = [states.trees, states.finalized, states.layers].map(Tensor::scalar);
        Ok(all([stamp, trees, finalized, layers, last_layer]))
    });
    ops.insert_call("BoostedTreesCenterBias", |mut inputs, _| {
        let ensemble = inputs.ensemble(0)?;
        let means = [(inputs.host(1)?, "mean_gradients"), (inputs.host(2)?, "mean_hessians")];
        let (l1, l2) = (scalar(&inputs.host(3)?, "l1")?, scalar(&inputs.host(4)?, "l2")?);
        let [gradient, hessian] = means.each_ref().map(|(tensor, name)| mean(tensor, name));
        let (gradient, hessian) = (gradient?, hessian?);
        let continues = ensemble.change(|ensemble| ensemble.center(gradient, hessian, l1, l2))?;
        Ok(one(Tensor::scalar(continues)))
    });
    ops.insert("BoostedTreesUpdateEnsemble", |node, _| {
        let (lists, pruning) = (count(node, "num_features")?, Pruning::of(node.attrs.int("pruning_mode")?));
        simple(move |mut inputs, _| {
            let ensemble = inputs.ensemble(0)?;
            grow(&ensemble, &inputs.rest(1)?, lists, pruning)
        })
    });
    ops.insert("BoostedTreesUpdateEnsembleV2", |node, _| {
        let (lists, groups) = (count(node, "num_features")?, count(node, "num_groups")?);
        let logits = count(node, "logits_dimension")?;
        if logits == 0 {
            return Err(Failure::invalid("logits_dimension must be positive"));
        }
        simple(move |mut inputs, _| {
            let ensemble = inputs.ensemble(0)?;
            grow_v2(&ensemble, &inputs.rest(1)?, (lists, groups), logits)
        })
    });
    ops.insert("BoostedTreesPredict", |node, _| {
        let logits = count(node, "logits_dimension")?;
        simple(move |mut inputs, _| {
            let (held, features) = (inputs.ensemble(0)?.held()?, inputs.rest(1)?);
            let features = Features::of(&features)?;
            Ok(one(turn::in_part(|| held.ensemble.predict(&features, logits))?))
        })
    });
    ops.insert("BoostedTreesTrainingPredict", |node, _| {
        let logits = count(node, "logits_dimension")?;
        simple(move |mut inputs, _| {
            let held = inputs.ensemble(0)?.held()?;
            let (trees, nodes, features) = (inputs.host(1)?, inputs.host(2)?, inputs.rest(3)?);
            let (trees, nodes) = (vector(&trees, "cached_tree_ids")?, vector(&nodes, "cached_node_ids")?);
            let (features, cached) = (Features::of(&features)?, Cached { trees, nodes });
            turn::in_part(|| held.ensemble.continued(&features, &cached, logits)).map(all)
        })
    });
    ops.insert("BoostedTreesExampleDebugOutputs", |node, _| {
        if node.attrs.int("logits_dimension")? != 1 {
            return Err(Failure::invalid("Currently only one dimensional outputs are supported."));
        }
        simple(|mut inputs, _| {
            let (held, features) = (inputs.ensemble(0)?.held()?, inputs.rest(1)?);
            let features = Features::of(&features)?;
            Ok(one(turn::in_part(|| held.ensemble.explained(&features))?))
        })
    });
}

fn all<const N: usize>(outputs: [Tensor; N]) -> Tokens {
    outputs.into_iter().map(|output| Some(output.into())).collect()
}

/// A count among the attributes.
fn count(node: &KernelNode, name: &str) -> Result<usize> {
    let value = node.attrs.int(name)?;
    usize::try_from(value).map_err(|_| Failure::invalid(format!("{name} must not be negative, got {value}")))
}

/// The inputs of an op that makes an ensemble of its serialised form.
fn serialized(inputs: &mut StateInputs) -> Result<(std::sync::Arc<TreeEnsemble>, i64, Vec<u8>)> {
    let ensemble = inputs.ensemble(0)?;
    let stamp = scalar(&inputs.host(1)?, "stamp_token")?;
    Ok((ensemble, stamp, scalar(&inputs.host(2)?, "tree_ensemble_serialized")?))
}

/// The mean gradient or hessian of the one logit.
fn mean(tensor: &Tensor, name: &str) -> Result<f32> {
    let (values, logits) = matrix::<f32>(tensor, name)?;
    if logits != 1 {
        return Err(Failure::new(Code::Internal, format!("Expected logits_dim == 1, got {logits} in {name}")));
    }
    values.first().copied().ok_or_else(|| Failure::invalid(format!("{name} has no rows")))
}

/// Divides inputs into lists of the same length, and the rest.
fn lists<const N: usize>(inputs: &[Tensor], length: usize) -> Result<([&[Tensor]; N], &[Tensor])> {
    let wrong = || Failure::invalid(format!("{} inputs are not {N} lists of {length}", inputs.len()));
    let (listed, rest) = inputs.split_at_checked(N.saturating_mul(length)).ok_or_else(wrong)?;
    Ok((std::array::from_fn(|list| &listed[list * length..][..length]), rest))
}

fn grow(ensemble: &TreeEnsemble, inputs: &[Tensor], length: usize, pruning: Pruning) -> Result<Tokens> {
    let Some((ids, inputs)) = inputs.split_first() else { return Err(Failure::invalid("there are no feature_ids")) };
    let ids = vector::<i32>(ids, "feature_ids")?;
    if ids.len() != length {
        return Err(Failure::invalid(format!("{} feature_ids are stated for {length} features", ids.len())));
    }
    let ([nodes, gains, thresholds, left, right], rest) = lists(inputs, length)?;
    let [depth, rate] = rest else { return Err(Failure::invalid("max_depth and learning_rate are missing")) };
    let settings = (scalar(depth, "max_depth")?, scalar(rate, "learning_rate")?);
    let of = |i: usize| Candidates {
        features: &ids[i..=i],
        dimensions: None,
        nodes: &nodes[i],
        gains: &gains[i],
        thresholds: &thresholds[i],
        left: &left[i],
        right: &right[i],
        kinds: None,
    };
    let candidates: Vec<Candidates> = (0..length).map(of).collect();
    ensemble.change(|ensemble| ensemble.grow(&candidates, settings, pruning, 1))?;
    Ok(nothing())
}

/// As [`grow`], with the dimension and the kind of each split. TensorFlow 1 states one feature for each list of candidates,
/// TensorFlow 2 one for each candidate.
fn grow_v2(
    ensemble: &TreeEnsemble,
    inputs: &[Tensor],
    (length, groups): (usize, usize),
    logits: usize,
) -> Result<Tokens> {
    let ([ids], inputs) = lists(inputs, groups)?;
    let ids = ids.iter().map(|ids| vector::<i32>(ids, "each of feature_ids")).collect::<Result<Vec<_>>>()?;
    let ([dimensions, nodes, gains, thresholds, left, right, kinds], rest) = lists(inputs, length)?;
    let [depth, rate, pruning] = rest else {
        return Err(Failure::invalid("max_depth, learning_rate and pruning_mode are missing"));
    };
    let settings = (scalar(depth, "max_depth")?, scalar(rate, "learning_rate")?);
    let pruning = Pruning::of(i64::from(scalar::<i32>(pruning, "pruning_mode")?));
    let of = |i: usize| {
        let features = match &ids[..] {
            [all] if all.len() == length => &all[i..=i],
            groups if groups.len() == length => groups[i],
            _ => {
                let stated: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
                let why =
                    format!("feature_ids of {stated:?} elements are neither one for each of {length} lists nor lists");
                return Err(Failure::invalid(why));
            }
        };
        Ok(Candidates {
            features,
            dimensions: Some(&dimensions[i]),
            nodes: &nodes[i],
            gains: &gains[i],
            thresholds: &thresholds[i],
            left: &left[i],
            right: &right[i],
            kinds: Some(&kinds[i]),
        })
    };
    let candidates = (0..length).map(of).collect::<Result<Vec<_>>>()?;
    ensemble.change(|ensemble| ensemble.grow(&candidates, settings, pruning, logits))?;
    Ok(nothing())
}
