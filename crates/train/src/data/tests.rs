//! Tests of orders, examples and files, against values counted by hand.

mod arrived;
mod files;
#[cfg(feature = "parquet")]
mod parquet;
mod splits;
mod tables;
mod tokens;

use meshtf_tensor::DType;

use super::*;

#[test]
fn an_epoch_has_each_example_once_in_an_order_of_its_own() {
    let mut order = Order::new(103, 10, Some(7)).unwrap();
    assert_eq!(order.steps_per_epoch(), 10);
    let mut epoch = |epoch: u64| -> Vec<usize> { (0..10).flat_map(|step| order.of_step(epoch * 10 + step)).collect() };
    let (first, second) = (epoch(0), epoch(1));
    for places in [&first, &second] {
        let mut sorted = places.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() == 100 && sorted[99] < 103, "{places:?}");
    }
    assert!(first != second);
    // A later reader sees the same order.
    let mut later = Order::new(103, 10, Some(7)).unwrap();
    assert_eq!(later.of_step(14), second[40..50]);
    assert_eq!(later.of_step(3), first[30..40]);
    assert!(Order::new(103, 10, Some(8)).unwrap().of_step(0) != first[..10]);
    assert_eq!(Order::new(5, 2, None).unwrap().of_step(3), [2, 3]);
    let short = Order::new(5, 6, None).unwrap_err();
    assert!(short.message.contains("a batch is 6, and there are 5 examples"), "{short}");
}

/// The first element of many shuffles of five is each of the five about as often: within five deviations.
#[test]
fn all_orders_are_as_likely() {
    let mut counts = [0u32; 5];
    (0..5000).for_each(|epoch| counts[order::shuffled(5, 1, epoch)[0]] += 1);
    assert!(counts.iter().all(|count| count.abs_diff(1000) < 5 * 29), "{counts:?}");
}

#[test]
fn examples_are_taken_and_split() {
    let x = Tensor::from_vec([6, 2], (0..12).collect::<Vec<i32>>());
    let y = Tensor::vector(vec![0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let examples = Examples::new(vec![("x".to_owned(), x), ("y".to_owned(), y)]).unwrap();
    let taken = examples.take(&[5, 0, 3, 3], &[2, 2]).unwrap();
    assert_eq!(taken[0], Tensor::from_vec([2, 2, 2], vec![10, 11, 0, 1, 6, 7, 6, 7]));
    assert_eq!(taken[1], Tensor::from_vec([2, 2], vec![5.0f32, 0.0, 3.0, 3.0]));
    assert!(examples.take(&[6], &[1]).is_err());
    let lines = Tensor::vector(vec![b"a".to_vec(), b"bc".to_vec(), Vec::new()]);
    let lines = Examples::new(vec![("text".to_owned(), lines)]).unwrap();
    assert_eq!(lines.take(&[2, 1], &[2]).unwrap()[0], Tensor::vector(vec![Vec::new(), b"bc".to_vec()]));
    let (kept, held) = examples.split(0.34, 1).unwrap();
    let all_of = |one: &Examples| one.take(&(0..one.len()).collect::<Vec<_>>(), &[one.len()]).unwrap();
    assert_eq!((kept.len(), held.len()), (4, 2));
    let mut all: Vec<f32> =
        [&kept, &held].iter().flat_map(|one| all_of(one)[1].slice::<f32>().unwrap().to_vec()).collect();
    all.sort_by(f32::total_cmp);
    assert_eq!(all, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let one = |shape: &[usize]| Tensor::zeros(DType::F32, shape.iter().copied().collect::<Shape>()).unwrap();
    for (parts, why) in [
        (vec![], "no data"),
        (vec![("a".to_owned(), one(&[]))], "is one value"),
        (vec![("a".to_owned(), one(&[2])), ("b".to_owned(), one(&[3]))], "2 examples for a, and 3 for b"),
    ] {
        assert!(Examples::new(parts).unwrap_err().message.contains(why), "{why}");
    }
}

#[test]
fn a_text_of_too_many_pieces_is_refused() {
    let refused = admit_pieces("lines", MAX_PIECES_BYTES / 24, 24, 24).unwrap_err();
    assert!(refused.code == Code::ResourceExhausted && refused.message.contains("lines, which take more"), "{refused}");
    assert!(admit_pieces("fields", 1000, 24, 24).is_ok());
}

#[test]
fn the_bytes_of_an_example_are_counted_within_range() {
    let of = |sizes: &[usize]| {
        let none = Tensor::zeros(DType::F32, sizes.iter().copied().collect::<Shape>()).unwrap();
        Examples::new(vec![("x".to_owned(), none)]).unwrap().example_bytes()
    };
    assert_eq!(of(&[2, 3, 5]).unwrap(), 60);
    assert_eq!(of(&[0, 1 << 40, 1 << 40]).unwrap_err().code, Code::ResourceExhausted);
}

#[test]
fn idx_files_are_read() {
    let images = [&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3][..], &[1, 2, 3, 4, 5, 255]].concat();
    assert_eq!(read_idx(&images).unwrap(), Tensor::from_vec([2, 3], vec![1u8, 2, 3, 4, 5, 255]));
    let numbers = [&[0, 0, 0x0c, 1, 0, 0, 0, 2][..], &[0, 0, 1, 0, 255, 255, 255, 254]].concat();
    assert_eq!(read_idx(&numbers).unwrap(), Tensor::vector(vec![256i32, -2]));
    for (bytes, why) in [
        (&images[..17], "does not take the 5 bytes"),
        (&images[..9], "its 2 sizes are cut off"),
        (b"\x89PNG", "does not begin with"),
        (&[0, 0, 7, 0], "no type 0x07"),
        (&[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255], "does not take"),
    ] {
        let failure = read_idx(bytes).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
}
