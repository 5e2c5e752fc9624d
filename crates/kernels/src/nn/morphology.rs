//! Dilation2D and its gradients: the largest sum of an element under a window and the corresponding element of the
//! filter.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Numeric, Shape, Tensor, with_number};

use super::super::call::{input_dtype, kernel as call};
use super::super::{HostKernel, KernelNode, Registry};
use super::conv::Part;
use super::window::{Axis, Padding, Slide, per_dimension, spread};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Dilation2D", |node| kernel(node, Part::Forward));
    ops.insert("Dilation2DBackpropInput", |node| kernel(node, Part::ByInput));
    ops.insert("Dilation2DBackpropFilter", |node| kernel(node, Part::ByFilter));
}

fn kernel(node: &KernelNode, part: Part) -> Result<Option<HostKernel>> {
    let over_space = |name: &str| {
        let (space, outer) = per_dimension(name, node.attrs.ints(name)?, 2, false)?;
        match outer {
            [1, 1] => Ok(space),
            _ => Err(Failure::new(Code::Unimplemented, format!("{name} is only supported across space"))),
        }
    };
    let slide = Slide {
        spatial: 2,
        channels_first: false,
        strides: over_space("strides")?,
        dilations: over_space("rates")?,
        padding: if node.attrs.str("padding")? == "SAME" { Padding::Same } else { Padding::Valid },
    };
    let dtype = input_dtype(node, 0)?;
    let kernel = match part {
        Part::Forward => with_number!(dtype, T => call(move |[input, filter]| dilated::<T>(&slide, &input, &filter))),
        Part::ByInput | Part::ByFilter => {
            let of_filter = part == Part::ByFilter;
            with_number!(dtype, T => call(move |[input, filter, gradient]: [Tensor; 3]| {
                back::<T>(&slide, &input, &filter, &gradient, of_filter)
            }))
        }
    };
    Ok(kernel)
}

/// Sliding windows over images.
struct Over {
    batch: usize,
    channels: usize,
    axes: [Axis; 2],
}

impl Over {
    fn new(slide: &Slide, input: &Tensor, filter: &Tensor) -> Result<Over> {
        let &[batch, height, width, channels] = input.dims() else {
            return Err(Failure::invalid(format!("input must be 4-dimensional: {}", input.shape())));
        };
        let &[rows, columns, depth] = filter.dims() else {
            return Err(Failure::invalid(format!("filter must be 3-dimensional: {}", filter.shape())));
        };
        if depth != channels {
            let why = format!("input and filter must have the same depth: {channels} vs {depth}");
            return Err(Failure::invalid(why));
        }
        let [_, h, w] = slide.over(spread(&[height, width]), spread(&[rows, columns]))?;
        Ok(Over { batch, channels, axes: [h, w] })
    }

    #[inline]
    fn output(&self) -> Shape {
        [self.batch, self.axes[0].output, self.axes[1].output, self.channels].into()
    }

    /// Calls `f(output, largest, its element of the input, its element of the filter)` for each output whose window
    /// covers an element of the input.
    fn for_each<T: Numeric>(&self, input: &[T], filter: &[T], mut f: impl FnMut(usize, T, usize, usize)) {
        let ([h, w], channels) = (&self.axes, self.channels);
        let (mut pace, mut output) = (Pace::new(), 0);
        for image in 0..self.batch {
            for (y, x) in (0..h.output).flat_map(|y| (0..w.output).map(move |x| (y, x))) {
                pace.go(h.window * w.window * channels);
                for channel in 0..channels {
                    let mut found: Option<(T, usize, usize)> = None;
                    for row in 0..h.window {
                        let Some(line) = h.position(y, row) else { continue };
                        for column in 0..w.window {
                            let Some(at) = w.position(x, column) else { continue };
                            let from = ((image * h.input + line) * w.input + at) * channels + channel;
                            let above = (row * w.window + column) * channels + channel;
                            let sum = input[from].add(filter[above]);
                            if found.is_none_or(|(largest, ..)| sum > largest) {
                                found = Some((sum, from, above));
                            }
                        }
                    }
                    if let Some((largest, from, above)) = found {
                        f(output, largest, from, above);
                    }
                    output += 1;
                }
            }
        }
    }
}

fn dilated<T: Numeric>(slide: &Slide, input: &Tensor, filter: &Tensor) -> Result<Tensor> {
    let over = Over::new(slide, input, filter)?;
    let mut answer = vec![T::LOWEST; over.output().checked_elements(T::DTYPE)?];
    over.for_each::<T>(input.slice()?, filter.slice()?, |output, largest, _, _| answer[output] = largest);
    Ok(Tensor::from_vec(over.output(), answer))
}

/// The gradient goes to the first of the elements with the largest sum, in the filter or in the input.
fn back<T: Numeric>(
    slide: &Slide,
    input: &Tensor,
    filter: &Tensor,
    gradient: &Tensor,
    of_filter: bool,
) -> Result<Tensor> {
    let over = Over::new(slide, input, filter)?;
    if *gradient.shape() != over.output() {
        let why = format!("out_backprop must have shape {}, but got {}", over.output(), gradient.shape());
        return Err(Failure::invalid(why));
    }
    let of = if of_filter { filter } else { input };
    let mut answer = vec![T::ZERO; of.shape().checked_elements(T::DTYPE)?];
    let gradient = gradient.slice::<T>()?;
    over.for_each::<T>(input.slice()?, filter.slice()?, |output, _, from, above| {
        let to = &mut answer[if of_filter { above } else { from }];
        *to = to.add(gradient[output]);
    });
    Ok(Tensor::from_vec(of.shape().clone(), answer))
}
