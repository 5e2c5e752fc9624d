//! Changes compared with those of Keras 3.15 and TensorFlow 2.21, which were computed by
//! `keras.layers.RandomRotation((f, f), fill_mode="reflect")(x, training=True)` and the like.

use super::*;

/// `numpy.arange(16).reshape(4, 4) * 10`.
fn image() -> Tensor {
    Tensor::from_vec([1, 4, 4, 1], (0..16).map(|i| i * 10).collect::<Vec<u8>>())
}

fn changed(augment: &Augment, place: usize, epoch: u64) -> Vec<u8> {
    augment.apply(&image(), 7, &[place], &[epoch]).unwrap().slice::<u8>().unwrap().to_vec()
}

/// By a window.
fn taken(window: Window) -> Vec<u8> {
    let mut pixels = image().slice::<u8>().unwrap().to_vec();
    window.take(&mut pixels, [4, 4, 1]);
    pixels
}

const STILL: Window = Window { share: 1.0, begin: [0.0; 2], turns: 0.0, moved: [0.0; 2], mirrored: [false; 2] };

fn nearest(values: &[f64]) -> Vec<u8> {
    values.iter().map(|value| value.round() as u8).collect()
}

#[test]
fn images_are_turned_and_moved_as_by_keras() {
    for (turns, wanted) in [
        (0.25, [30.0, 70.0, 110.0, 150.0, 20.0, 60.0, 100.0, 140.0, 10.0, 50.0, 90.0, 130.0, 0.0, 40.0, 80.0, 120.0]),
        (
            0.125,
            [
                15.0, 25.50253, 60.85786, 90.0, 11.36039, 46.71573, 82.07107, 117.42641, 32.57360, 67.92893, 103.28427,
                138.63962, 60.0, 89.14214, 124.49747, 135.0,
            ],
        ),
        (
            0.03,
            [
                3.07641, 12.89928, 27.53255, 42.30564, 30.31398, 47.63210, 64.95023, 81.59714, 68.40286, 85.04978,
                102.36790, 119.68603, 107.69436, 122.46745, 137.10071, 146.92358,
            ],
        ),
    ] {
        assert_eq!(taken(Window { turns, ..STILL }), nearest(&wanted), "{turns}");
        let always = Augment { rotate: (turns, turns), ..Augment::default() };
        assert_eq!(changed(&always, 0, 0), nearest(&wanted), "{turns}");
    }
    let moved = taken(Window { moved: [0.25, -0.125], ..STILL });
    let wanted = [5.0, 15.0, 25.0, 30.0, 5.0, 15.0, 25.0, 30.0, 45.0, 55.0, 65.0, 70.0, 85.0, 95.0, 105.0, 110.0];
    assert_eq!(moved, nearest(&wanted));
}

#[test]
fn brightness_and_contrast_are_those_of_keras() {
    let brighter = Augment { brightness: (0.3, 0.3), ..Augment::default() };
    let all: Vec<f64> = (0..16).map(|i| f64::from(i * 10) + 76.5).collect();
    assert_eq!(changed(&brighter, 0, 0), nearest(&all));
    let darker = Augment { brightness: (-0.3, -0.3), ..Augment::default() };
    let all: Vec<f64> = (0..16).map(|i| (f64::from(i * 10) - 76.5).max(0.0)).collect();
    assert_eq!(changed(&darker, 0, 0), nearest(&all));
    // The mean is 75, and the range of the factor 0.5 to 1.5: all pixels have the same factor.
    let contrast = changed(&Augment { contrast: 0.5, ..Augment::default() }, 3, 0);
    let factor = (f64::from(contrast[15]) - 75.0) / 75.0;
    assert!((0.49..=1.51).contains(&factor) && (factor - 1.0).abs() > 0.01, "{factor}");
    for (i, pixel) in contrast.iter().enumerate() {
        let wanted = ((i as f64 * 10.0 - 75.0) * factor + 75.0).clamp(0.0, 255.0);
        assert!((f64::from(*pixel) - wanted).abs() <= 1.0, "{i}: {pixel} and {wanted}");
    }
}

