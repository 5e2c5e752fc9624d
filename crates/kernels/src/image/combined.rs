//! CombinedNonMaxSuppression: the best boxes of each class of each image, all classes together.

use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::super::call::{size, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::suppression::{choose, shared, threshold};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("CombinedNonMaxSuppression", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let (pads, clips) = (node.attrs.bool("pad_per_class")?, node.attrs.bool("clip_boxes")?);
    Ok(Some(Box::new(move |inputs| combined(inputs, pads, clips))))
}

/// A box that was chosen for its class.
struct Chosen {
    score: f32,
    class: usize,
    sides: [f32; 4],
}

fn combined(inputs: Inputs, pads: bool, clips: bool) -> Result<Outputs> {
    let [boxes, scores, per_class, total, overlap, least] = take(inputs)?;
    let &[batch, count, forms, 4] = boxes.dims() else {
        return Err(Failure::invalid(format!("boxes must be 4-D with 4 sides, got shape {}", boxes.shape())));
    };
    let &[own_batch, own_count, classes] = scores.dims() else {
        return Err(Failure::invalid(format!("scores must be 3-D, got shape {}", scores.shape())));
    };
    if (own_batch, own_count) != (batch, count) || forms != 1 && forms != classes {
        return Err(Failure::invalid(format!(
            "boxes of shape {} and scores of shape {} do not go together: third dimension of boxes must be either 1 or \
             num classes",
            boxes.shape(),
            scores.shape()
        )));
    }
    let positive = |tensor: &Tensor, what: &str| match size(tensor, what)? {
        0 => Err(Failure::invalid(format!("{what} must be > 0"))),
        size => Ok(size),
    };
    let per_class = positive(&per_class, "max_size_per_class")?;
    let total = positive(&total, "max_total_size")?;
    let (overlap, least) = (threshold(&overlap, "iou_threshold", true)?, threshold(&least, "score_threshold", false)?);
    let width = if pads { total.min(per_class.saturating_mul(classes)) } else { total };
    let shape = Shape::from([batch, width, 4]);
    let mut sides = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    let (mut values, mut labels, mut valid) = (Vec::new(), Vec::new(), Vec::new());
    let (all, marks) = (boxes.slice::<f32>()?, scores.slice::<f32>()?);
    for image in 0..batch {
        let mut found: Vec<Chosen> = Vec::new();
        for class in 0..classes {
            turn::look();
            let form = if forms > 1 { class } else { 0 };
            let of = |index: usize| &all[((image * count + index) * forms + form) * 4..][..4];
            let own: Vec<f32> = (0..count).map(|index| marks[(image * count + index) * classes + class]).collect();
            let similarity = |a: usize, b: usize| shared(of(a), of(b));
            let chosen = choose(&own, per_class.min(count), least, overlap, 0.0, similarity);
            found.extend(chosen.into_iter().map(|(index, score)| {
                let sides: [f32; 4] = std::array::from_fn(|i| of(index)[i]);
                Chosen { score, class, sides }
            }));
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(width);
        valid.push(found.len() as i32);
        for chosen in &found {
            let clipped = |side: f32| if clips { side.clamp(0.0, 1.0) } else { side };
            sides.extend(chosen.sides.map(clipped));
            values.push(chosen.score);
            labels.push(chosen.class as f32);
        }
        sides.resize((image + 1) * width * 4, 0.0);
        values.resize((image + 1) * width, 0.0);
        labels.resize((image + 1) * width, 0.0);
    }
    Ok(Outputs::from_iter([
        Tensor::new(shape, Data::F32(sides))?,
        Tensor::new([batch, width], Data::F32(values))?,
        Tensor::new([batch, width], Data::F32(labels))?,
        Tensor::vector(valid),
    ]))
}
