//! Sliding windows: sizes, strides, dilations and paddings, as specified by the attributes of convolutions and pools.
//!
//! Two spatial dimensions are computed as three, the first of size 1, so that one implementation serves both.

pub use meshtf_loops::vector::Axis;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::super::KernelNode;

/// The treatment of elements outside the input.
#[derive(Clone, Debug, PartialEq)]
pub enum Padding {
    Same,
    Valid,
    /// The padding before and after, for each spatial dimension.
    Explicit([[usize; 2]; 3]),
}

/// The attributes of a node's windows: all but the sizes.
#[derive(Clone, Debug)]
pub struct Slide {
    /// The number of spatial dimensions, 2 or 3.
    pub spatial: usize,
    pub channels_first: bool,
    pub strides: [usize; 3],
    pub dilations: [usize; 3],
    pub padding: Padding,
}

impl Slide {
    /// Reads `strides`, `padding` and, if the op has them, `data_format`, `dilations` and `explicit_paddings`.
    ///
    /// # Errors
    /// InvalidArgument if they have the wrong length or sign; Unimplemented for strides over batch or channels.
    pub fn of(node: &KernelNode, spatial: usize) -> Result<Slide> {
        let channels_first = channels_first(node)?;
        let list = |name: &str| per_dimension(name, node.attrs.ints(name)?, spatial, channels_first);
        let (strides, outer) = list("strides")?;
        if outer != [1, 1] {
            return Err(Failure::new(
                Code::Unimplemented,
                "Current implementation does not yet support strides in the batch and depth dimensions.",
            ));
        }
        let dilations = if node.attrs.get("dilations").is_some() {
            let (dilations, outer) = list("dilations")?;
            if outer != [1, 1] {
                return Err(Failure::new(
                    Code::Unimplemented,
                    "Current implementation does not yet support dilations in the batch and depth dimensions.",
                ));
            }
            dilations
        } else {
            [1; 3]
        };
        let padding = match node.attrs.str("padding")? {
            "SAME" => Padding::Same,
            "VALID" => Padding::Valid,
            _ => Padding::Explicit(explicit(node.attrs.ints("explicit_paddings")?, spatial, channels_first)?),
        };
        Ok(Slide { spatial, channels_first, strides, dilations, padding })
    }

    /// Lays windows of size `window` over an input of size `input`.
    ///
    /// # Errors
    /// InvalidArgument if no window fits.
    pub fn over(&self, input: [usize; 3], window: [usize; 3]) -> Result<[Axis; 3]> {
        let mut axes = [Axis::ONE; 3];
        for i in 3 - self.spatial..3 {
            axes[i] = self.axis(i, input[i], window[i])?;
        }
        Ok(axes)
    }

    fn axis(&self, i: usize, input: usize, window: usize) -> Result<Axis> {
        let (stride, dilation) = (self.strides[i], self.dilations[i]);
        if window == 0 {
            return Err(Failure::invalid("filter must not have zero elements (i.e. all dimensions must be non-zero)"));
        }
        let too_large = || Failure::invalid(format!("a window of {window} with dilation {dilation} is too large"));
        let reach = (window - 1).checked_mul(dilation).and_then(|reach| reach.checked_add(1)).ok_or_else(too_large)?;
        let (before, output) = match &self.padding {
            Padding::Same => {
                let output = input.div_ceil(stride);
                let covered = output.saturating_sub(1).saturating_mul(stride).saturating_add(reach);
                (covered.saturating_sub(input) / 2, output)
            }
            Padding::Valid => (0, placed(input, reach, stride)?),
            Padding::Explicit(paddings) => {
                let [before, after] = paddings[i];
                let padded = input.checked_add(before).and_then(|n| n.checked_add(after)).ok_or_else(too_large)?;
                (before, placed(padded, reach, stride)?)
            }
        };
        Ok(Axis { input, window, output, stride, dilation, before })
    }
}

/// Whether a node's images have their channels before height and width; an op without `data_format` has them last.
///
/// # Errors
/// Internal if `data_format` is not a string, which the graph has checked.
pub fn channels_first(node: &KernelNode) -> Result<bool> {
    Ok(node.attrs.get("data_format").is_some() && node.attrs.str("data_format")?.starts_with("NC"))
}

/// The number of windows spanning `reach` elements that fit into `input`.
fn placed(input: usize, reach: usize, stride: usize) -> Result<usize> {
    // As in TensorFlow: an input up to a stride too short gives no output, a shorter one is an error.
    let output = (input as i64 - reach as i64 + stride as i64) / stride as i64;
    usize::try_from(output).map_err(|_| {
        Failure::invalid(format!(
            "Computed output size would be negative: {output} [input_size: {input}, effective_filter_size: {reach}, \
             stride: {stride}]"
        ))
    })
}

/// The values of a list with one for each dimension: the spatial ones, and those of batch and channels.
///
/// # Errors
/// InvalidArgument if the number of values is wrong or one is not positive.
pub fn per_dimension(
    name: &str,
    values: &[i64],
    spatial: usize,
    channels_first: bool,
) -> Result<([usize; 3], [usize; 2])> {
    if values.len() != spatial + 2 {
        return Err(Failure::invalid(format!(
            "Sliding window {name} field must specify {} dimensions, got {}",
            spatial + 2,
            values.len()
        )));
    }
    let positive = |&value: &i64| {
        usize::try_from(value)
            .ok()
            .filter(|&value| value > 0 && i32::try_from(value).is_ok())
            .ok_or_else(|| Failure::invalid(format!("{name} must be positive, got {value}")))
    };
    let values = values.iter().map(positive).collect::<Result<Vec<_>>>()?;
    let (space, channels) =
        if channels_first { (&values[2..], values[1]) } else { (&values[1..=spatial], values[spatial + 1]) };
    Ok((spread(space), [values[0], channels]))
}

fn explicit(values: &[i64], spatial: usize, channels_first: bool) -> Result<[[usize; 2]; 3]> {
    if values.len() != 2 * (spatial + 2) {
        return Err(Failure::invalid(format!(
            "explicit_paddings attribute must contain {} values, got: {}",
            2 * (spatial + 2),
            values.len()
        )));
    }
    let pairs = values
        .chunks_exact(2)
        .map(|pair| match (usize::try_from(pair[0]), usize::try_from(pair[1])) {
            (Ok(before), Ok(after)) => Ok([before, after]),
            _ => Err(Failure::invalid(format!("All elements of explicit_paddings must be nonnegative, got {pair:?}"))),
        })
        .collect::<Result<Vec<_>>>()?;
    let (space, channels) =
        if channels_first { (&pairs[2..], pairs[1]) } else { (&pairs[1..=spatial], pairs[spatial + 1]) };
    if pairs[0] != [0, 0] || channels != [0, 0] {
        return Err(Failure::invalid("Nonzero explicit padding in the batch or depth dimensions is not supported"));
    }
    let mut all = [[0; 2]; 3];
    all[3 - spatial..].copy_from_slice(space);
    Ok(all)
}

/// One to three spatial sizes as three, padded with ones in front.
pub fn spread(sizes: &[usize]) -> [usize; 3] {
    let mut all = [1; 3];
    all[3 - sizes.len()..].copy_from_slice(sizes);
    all
}
