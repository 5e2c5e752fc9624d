//! Inputs so large that their work is split into chunks, compared with the definition of the op.

use meshtf_cases::with_node;
use meshtf_kernels::compile;
use meshtf_loops::turn::BLOCK;
use meshtf_tensor::Tensor;
use serde_json::json;
use smallvec::smallvec;

#[test]
fn an_update_writes_over_an_input_of_its_own_and_copies_one_that_others_hold() {
    let at = |place: i32| Tensor::vector(vec![place]);
    let inputs = [Tensor::vector(vec![0f32; 5000]), at(1), at(4000), at(2), Tensor::scalar(7f32)];
    let case = json!({"op": "TensorStridedSliceUpdate"});
    let mut kernel = with_node(&case, &inputs, compile).unwrap().unwrap();
    let wanted: Vec<f32> = (0..5000).map(|i| if i < 4000 && i % 2 == 1 { 7.0 } else { 0.0 }).collect();

    let shared = kernel(inputs.iter().cloned().collect()).unwrap().remove(0);
    assert_eq!(shared.slice::<f32>().unwrap(), wanted);
    assert!(inputs[0].slice::<f32>().unwrap().iter().all(|&x| x == 0.0), "what others hold is as it was");

    let elements = inputs[0].slice::<f32>().unwrap().as_ptr();
    let own = kernel(inputs.into_iter().collect()).unwrap().remove(0);
    assert_eq!((own.slice::<f32>().unwrap(), own.slice::<f32>().unwrap().as_ptr()), (&wanted[..], elements));
}

/// Large enough for several chunks: by the definition, window by window.
#[test]
fn chunks_of_windows_are_computed_as_one_would_be() {
    let (batch, height, width, channels) = (3, 157, 161, 9);
    let value = |i: usize| ((i * 7919 + i / 13) % 1013) as f32;
    let input =
        Tensor::from_vec([batch, height, width, channels], (0..batch * height * width * channels).map(value).collect());
    assert!(input.len() * 12 > 2 * BLOCK, "there is more than one chunk");
    for in_batch in [false, true] {
        let case = json!({"op": "MaxPoolWithArgmax", "attrs": {
            "ksize": [1, 4, 3, 1], "strides": [1, 1, 2, 1], "padding": "SAME", "include_batch_in_index": in_batch,
        }});
        let mut kernel = with_node(&case, std::slice::from_ref(&input), compile).unwrap().unwrap();
        let outputs = kernel(smallvec![input.clone()]).unwrap();
        let (values, indices) = (outputs[0].slice::<f32>().unwrap(), outputs[1].slice::<i64>().unwrap());
        // One row of padding above and two below; the columns have one on the right.
        let columns = width.div_ceil(2);
        assert_eq!(outputs[0].dims(), [batch, height, columns, channels]);
        for (at, (&got, &index)) in values.iter().zip(indices).enumerate() {
            let (channel, place) = (at % channels, at / channels);
            let (x, y, image) = (place % columns, place / columns % height, place / columns / height);
            let rows = y.saturating_sub(1)..(y + 3).min(height);
            let under = rows.flat_map(|row| {
                ((2 * x).saturating_sub(1)..(2 * x + 2).min(width)).map(move |column| row * width + column)
            });
            let start = image * height * width * channels;
            let best = under
                .map(|pixel| pixel * channels + channel)
                .reduce(|best, other| if value(start + other) > value(start + best) { other } else { best });
            let best = best.unwrap();
            let wanted = if in_batch { start + best } else { best };
            assert_eq!((got, index), (value(start + best), wanted as i64), "{at}");
        }
    }
}

/// Large enough for several chunks: by the definition, element by element.
#[test]
fn chunks_of_patches_are_computed_as_one_would_be() {
    let (batch, height, width, channels) = (2, 97, 101, 5);
    let images =
        Tensor::from_vec([batch, height, width, channels], (1..=(batch * height * width * channels) as i32).collect());
    for rate in [1, 2] {
        let case = json!({"op": "ExtractImagePatches", "attrs": {
            "ksizes": [1, 3, 3, 1], "strides": [1, 1, 1, 1], "rates": [1, rate, rate, 1], "padding": "SAME",
        }});
        let mut kernel = with_node(&case, std::slice::from_ref(&images), compile).unwrap().unwrap();
        let answer = kernel(smallvec::smallvec![images.clone()]).unwrap().remove(0);
        assert_eq!(answer.dims(), [batch, height, width, 9 * channels]);
        for (at, &got) in answer.slice::<i32>().unwrap().iter().enumerate() {
            let (channel, k, place) = (at % channels, at / channels % 9, at / channels / 9);
            let (x, y, image) = (place % width, place / width % height, place / width / height);
            // The window is centred on the pixel.
            let row = (y + k / 3 * rate).checked_sub(rate).filter(|&row| row < height);
            let column = (x + k % 3 * rate).checked_sub(rate).filter(|&column| column < width);
            let pixel = |(row, column)| ((image * height + row) * width + column) * channels + channel + 1;
            assert_eq!(got as usize, row.zip(column).map_or(0, pixel), "{at}");
        }
    }
}
