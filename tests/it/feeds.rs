//! `--feed` from images, arrays, tables, JSON and text; `--out` by its extension; `--top` with labels.

use image::{Rgb, RgbImage};
use meshtf_tensor::{Tensor, npy};
use serde_json::json;

use crate::sandbox::Sandbox;

/// A graph with an input of each kind, and each as it is fed.
const INPUTS: &str = r#"{"version": 1, "nodes": {
    "first": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3, 1, 2]}},
    "last": {"op": "Placeholder", "attrs": {"dtype": "uint8", "shape": [1, 2, 3]}},
    "open": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, null, null, null]}},
    "bytes": {"op": "Placeholder", "attrs": {"dtype": "string", "shape": [null]}},
    "column": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
    "any": {"op": "Placeholder", "attrs": {"dtype": "int64"}},
    "f": {"op": "Identity", "inputs": ["first"]}, "l": {"op": "Identity", "inputs": ["last"]},
    "o": {"op": "Shape", "inputs": ["open"]}, "b": {"op": "StringLength", "inputs": ["bytes"]},
    "c": {"op": "Identity", "inputs": ["column"]}, "a": {"op": "Identity", "inputs": ["any"]},
    "both": {"op": "Mul", "inputs": ["column", 2.0]}}}"#;

/// One row of two pixels, (0, 51, 255) and (255, 102, 0), and its file.
fn picture(sandbox: &Sandbox, name: &str) -> String {
    let path = sandbox.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let pixels = [Rgb([0, 51, 255]), Rgb([255, 102, 0])];
    RgbImage::from_fn(2, 1, |x, _| pixels[x as usize]).save(&path).unwrap();
    path.display().to_string()
}

#[test]
fn images_become_what_an_input_takes() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", INPUTS);
    let run = |more: &[&str]| sandbox.run(&[&["run", &graph, "-q", "--fetch"], more].concat());
    let picture_at = |name: &str| picture(&sandbox, name);
    let (png, bmp) = (picture_at("a.png"), picture_at("a.bmp"));
    // Channels first by the shape; (51 / 255 - 0.2) / 0.5 = 0, (102 / 255 - 0.2) / 0.5 = 0.4.
    let options = ["--scale", "1/255", "--mean", "0,0.2,0.5", "--std", "1,0.5,0.25"];
    let fed = format!("first=@{png}");
    let shown = run(&[&["f", "--json", "--feed", &fed], &options[..]].concat()).expect(0).json();
    let value = &shown["values"]["f"]["value"];
    for (place, wanted) in [((0, 0), 0.0), ((0, 1), 1.0), ((1, 0), 0.0), ((1, 1), 0.4), ((2, 0), 2.0), ((2, 1), -2.0)] {
        let got = value[0][place.0][0][place.1].as_f64().unwrap();
        assert!((got - wanted).abs() < 1e-6, "{place:?}: {shown}");
    }
    // The only input that is needed, without a name and without an axis of images; every format.
    for file in [&png, &bmp] {
        run(&["l", "--feed", &format!("@{file}")]).prints("[[[  0  51 255]\n  [255 102   0]]]");
    }
    // Values that the dtype lacks are refused, or cut on request; an option may be for one feed.
    let halved = ["l", "--feed", &format!("last=@{png}"), "--scale", "last=1/2"];
    run(&halved).expect(2).complains(&["--feed last", "0.5 (float64) does not fit uint8", "--as uint8"]);
    run(&[&halved[..], &["--as", "uint8"]].concat()).prints("[[[  0  25 127]\n  [127  51   0]]]");
    // A folder is a batch, in the order of names; JPEG and GIF are read, too.
    for name in ["photos/b.jpg", "photos/c.gif", "photos/a.png"] {
        picture_at(name);
    }
    let folder = sandbox.path("photos").display().to_string();
    let shapes = |size: &str, layout: &str| {
        run(&["o", "--feed", &format!("open=@{folder}"), "--layout", layout, "--size", size])
    };
    shapes("4,5", "NCHW").prints("[3 3 4 5]");
    shapes("7", "nhwc").prints("[3 7 7 3]");
    run(&["o", "--feed", &format!("open=@{folder}")]).expect(2).complains(&["[?,?,?,?]", "--layout NCHW or NHWC"]);
    // An input of strings takes the files' bytes.
    let length = std::fs::metadata(&png).unwrap().len();
    run(&["b", "--feed", &format!("bytes=@{png}")]).prints(&format!("[{length}]"));
    // Another size is resized to that of the input, and mentioned.
    let large = sandbox.path("large.png");
    RgbImage::from_pixel(8, 4, Rgb([9, 8, 7])).save(&large).unwrap();
    let large = format!("last=@{}", large.display());
    let ended = sandbox.run(&["run", &graph, "--fetch", "l", "--feed", &large]);
    ended.prints("[[[9 8 7]\n  [9 8 7]]]").complains(&["8 by 4 pixels, resized to 2 by 1"]);
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", INPUTS);
    let refused = |more: &[&str], says: &[&str]| {
        sandbox.run(&[&["run", &graph, "--fetch"], more].concat()).expect(2).complains(says);
    };
    let png = picture(&sandbox, "a.png");
    let last = format!("last=@{png}");
    refused(&["l", "--feed", &last, "--size", "9,9"], &["--size 9,9 does not fit the input, uint8[1,2,3]"]);
    refused(&["l", "--feed", &last, "--mean", "1,2"], &["--mean has 2 numbers for 3 channels"]);
    refused(&["l", "--feed", &last, "--std", "0"], &["--std: a number is 0"]);
    refused(&["l", "--feed", &last, "--size", "first=3"], &["--size first=…: no file is fed to first", "last"]);
    refused(&["c", "--feed", &format!("column=@{png}")], &["--feed column: ", "float32 of shape [?,1]"]);
    refused(&["c", "--feed", "column=[[1]]", "--scale", "2"], &["--scale: no file of --feed is an image"]);
    picture(&sandbox, "two/a.png");
    picture(&sandbox, "two/b.png");
    let two = format!("last=@{}", sandbox.path("two").display());
    refused(&["l", "--feed", &two], &["has 2 images, and the input, uint8[1,2,3], takes one"]);
    let broken = sandbox.file("broken.png", "text");
    refused(&["l", "--feed", &format!("last=@{broken}")], &["broken.png", "the content is text"]);
    let webp = sandbox.file("x.webp", b"RIFF\x10\0\0\0WEBPVP8 ");
    refused(&["l", "--feed", &format!("last=@{webp}")], &["x.webp is a WebP image", ".png"]);
}

