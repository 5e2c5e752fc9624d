//! Texts as the examples of a training, and of new files.

use meshtf_graph::Graph;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::data::{Examples, HoldOutBy};
use meshtf_train::file;
use meshtf_train::model::Model;
use temp_dir::TempDir;

use super::super::source::{Fits, load, unseen};
use super::super::{Found, Loaded};
use super::*;

/// A placeholder x for tokens, y for a class, and s for strings.
fn graph(length: Option<usize>) -> Graph {
    let m = Model::new();
    m.placeholder("x", DType::I32, [None, length]);
    m.placeholder("y", DType::I32, [None]);
    m.placeholder("s", DType::String, [None]);
    m.finish().unwrap()
}

fn loaded(folder: &TempDir, length: Option<usize>, feed: &str, more: &str) -> Result<Loaded, Error> {
    let text = format!(
        r#"{{"data": {{"feed": {{{feed}}}, "batch": 1{more}}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
    );
    load(&file::read(&text).unwrap(), &graph(length), folder.path(), &Found::default())
}

fn all(examples: &Examples) -> Vec<Tensor> {
    let places: Vec<usize> = (0..examples.len()).collect();
    examples.take(&places, &[places.len()]).unwrap()
}

fn fits(loaded: &Loaded) -> Fits {
    loaded.data.fits.clone()
}

