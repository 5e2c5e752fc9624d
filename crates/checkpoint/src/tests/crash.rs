//! Tests of saves that end after each of their file operations, in a crash or because one operation fails: either the
//! previous save or the new one is complete, and the next save leaves no temporary files.

use super::*;
use crate::files::faults::{Fault, after};

type Tensors = Vec<(&'static str, &'static str, Tensor)>;

/// Fewer file operations than this are not a save.
const LEAST_OPERATIONS: u64 = 8;

/// Tensors of several kinds, with values that distinguish the saves.
fn generation(number: i32) -> Tensors {
    let many = (0..100_000).map(|i| i as f32 + number as f32 / 4.0).collect::<Vec<f32>>();
    vec![
        ("number", "", Tensor::scalar(number)),
        ("many", "", Tensor::vector(many)),
        ("words", "", Tensor::vector(vec![format!("save {number}").into_bytes(), Vec::new()])),
        ("parts", "4 0,2", Tensor::vector(vec![number, 1])),
        ("parts", "4 2,2", Tensor::vector(vec![2, number])),
    ]
}

/// The form of checkpoint that is saved, with its reader.
#[derive(Clone, Copy, Debug)]
enum Form {
    Bundle,
    V1,
}

impl Form {
    fn save(self, dir: &DataDir, number: i32) -> Result<()> {
        let tensors = generation(number);
        let parts: Vec<_> = tensors.iter().map(|(_, part, _)| Slice::parse(part).unwrap()).collect();
        let saved = tensors.iter().zip(&parts);
        let saved: Vec<Saved> =
            saved.map(|((name, _, tensor), part)| Saved::new(name.as_bytes(), tensor, part.as_ref())).collect();
        match self {
            Form::Bundle => save(dir, b"model", &saved),
            Form::V1 => v1::save(dir, b"model", &saved),
        }
    }

    fn restore(self, dir: &DataDir, name: &str, dtype: DType, part: &str) -> Result<Tensor> {
        match self {
            Form::Bundle => restore(dir, "model", name, dtype, part),
            Form::V1 => {
                let part = Slice::parse(part).unwrap();
                v1::Files::open(dir, b"model")?.tensor(name.as_bytes(), dtype, part.as_ref())
            }
        }
    }

    /// The number of the current save; checks that every tensor of it is complete.
    #[track_caller]
    fn whole(self, dir: &DataDir) -> i32 {
        let number = self.restore(dir, "number", DType::I32, "").unwrap().item::<i32>().unwrap();
        for (name, part, tensor) in generation(number) {
            let got = self.restore(dir, name, tensor.dtype(), part);
            assert!(
                got.as_ref() == Ok(&tensor),
                "{name} of save {number}: {:?}",
                got.map(|tensor| tensor.shape().clone())
            );
        }
        number
    }

    fn files(self) -> &'static [&'static str] {
        match self {
            Form::Bundle => &["data", "index"],
            Form::V1 => &["model"],
        }
    }
}

/// Names below a folder, of data files without their numbers.
fn kinds(dir: &DataDir) -> Vec<String> {
    let kind = |name: String| match name.strip_prefix("model.") {
        Some(rest) if !name.contains("tempstate") => rest.split('-').next().unwrap_or_default().to_owned(),
        _ => name,
    };
    files(dir).into_iter().map(kind).collect()
}

fn temporary(dir: &DataDir) -> Vec<String> {
    files(dir).into_iter().filter(|name| name.contains("tempstate")).collect()
}

fn check(form: Form, fault: Fault) {
    let mut left_behind = 0;
    for operations in 0.. {
        let (_folder, dir) = fresh();
        form.save(&dir, 1).unwrap();
        let (saved, came) = after(operations, fault, || form.save(&dir, 2));
        let there = form.whole(&dir);
        let case = format!("{form:?} {fault:?} after {operations}: {saved:?}, save {there} is there");
        assert!(there == 2 || (there == 1 && saved.is_err()), "{case}");
        if let Err(failure) = &saved {
            assert_eq!(failure.code, Code::ResourceExhausted, "{case}");
            assert!(failure.message.contains(dir.root().to_str().unwrap()), "it names no file: {case}");
        }
        left_behind += temporary(&dir).len();
        // A save that continues after the failure removes its files, unless the removal failed.
        assert!(fault == Fault::Crash || temporary(&dir).len() <= 1, "{case}: {:?}", temporary(&dir));

        form.save(&dir, 3).unwrap();
        assert_eq!(form.whole(&dir), 3, "{case}");
        assert_eq!(kinds(&dir), form.files(), "{case}");
        if !came {
            assert_eq!((saved, there), (Ok(()), 2));
            assert!(operations >= LEAST_OPERATIONS, "a save takes only {operations} file operations");
            assert!(fault == Fault::Once || left_behind > 0, "no crash left a temporary file");
            return;
        }
    }
}

#[test]
fn a_crash_leaves_one_save_whole() {
    check(Form::Bundle, Fault::Crash);
    check(Form::V1, Fault::Crash);
}

#[test]
fn an_operation_that_fails_leaves_one_save_whole() {
    check(Form::Bundle, Fault::Once);
    check(Form::V1, Fault::Once);
}

const PARTS: [&str; 2] = ["temp/part-00000-of-00002", "temp/part-00001-of-00002"];

/// Saves the halves of a generation, as two tasks do.
fn save_parts(dir: &DataDir, number: i32) {
    let tensors = generation(number);
    let (of_one, of_other) = tensors.split_at(2);
    save_all(dir, PARTS[0], of_one).unwrap();
    save_all(dir, PARTS[1], of_other).unwrap();
}

fn merge_parts(dir: &DataDir) -> Result<()> {
    merge(dir, &PARTS.map(str::as_bytes), b"model", true, false)
}

/// Whether both parts exist and are complete.
fn has_parts(dir: &DataDir, number: i32) -> bool {
    let tensors = generation(number);
    tensors.iter().enumerate().all(|(i, (name, part, tensor))| {
        restore(dir, PARTS[usize::from(i >= 2)], name, tensor.dtype(), part).as_ref() == Ok(tensor)
    })
}

#[test]
fn a_merge_that_ends_early_loses_neither_its_parts_nor_what_was_there() {
    for fault in [Fault::Crash, Fault::Once] {
        for operations in 0.. {
            let (_folder, dir) = fresh();
            save_parts(&dir, 1);
            merge_parts(&dir).unwrap();
            save_parts(&dir, 2);
            let (merged, came) = after(operations, fault, || merge_parts(&dir));
            let there = Form::Bundle.whole(&dir);
            let case = format!("{fault:?} after {operations}: {merged:?}, save {there} is there");
            assert!(there == 2 || (there == 1 && merged.is_err()), "{case}");
            if let Err(failure) = &merged {
                assert!(failure.message.contains(dir.root().to_str().unwrap()), "it names no file: {case}");
            }
            // A failed link is followed by a move, which leaves that part's data under its new name alone.
            let is_moved = fault == Fault::Once && (1..=PARTS.len() as u64).contains(&operations);
            assert!(there == 2 || is_moved || has_parts(&dir, 2), "the parts are lost: {case}");

            save_parts(&dir, 3);
            merge_parts(&dir).unwrap();
            assert_eq!(Form::Bundle.whole(&dir), 3, "{case}");
            assert_eq!(kinds(&dir), ["data", "data", "index"], "{case}");
            if !came {
                assert!(operations >= LEAST_OPERATIONS, "a merge takes only {operations} file operations");
                break;
            }
        }
    }
}