#[test]
fn numbers_come_from_text_json_and_archives() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", INPUTS);
    let run = |fetch: &str, feed: &str, more: &[&str]| {
        sandbox.run(&[&["run", &graph, "-q", "--fetch", fetch, "--feed", feed], more].concat())
    };
    let text = sandbox.file("n.txt", "# two rows\n1 2\n3 9007199254740993\n");
    run("a", &format!("any=@{text}"), &[])
        .prints("[[               1                2]\n [               3 9007199254740993]]");
    let ragged = sandbox.file("r.txt", "1 2\n3\n");
    run("a", &format!("any=@{ragged}"), &[]).expect(2).complains(&["line 2 has 1 number, and line 1 has 2"]);
    // A column of numbers is a matrix of one column where an input takes only that; numbers of a named feed are scaled.
    let lines = sandbox.file("c.txt", "1\n2.5\n");
    run("c", &format!("column=@{lines}"), &[]).prints("[[1. ]\n [2.5]]");
    run("c", &format!("column=@{lines}"), &["--scale", "column=2", "--as", "column=int32"]).prints("[[2.]\n [5.]]");
    let json =
        sandbox.file("v.json", r#"{"column": [[1.5], [2]], "any": {"dtype": "int64", "shape": [2], "value": 7}}"#);
    run("a", &format!("any=@{json}:any"), &[]).prints("[7 7]");
    run("a", &format!("any=@{json}"), &[]).expect(2).complains(&["say which member", "FILE:column"]);
    run("a", &format!("any=@{json}:an"), &[]).expect(2).complains(&["no member an", "column, any"]);
    let bare = sandbox.file("bare.json", "[[3], [4]]");
    run("both", &format!("@{bare}"), &[]).prints("[[6.]\n [8.]]");
    // Each member of a file goes to the input of its name.
    run("c,a", &format!("@{json}"), &[]).prints("c:\n[[1.5]\n [2. ]]\na: [7 7]");
    let archive = sandbox.path("x.npz");
    let arrays =
        [("any".to_owned(), Tensor::scalar(3i64)), ("column".to_owned(), Tensor::from_vec([1, 1], vec![2f32]))];
    meshtf_train::data::write_npz(std::fs::File::create(&archive).unwrap(), &arrays).unwrap();
    let archive = archive.display().to_string();
    run("c,a", &format!("@{archive}"), &[]).prints("c: [[2.]]\na: 3");
    run("c,a", &format!("@{archive}"), &["--feed", "any=1"]).expect(2).complains(&["any is fed more than once"]);
    run("c,a", &format!("@{bare}"), &[]).expect(2).complains(&["say which input it is for", "any=@"]);
    // Both shapes, and the axis that is missing.
    let shape = run("f", "first=[[[1, 2]], [[3, 4]], [[5, 6]]]", &[]).expect(2);
    shape.complains(&[
        "float32 of shape [3,1,2]",
        "float32 of shape [?,3,1,2]",
        "a value of shape [1,3,1,2] would fit",
    ]);
}

