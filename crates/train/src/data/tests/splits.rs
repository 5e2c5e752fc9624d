//! Examples that are held out, windows, and weights of classes. The expected numbers are computed by hand.

use super::*;

fn count(held: &[bool]) -> usize {
    held.iter().filter(|held| **held).count()
}

#[test]
fn the_last_part_is_held_out() {
    let held = HoldOutBy::Last.held(0.25, 3, 10, None).unwrap();
    assert_eq!(held, [false, false, false, false, false, false, false, false, true, true]);
    assert_eq!(count(&HoldOutBy::Last.held(0.0, 3, 10, None).unwrap()), 0);
}

#[test]
fn a_group_is_on_one_side() {
    // 40 rows of 5 groups, interleaved: of 5 groups, 0.3 is more than one.
    let keys: Vec<u32> = (0..40).map(|row| row % 5).collect();
    let by = HoldOutBy::Group("station".to_owned());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let held = by.held(0.3, seed, 40, Some(&keys)).unwrap();
        assert_eq!(count(&held), 16, "two groups of 8 rows");
        for (row, is_held) in held.iter().enumerate() {
            assert_eq!(*is_held, held[row % 5], "row {row}");
        }
        assert_eq!(held, by.held(0.3, seed, 40, Some(&keys)).unwrap());
        seen.insert(held);
    }
    assert!(seen.len() > 3, "the seed decides");
    let refused = |keys: Option<&[u32]>| by.held(0.3, 1, 2, keys).unwrap_err().message;
    assert!(refused(None).contains("have no column station"));
    assert!(refused(Some(&[0, 0])).contains("column station has 1 groups, of which 1 would be held out"));
}

#[test]
fn each_class_has_its_share_of_the_examples_held_out() {
    // 60, 30 and 10 of 100; 0.25 is 15, 7.5 and 2.5, of which the first of the equal remainders is rounded up.
    let keys: Vec<u32> = (0..100)
        .map(|row| {
            if row % 10 < 6 {
                0
            } else if row % 10 < 9 {
                1
            } else {
                2
            }
        })
        .collect();
    let by = HoldOutBy::Stratified("kind".to_owned());
    for seed in 0..5 {
        let held = by.held(0.25, seed, 100, Some(&keys)).unwrap();
        let of = |key: u32| keys.iter().zip(&held).filter(|(own, held)| **own == key && **held).count();
        assert_eq!([of(0), of(1), of(2)], [15, 8, 2]);
    }
    assert_ne!(by.held(0.25, 1, 100, Some(&keys)).unwrap(), by.held(0.25, 2, 100, Some(&keys)).unwrap());
}

#[test]
fn windows_stay_within_borders() {
    let none = [false; 10];
    let line = |row: usize| row;
    // As tf.keras.utils.timeseries_dataset_from_array(…, sequence_length=4, sequence_stride=2) has them.
    assert_eq!(windows(10, 4, 2, &none, None, line).0, [0, 2, 4, 6]);
    let mut last = none;
    last[6..].fill(true);
    let (starts, held) = windows(10, 3, 1, &last, None, line);
    assert_eq!(starts, [0, 1, 2, 3, 6, 7]);
    assert_eq!(held, [false, false, false, false, true, true]);
    let groups = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2];
    assert_eq!(windows(10, 3, 2, &none, Some(&groups), line).0, [0, 4, 7]);
    // A line is dropped between rows 4 and 5.
    assert_eq!(windows(10, 5, 1, &none, None, |row| row + usize::from(row > 4)).0, [0, 5]);
    assert!(windows(10, 11, 1, &none, None, line).0.is_empty());
    assert!(windows(0, 1, 1, &[], None, line).0.is_empty());
}

#[test]
fn windows_are_taken_from_their_rows() {
    let rows = Tensor::from_vec([6, 2], (0..12).map(f64::from).collect::<Vec<_>>());
    let window = Window { length: 3, ahead: None, is_range: false, stride: 1 };
    let label = Window { ahead: Some((2, 2)), ..window };
    let range = Window { ahead: Some((1, 2)), is_range: true, ..window };
    let starts: Arc<[usize]> = [0, 1].into();
    let column = |window: Window| {
        let example = window.example(2);
        Column::Windows(WindowRows::new(Column::Held(rows.clone()), starts.clone(), window, example))
    };
    let named = [("x", window), ("y", label), ("z", range)];
    let all = named.iter().map(|(name, window)| ((*name).to_owned(), column(*window))).collect();
    let examples = Examples::of(all).unwrap().with_held_out(vec![false, true]).unwrap();
    let taken = examples.take(&[1, 0], &[2]).unwrap();
    assert_eq!(taken[0], Tensor::from_vec([2, 3, 2], [2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5].map(f64::from).to_vec()));
    assert_eq!(taken[1], Tensor::from_vec([2, 2], vec![10f64, 11.0, 8.0, 9.0]));
    assert_eq!(taken[2], Tensor::from_vec([2, 2, 2], [8, 9, 10, 11, 6, 7, 8, 9].map(f64::from).to_vec()));
    let (kept, held) = examples.split_by(&HoldOutBy::Last, 0.5, 1).unwrap();
    assert_eq!((kept.len(), held.len()), (1, 1));
    assert_eq!(held.take(&[0], &[1]).unwrap()[1], Tensor::from_vec([1, 2], vec![10f64, 11.0]));
    assert_eq!(window.span(), 3);
    assert_eq!((label.span(), range.span()), (5, 5));
}