#[test]
fn a_window_is_interpolated_and_a_mirror_exact() {
    // The rows 1 and 2, and the columns from half of 0 to half of 2: the first of four rows is at 1 + 1/4 - 1/2, and the first
    // column at 1/2 + 1/4 - 1/2, which is 40 * 0.75 + 10 * 0.25.
    let window = taken(Window { share: 0.5, begin: [0.5, 0.25], ..STILL });
    let wanted: Vec<f64> = (0..16).map(|i| 32.5 + f64::from(i / 4 * 20) + f64::from(i % 4 * 5)).collect();
    assert_eq!(window, nearest(&wanted));
    let rows: Vec<u8> = (0..16).map(|i| (i / 4 * 4 + 3 - i % 4) * 10).collect();
    assert_eq!(taken(Window { mirrored: [false, true], ..STILL }), rows);
    let columns: Vec<u8> = (0..16).map(|i| ((3 - i / 4) * 4 + i % 4) * 10).collect();
    assert_eq!(taken(Window { mirrored: [true, false], ..STILL }), columns);
    // Every image is one of the two, and both occur.
    let flip = Augment { flip: Some(Flip::Horizontal), ..Augment::default() };
    let original: Vec<u8> = (0..16).map(|i| i * 10).collect();
    let mirrored = (0..200).filter(|&place| changed(&flip, place, 0) == rows).count();
    let same = (0..200).filter(|&place| changed(&flip, place, 0) == original).count();
    assert_eq!(mirrored + same, 200);
    // Five standard deviations of 200 draws.
    assert!((65..=135).contains(&mirrored), "{mirrored}");
}

#[test]
fn numbers_depend_on_the_seed_the_epoch_and_the_index_alone() {
    let augment = Augment { crop: 0.4, brightness: (-0.2, 0.2), ..Augment::default() };
    assert_eq!(changed(&augment, 3, 5), changed(&augment, 3, 5));
    assert_ne!(changed(&augment, 3, 5), changed(&augment, 3, 6));
    assert_ne!(changed(&augment, 3, 5), changed(&augment, 4, 5));
    let seeded = Augment { seed: Some(8), ..augment.clone() };
    assert_ne!(changed(&seeded, 3, 5), changed(&augment, 3, 5));
    // In a batch, an image has the numbers that it has alone.
    let pixels = image().slice::<u8>().unwrap().repeat(2);
    let both = Tensor::from_vec([2, 4, 4, 1], pixels);
    let both = augment.apply(&both, 7, &[9, 3], &[0, 5]).unwrap();
    assert_eq!(both.slice::<u8>().unwrap()[16..], changed(&augment, 3, 5));
    // A further option leaves the draws of the others.
    let flipped = Augment { flip: Some(Flip::Vertical), crop: 0.0, ..augment.clone() };
    let without = Augment { flip: None, ..flipped.clone() };
    let sorted = |mut pixels: Vec<u8>| {
        pixels.sort_unstable();
        pixels
    };
    for place in 0..20 {
        assert_eq!(sorted(changed(&flipped, place, 0)), sorted(changed(&without, place, 0)));
    }
    let units: Vec<f64> = (0..10_000).map(|place| Draws::of(1, 2, place).unit()).collect();
    let mean = units.iter().sum::<f64>() / 10_000.0;
    // Five standard deviations of the mean, 0.2887 / 100.
    assert!((mean - 0.5).abs() < 0.0145 && units.iter().all(|unit| (0.0..1.0).contains(unit)), "{mean}");
}

#[test]
fn other_tensors_are_refused() {
    let augment = Augment::default();
    let vector = Tensor::vector(vec![1u8]);
    assert!(augment.apply(&vector, 0, &[0], &[0]).unwrap_err().message.contains("only images"));
    assert!(augment.apply(&image(), 0, &[], &[0]).unwrap_err().message.contains("an index and an epoch"));
    let none = Tensor::from_vec([0, 4, 4, 1], Vec::<u8>::new());
    assert_eq!(augment.apply(&none, 0, &[], &[]).unwrap(), none);
}