#[test]
fn the_extension_of_out_says_the_form() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", INPUTS);
    let run = |fetch: &str, out: &str| {
        let out = sandbox.path(out).display().to_string();
        sandbox.run(&["run", &graph, "--fetch", fetch, "--feed", "column=[[0.1], [2]]", "--feed", "any=5", "-o", &out])
    };
    let bytes = |name: &str| std::fs::read(sandbox.path(name)).unwrap();
    run("c", "c.npy").prints("").complains(&["c -> "]);
    assert_eq!(npy::read(&bytes("c.npy")).unwrap(), Tensor::from_vec([2, 1], vec![0.1f32, 2.0]), "as it is");
    run("c,a", "new/all.npz").prints("");
    assert_eq!(meshtf_train::data::read_npz(&bytes("new/all.npz"), Some("a")).unwrap(), Tensor::scalar(5i64));
    run("c,a", "all.json").prints("");
    let all: serde_json::Value = serde_json::from_slice(&bytes("all.json")).unwrap();
    assert_eq!(all["a"], json!({ "dtype": "int64", "shape": [], "value": 5 }));
    // Such a file can be fed.
    let again = format!("any=@{}:a", sandbox.path("all.json").display());
    sandbox.run(&["run", &graph, "-q", "--fetch", "a", "--feed", &again]).prints("5");
    run("c", "c.csv").prints("");
    assert_eq!(String::from_utf8(bytes("c.csv")).unwrap(), "example,c\n0,0.1\n1,2\n");
    run("a", "a.csv").prints("");
    assert_eq!(String::from_utf8(bytes("a.csv")).unwrap(), "example,a\n0,5\n", "one number");
    run("c,a", "c.npy").expect(2).complains(&["2 tensors are fetched", ".npz"]);
    run("c", "c.h5").expect(2).complains(&["unknown extension .h5; expected .npy, .npz, .csv, .json, .jsonl"]);
    assert!(!sandbox.path("c.h5").exists());
}

#[test]
fn the_best_classes_have_their_labels() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}},
            "y": {"op": "Softmax", "inputs": ["x"]}, "z": {"op": "Mul", "inputs": ["x", 2.0]}}}"#,
    );
    let labels = sandbox.file("labels.txt", "cat\ndog\nfish\n");
    // Powers of e to ln 1, ln 2, ln 5: probabilities of 1/8, 2/8, 5/8.
    let feed = "x=[[0, 0.6931472, 1.609438], [9, 0, 0]]";
    let run = |fetch: &str, more: &[&str]| {
        sandbox.run(&[&["run", &graph, "-q", "--feed", feed, "--top", "2", "--fetch", fetch], more].concat())
    };
    let lines = run("y", &["--labels", &labels]).expect(0).stdout;
    assert!(lines.starts_with("example,class,label,probability\n0,2,fish,0.62"), "{lines}");
    assert!(lines.contains("\n0,1,dog,0.2") && lines.contains("\n1,0,cat,0.999"), "{lines}");
    let shown = run("z", &["--json"]).expect(0).json();
    let best = &shown["top"]["z"][1][0];
    assert_eq!((best["class"].as_u64(), best["value"].as_f64()), (Some(0), Some(18.0)), "{shown}");
    let out = sandbox.path("top.jsonl").display().to_string();
    run("z", &["-o", &out]).prints("");
    let lines = std::fs::read_to_string(&out).unwrap();
    assert!(lines.starts_with(r#"{"example":0,"top":[{"class":2,"#) && lines.lines().count() == 2, "{lines}");
    run("y,z", &[]).expect(2).complains(&["--top ranks the values of one tensor, and 2 are fetched"]);
    run("y", &["-o", &sandbox.path("t.npy").display().to_string()]).expect(2).complains(&[".csv, .json or .jsonl"]);
    let few = sandbox.file("few.txt", "cat\n");
    run("y", &["--labels", &few]).expect(2).complains(&["it has 1 label, and y has 3 classes"]);
}