/// The weights of the classes of a column of which all lines but the last are trained with.
fn weights(text: &str, class_weights: ClassWeights) -> Result<Vec<f64>> {
    let options = TableOptions { class_weights: Some(class_weights), ..TableOptions::default() };
    let columns = ["kind".to_owned()];
    let wanted = Wanted { columns: &columns, except: &[], options: &options, is_text: false, fit: None };
    let table = Csv::new(Layout::of(&FilePart::of("t.csv"), &options.layout)?, text.as_bytes().to_vec());
    let prepared = table.prepare(&[wanted], |count| (0..count).map(|place| place + 1 < count).collect())?;
    Ok(table.tensor(&prepared, &prepared.chosen[0], false)?.slice::<f64>()?.to_vec())
}

#[test]
fn an_example_has_the_weight_of_its_class() {
    // As sklearn.utils.class_weight.compute_class_weight("balanced") of cat, cat, cat, dog: 4 / (2 · 3) and 4 / (2 · 1).
    let text = "kind\ncat\ncat\ndog\ncat\ndog\n";
    let (cat, dog) = (4.0 / 6.0, 2.0);
    assert_eq!(weights(text, ClassWeights::Balanced).unwrap(), [cat, cat, dog, cat, dog]);
    let listed = |name: &str| ClassWeights::Listed(vec![(name.to_owned(), 3.0)]);
    assert_eq!(weights(text, listed("dog")).unwrap(), [1.0, 1.0, 3.0, 1.0, 3.0]);
    let why = weights(text, listed("dgo")).unwrap_err().message;
    assert!(why.contains("\"class_weights\" names dgo, and the classes are cat, dog"), "{why}");
    // A class that is only held out.
    assert_eq!(weights("kind\ncat\ncow\n", ClassWeights::Balanced).unwrap(), [1.0, 1.0]);
}

/// Labels that are read on demand: 5, 9, 7, 5, 9, 7, …
#[derive(Debug)]
struct Labels;

impl Rows for Labels {
    fn count(&self) -> usize {
        10_000
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::I64, &[])
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        Ok(Tensor::vector(places.iter().map(|place| [5i64, 9, 7][place % 3]).collect()))
    }
}

#[test]
fn keys_number_classes() {
    let numbers = Column::Held(Tensor::vector(vec![7i32, 3, 7, 9]));
    assert_eq!(numbers.keys().unwrap().unwrap(), [0, 1, 0, 2]);
    let texts = Column::Held(Tensor::vector(vec![b"a".to_vec(), b"b".to_vec(), b"a".to_vec()]));
    assert_eq!(texts.keys().unwrap().unwrap(), [0, 1, 0]);
    assert!(Column::Held(Tensor::vector(vec![0.5f32])).keys().unwrap().is_none());
    let read = Column::Elsewhere(std::sync::Arc::new(Labels)).keys().unwrap().unwrap();
    assert_eq!(read, (0..10_000).map(|place| place % 3).collect::<Vec<u32>>());
}

/// Rows that are read on demand, and the reads.
#[derive(Debug)]
struct Counted(std::sync::Mutex<Vec<Vec<usize>>>);

impl Rows for Counted {
    fn count(&self) -> usize {
        10
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::F64, &[2])
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        self.0.lock().unwrap().push(places.to_vec());
        let values = places.iter().flat_map(|&place| [place as f64, -(place as f64)]);
        Ok(Tensor::from_vec([places.len(), 2], values.collect::<Vec<_>>()))
    }
}

#[test]
fn rows_that_windows_share_are_read_once_and_in_order() {
    let window = Window { length: 3, ahead: None, is_range: false, stride: 2 };
    let counted = std::sync::Arc::new(Counted(std::sync::Mutex::default()));
    let rows = Column::Elsewhere(std::sync::Arc::clone(&counted) as _);
    let starts = vec![0, 2, 4, 6].into();
    let windows = Column::Windows(WindowRows::new(rows, starts, window, window.example(2)));
    let examples = Examples::of(vec![("x".to_owned(), windows)]).unwrap();
    let taken = examples.take(&[3, 0, 2], &[3]).unwrap().remove(0);
    let of = |start: i32| (start..start + 3).flat_map(|row| [f64::from(row), -f64::from(row)]);
    assert_eq!(taken, Tensor::from_vec([3, 3, 2], of(6).chain(of(0)).chain(of(4)).collect::<Vec<_>>()));
    // Rows 4 to 6 and 6 to 8 share one.
    assert_eq!(*counted.0.lock().unwrap(), [vec![0, 1, 2, 4, 5, 6, 7, 8]]);
}

#[test]
fn windows_of_another_process_fit_their_rows() {
    let rows = || Column::Held(Tensor::from_vec([6, 2], (0..12).map(|k| k as f32).collect::<Vec<_>>()));
    let window = Window { length: 3, ahead: Some((1, 2)), is_range: true, stride: 1 };
    let checked = |starts: &[usize], window: Window, example: &[usize]| {
        WindowRows::checked(rows(), starts.into(), window, example.to_vec()).map(|_| ())
    };
    checked(&[0, 1], window, &[2, 2]).unwrap();
    checked(&[0, 1], window, &[4]).unwrap();
    for (starts, window, example) in [
        (&[2usize][..], window, &[2, 2][..]),
        (&[usize::MAX], window, &[2, 2]),
        (&[0], window, &[3, 2]),
        (&[0], window, &[usize::MAX, 2]),
        (&[0], Window { length: 0, ..window }, &[2, 2]),
        (&[0], Window { ahead: Some((0, 2)), ..window }, &[3, 2]),
        (&[0], Window { ahead: Some((2, 1)), ..window }, &[0, 2]),
        (&[], Window { length: usize::MAX, ahead: None, ..window }, &[usize::MAX, 2]),
    ] {
        let failure = checked(starts, window, example).unwrap_err();
        assert!(failure.message.contains("do not fit"), "{starts:?} {window:?} {example:?}: {failure}");
    }
}