/// Columns of a table, lines, files of a folder: each with the vocabulary of the part that is trained with.
#[test]
fn words_of_columns_lines_and_files_are_numbered_alike() {
    let folder = TempDir::new().unwrap();
    let texts = ["Good, good film", "bad film", "a good day!", "bad bad day", "never seen"];
    let label = |i: usize| if i.is_multiple_of(2) { "pos" } else { "neg" };
    let table: String = (0..5).map(|i| format!("\"{}\",{}\n", texts[i], label(i))).collect();
    std::fs::write(folder.child("t.csv"), format!("review,kind\n{table}")).unwrap();
    std::fs::write(folder.child("t.txt"), texts.join("\n")).unwrap();
    // By frequency; of equals, the last by name comes first.
    let words = ["good", "bad", "film", "day", "a"];
    let wanted = [[2, 2, 4], [3, 4, 0], [6, 2, 5], [3, 3, 5], [1, 1, 0]];
    for feed in [
        r#""x": {"file": "t.csv", "columns": "review", "tokens": "words"}"#,
        r#""x": {"file": "t.txt", "tokens": "words"}"#,
    ] {
        let loaded = loaded(&folder, Some(3), feed, r#", "hold_out": {"last": 0.2}"#).unwrap();
        let (trained, held) = loaded.data.train.split_by(&HoldOutBy::Last, 0.2, 0).unwrap();
        assert_eq!((trained.len(), held.len()), (4, 1));
        assert_eq!(fits(&loaded)["x"].vocabulary, words, "{feed}");
        assert_eq!(all(&loaded.data.train)[0], Tensor::from_vec([5, 3], wanted.concat()), "{feed}");
        // A new file is read by the same vocabulary.
        let source = file::read(&format!(
            r#"{{"data": {{"feed": {{{feed}}}, "batch": 1}},
                "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 1}}}}"#
        ));
        let mut sources = source.unwrap().data.feed;
        let new = if feed.contains("csv") { ("n.csv", "review\nday of film\n") } else { ("n.txt", "day of film\n") };
        std::fs::write(folder.child(new.0), new.1).unwrap();
        sources[0].1.file = folder.child(new.0).display().to_string();
        let read = |sources: &[(String, file::DataSource)]| {
            unseen(&graph(Some(3)), sources, &HoldOutBy::Random, &fits(&loaded), true).unwrap()
        };
        let (examples, known) = read(&sources);
        assert_eq!(all(&examples)[0], Tensor::from_vec([1, 3], vec![5, 1, 4]));
        assert_eq!(known.remarks, [""; 0]);
        // A longer one is cut, with a remark that has no advice for a training.
        std::fs::write(folder.child(new.0), new.1.replace("day of", "day of day of")).unwrap();
        let (examples, known) = read(&sources);
        assert_eq!(all(&examples)[0], Tensor::from_vec([1, 3], vec![5, 1, 5]));
        let [remark] = &known.remarks[..] else { panic!("{:?}", known.remarks) };
        assert!(remark.contains(": 1 of 1 ") && remark.ends_with("; the rest of each is left out"), "{remark}");
        let without =
            unseen(&graph(Some(3)), &sources, &HoldOutBy::Random, &Fits::new(), true).err().unwrap().to_string();
        assert!(without.contains("its vocabulary was measured when the model was trained"), "{without}");
    }
}

#[test]
fn a_folder_of_texts_has_classes() {
    let folder = TempDir::new().unwrap();
    for (name, text) in [("neg/a.txt", "bad\r\nfilm"), ("neg/b.txt", "\u{feff}bad"), ("pos/a.txt", "good film")] {
        let path = folder.child("reviews").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let feed = r#""y": {"classes": "reviews"}, "x": {"texts": "reviews", "tokens": "words", "vocabulary": 4},
                  "s": {"texts": "reviews"}"#;
    let loaded = loaded(&folder, None, feed, "").unwrap();
    let tensors = all(&loaded.data.train);
    assert_eq!(tensors[0], Tensor::vector(vec![0i32, 0, 1]));
    // Two of three words have numbers: film and bad occur twice.
    assert_eq!(tensors[1], Tensor::from_vec([3, 2], vec![3, 2, 3, 0, 1, 2]));
    assert_eq!(tensors[2], Tensor::vector(vec![b"bad\r\nfilm".to_vec(), b"bad".to_vec(), b"good film".to_vec()]));
    assert_eq!(loaded.remarks, ["reviews: 3 texts; classes: 0 neg, 1 pos"]);
    assert_eq!(fits(&loaded)["y"].labels["class"], ["neg", "pos"]);
    std::fs::write(folder.child("reviews/pos/x.png"), b"").unwrap();
    let refused = self::loaded(&folder, None, feed, "").unwrap_err().to_string();
    assert!(refused.contains("pos/x.png is not a text: it is an empty file; expected texts, .txt"), "{refused}");
}

#[test]
fn a_line_that_is_too_long_is_cut_with_a_remark() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.txt"), "abc\nabcdef\n\n").unwrap();
    let loaded = loaded(&folder, Some(4), r#""x": "t.txt""#, "").unwrap();
    assert_eq!(all(&loaded.data.train)[0], Tensor::from_vec([3, 4], vec![97, 98, 99, 0, 97, 98, 99, 100, 0, 0, 0, 0]));
    let remark = "t.txt: 1 of 3 lines have more than the 4 bytes of an example, up to 6; the rest of each is left out";
    assert!(loaded.remarks.len() == 1 && loaded.remarks[0].starts_with(remark), "{:?}", loaded.remarks);
    assert!(loaded.remarks[0].contains("\"window\" cuts the whole text"), "{:?}", loaded.remarks);
}

#[test]
fn a_text_is_cut_into_windows_with_the_vocabulary_of_the_first_part() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.txt"), "abcabcabcd").unwrap();
    let feed = r#""x": {"file": "t.txt", "tokens": "characters", "window": {"length": 2}},
                  "y": {"file": "t.txt", "tokens": "characters", "window": {"length": 2, "ahead": 1}}"#;
    let loaded = loaded(&folder, Some(2), feed, r#", "hold_out": {"last": 0.4}"#).unwrap();
    assert_eq!(fits(&loaded)["x"].vocabulary, ["c", "b", "a"]);
    let (trained, held) = loaded.data.train.split_by(&HoldOutBy::Last, 0.4, 0).unwrap();
    // abcabc, and abcd, of which d is unknown.
    let [x, y] = &all(&trained)[..] else { panic!() };
    assert_eq!(*x, Tensor::from_vec([4, 2], vec![4, 3, 3, 2, 2, 4, 4, 3]));
    assert_eq!(*y, Tensor::vector(vec![2, 4, 3, 2]));
    let [x, y] = &all(&held)[..] else { panic!() };
    assert_eq!((x.slice::<i32>().unwrap(), y.slice::<i32>().unwrap()), (&[4, 3, 3, 2][..], &[2, 1][..]));
    let refused = |feed: &str, more: &str, why: &str| {
        let refused = self::loaded(&folder, Some(2), feed, more).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    };
    refused(feed, r#", "hold_out": 0.4"#, "state {\"last\": SHARE}");
    refused(feed, r#", "hold_out": {"last": 0.9}"#, "an example is 3 tokens, and the text has 1 that are trained with");
    let x = r#""x": {"file": "t.txt", "tokens": "characters", "window": {"length": 2}}"#;
    refused(&format!(r#"{x}, "y": {{"file": "t.txt", "window": {{"length": 3}}}}"#), "", "all examples are windows");
    std::fs::write(folder.child("y.npy"), b"").unwrap();
    refused(r#""s": {"file": "t.txt", "window": {"length": 2}}"#, "", "the placeholder takes strings");
    refused(r#""x": {"file": "t.txt", "window": {"length": 3}}"#, "", "an example has shape [3]");
    std::fs::write(folder.child("u.txt"), "abc").unwrap();
    let y = r#""y": {"file": "u.txt", "tokens": "characters", "window": {"length": 2, "ahead": 1}}"#;
    refused(&format!("{x}, {y}"), "", "it has 3 tokens, and the text of x 10");
}

#[test]
fn vocabularies_are_stated_or_read() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.txt"), "b a c\n").unwrap();
    std::fs::write(folder.child("v.txt"), "a\nb\n").unwrap();
    for vocabulary in [r#"["a", "b"]"#, r#""v.txt""#] {
        let feed = format!(r#""x": {{"file": "t.txt", "tokens": "words", "vocabulary": {vocabulary}}}"#);
        let loaded = loaded(&folder, Some(3), &feed, "").unwrap();
        assert_eq!(all(&loaded.data.train)[0], Tensor::from_vec([1, 3], vec![3, 2, 1]));
        assert_eq!(fits(&loaded)["x"].vocabulary, ["a", "b"], "it is kept with the weights");
    }
    std::fs::write(folder.child("v.txt"), "a\na\n").unwrap();
    let feed = r#""x": {"file": "t.txt", "tokens": "words", "vocabulary": "v.txt"}"#;
    let refused = loaded(&folder, Some(3), feed, "").unwrap_err().to_string();
    assert!(
        refused.contains("the vocabulary v.txt: the vocabulary has \"a\" twice; the second is token 2"),
        "{refused}"
    );
}
