//! Trainings with data of other forms than tables.

use meshtf::trainer::stored;

use super::*;

/// A graph of one matrix product, `[examples, 12]` of `x` to two classes `y`, trained with these feeds.
fn classifier(folder: &TempDir, reshaped: bool, x: &str, y: &str, feeds: &str) {
    let flat = if reshaped { r#""flat": {"op": "Reshape", "inputs": ["x", [-1, 12]]},"# } else { "" };
    let input = if reshaped { "flat" } else { "x" };
    let graph = format!(
        r#"{{"version": 1, "variables": {{"w": {{"shape": [12, 2]}}, "b": {{"shape": [2]}}}},
        "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {x}}}}},
            "y": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": {y}}}}}, {flat}
            "xw": {{"op": "MatMul", "inputs": ["{input}", "w"]}}, "logits": {{"op": "AddV2", "inputs": ["xw", "b"]}},
            "each": {{"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]}},
            "loss": {{"op": "Mean", "inputs": ["each", 0]}}}},
        "data": {{"feed": {feeds}, "batch": 4}},
        "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.5, "steps": 60}}}}"#
    );
    std::fs::write(folder.child("graph.json"), graph).unwrap();
}

/// The result of a training on 12 inputs: the weight of each for the second class.
async fn learned(folder: &TempDir) -> Vec<f32> {
    let dir = folder.child("run").display().to_string();
    run(folder, &["--checkpoint", &dir]).await.unwrap_or_else(|trouble| panic!("{trouble}"));
    let saved = saved(folder, "run", 60);
    let w = floats(&saved.iter().find(|(name, _)| name == "w").unwrap().1);
    w.chunks(2).map(|pair| pair[1] - pair[0]).collect()
}

fn image(folder: &TempDir, name: &str, width: u32, colour: [u8; 3]) {
    let path = folder.child(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(width, 2, image::Rgb(colour)).save(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_images_has_a_folder_for_each_class() {
    let folder = TempDir::new().unwrap();
    for i in 0..4u8 {
        image(&folder, &format!("photos/green/{i}.png"), 2, [i, 250, 0]);
        image(&folder, &format!("photos/red/{i}.bmp"), 2, [250, i, 0]);
    }
    std::fs::write(folder.child("photos/.hidden"), "").unwrap();
    let feeds = r#"{"x": {"images": "photos", "scale": 0.004}, "y": {"classes": "photos"}}"#;
    classifier(&folder, true, "[null, 2, 2, 3]", "[null]", feeds);
    // The second class is red: each pixel's red has a positive weight, its green a negative one, its blue was always 0.
    for pixel in learned(&folder).await.chunks(3) {
        assert!(pixel[0] > 0.1 && pixel[1] < -0.1 && pixel[2] == 0.0, "{pixel:?}");
    }
    let refused = async |why: &str| {
        let trouble = run(&folder, &[]).await.unwrap_err();
        assert!(trouble.exit == Exit::BadInput && trouble.to_string().contains(why), "{trouble}");
    };
    // Images get the size of the placeholder, or that of the section if the placeholder has none.
    image(&folder, "photos/red/wide.png", 3, [1, 1, 1]);
    run(&folder, &[]).await.unwrap();
    classifier(&folder, true, "[null, null, 2, 3]", "[null]", feeds);
    refused(
        "data for x: photos: red/wide.png: it is 2 pixels high and 3 wide, and the first image 2 and 2: state the size",
    )
    .await;
    classifier(
        &folder,
        true,
        "[null, null, null, 3]",
        "[null]",
        &feeds.replace(r#""scale""#, r#""size": [2, 2], "scale""#),
    );
    run(&folder, &[]).await.unwrap();
    // Images that are evaluated get the size of those of the training.
    let text = std::fs::read_to_string(folder.child("graph.json")).unwrap();
    let evaluate = format!(r#""steps": 60}}, "evaluate": {{"every": 60, "feed": {feeds}}}}}"#);
    std::fs::write(folder.child("graph.json"), text.replace(r#""steps": 60}}"#, &evaluate)).unwrap();
    run(&folder, &[]).await.unwrap();
    for name in ["photos/red/Thumbs.db", "photos/red/.DS_Store", "photos/desktop.ini"] {
        std::fs::write(folder.child(name), "left").unwrap();
    }
    run(&folder, &[]).await.unwrap();
    std::fs::write(folder.child("photos/red/notes.txt"), "my notes").unwrap();
    refused("red/notes.txt is not an image: it is text; expected images, .png, .jpg").await;
    std::fs::remove_file(folder.child("photos/red/notes.txt")).unwrap();
    std::fs::write(folder.child("photos/red/a.webp"), b"RIFF\x24\0\0\0WEBPVP8 ").unwrap();
    refused("red/a.webp is a WebP image by its content; expected").await;
    std::fs::rename(folder.child("photos/red/a.webp"), folder.child("photos/red/a.png")).unwrap();
    refused("red/a.png: not a valid image: the content is a WebP image; expected PNG, JPEG, BMP or GIF").await;
    std::fs::remove_file(folder.child("photos/red/a.png")).unwrap();
    std::fs::create_dir(folder.child("photos/red/old")).unwrap();
    refused("red/old is a folder; expected images").await;
    std::fs::remove_dir(folder.child("photos/red/old")).unwrap();
    std::fs::write(folder.child("photos/red/cut.png"), b"\x89PNG\r\n\x1a\n").unwrap();
    refused("photos: red/cut.png: not a valid image").await;
    std::fs::create_dir(folder.child("photos/blue")).unwrap();
    refused("the class blue has no image").await;
    classifier(&folder, true, "[null, 2, 2, 3]", "[null]", r#"{"x": {"images": "none"}, "y": {"classes": "none"}}"#);
    refused("data for x: none: ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_and_text_are_examples() {
    let folder = TempDir::new().unwrap();
    let labels = Tensor::vector(vec![0i64, 1, 0, 1]);
    let mut x = Tensor::zeros(DType::F64, [4, 12]).unwrap();
    x.slice_mut::<f64>().unwrap()[12..24].fill(1.0);
    x.slice_mut::<f64>().unwrap()[36..48].fill(1.0);
    let mut file = std::fs::File::create(folder.child("d.npz")).unwrap();
    meshtf_train::data::write_npz(&mut file, &[("x".to_owned(), x), ("labels".to_owned(), labels)]).unwrap();
    classifier(&folder, false, "[null, 12]", "[null]", r#"{"x": "d.npz:x", "y": "d.npz:labels"}"#);
    let learned = learned(&folder).await;
    assert!(learned.iter().all(|w| *w > 0.1), "{learned:?}");
    // The bytes of a line, padded.
    std::fs::write(folder.child("lines.txt"), "ab\nabcdefghijkl\n\nb\n").unwrap();
    std::fs::write(folder.child("labels.csv"), "label\n0\n1\n0\n1\n").unwrap();
    let feeds = r#"{"x": {"file": "lines.txt", "scale": 0.01}, "y": "labels.csv:label"}"#;
    classifier(&folder, false, "[null, 12]", "[null]", feeds);
    run(&folder, &[]).await.unwrap();
    // A line that is too long is cut off, and ends nothing.
    std::fs::write(folder.child("lines.txt"), "ab\nabcdefghijklm\n\nb\n").unwrap();
    run(&folder, &[]).await.unwrap();
}

/// The same examples in the same order, whether they are sent or are on the workers.
#[tokio::test(flavor = "multi_thread")]
async fn data_on_the_workers_teaches_what_data_that_is_sent_does() {
    let x: Vec<f64> = (0..400).map(|i| f64::from(i * 37 % 101) - 50.0).collect();
    let y: Vec<i32> = x.chunks(2).map(|pair| i32::from(pair[0] * pair[1] > 0.0)).collect();
    for (train, exact) in [
        (r#", "steps": 40"#, true),
        (r#", "steps": 40, "workers": 2, "ps": 1"#, true),
        (r#", "steps": 40, "workers": 2, "mode": "mirrored""#, true),
        // The result of these depends on which worker is first.
        (r#", "steps": 40, "workers": 2, "ps": 1, "mode": "async""#, false),
    ] {
        let folder = files(train, "");
        std::fs::create_dir(folder.child("there")).unwrap();
        // Elements of another dtype, most significant byte first.
        let mut bytes = npy::write(&Tensor::from_vec([200, 2], x.clone())).unwrap();
        let at = bytes.windows(3).position(|word| word == b"<f8").unwrap();
        bytes[at] = b'>';
        let begin = bytes.len() - 8 * x.len();
        bytes[begin..].chunks_mut(8).for_each(<[u8]>::reverse);
        for (name, bytes) in [("x.npy", bytes), ("y.npy", npy::write(&Tensor::vector(y.clone())).unwrap())] {
            std::fs::write(folder.child("there").join(name), &bytes).unwrap();
            std::fs::write(folder.child(name), bytes).unwrap();
        }
        let text = std::fs::read_to_string(folder.child("graph.json")).unwrap();
        let (table, labels) =
            (r#"{"file": "points.csv", "columns": ["a", "b"]}"#, r#"{"file": "points.csv", "columns": ["label"]}"#);
        assert!(text.contains(table) && text.contains(labels));
        let mut ends = Vec::new();
        for (run_dir, key) in [("sent", "file"), ("there_run", "on_workers")] {
            let x = format!(r#"{{"{key}": "x.npy", "scale": 0.02}}"#);
            let y = format!(r#"{{"{key}": "y.npy"}}"#);
            std::fs::write(folder.child("graph.json"), text.replace(table, &x).replace(labels, &y)).unwrap();
            let [dir, data, log] =
                [run_dir, "there", &format!("log_{run_dir}")].map(|name| folder.child(name).display().to_string());
            run(&folder, &["--checkpoint", &dir, "--data", &data, "--log", &log]).await.unwrap();
            let lines = std::fs::read_to_string(folder.child(format!("log_{run_dir}")).join("log.jsonl")).unwrap();
            let numbers: Vec<serde_json::Value> = lines
                .lines()
                .map(|line| {
                    let line: serde_json::Value = serde_json::from_str(line).unwrap();
                    serde_json::json!([line["step"], line["values"], line["evaluated"]])
                })
                .collect();
            ends.push((saved(&folder, run_dir, 40), numbers));
        }
        if exact {
            assert_eq!(ends[0].1, ends[1].1, "{train}");
            assert!(ends[0].0 == ends[1].0, "{train}");
        }
    }
    let folder = files(r#", "steps": 4"#, "");
    std::fs::create_dir(folder.child("there")).unwrap();
    let data = folder.child("there").display().to_string();
    let text = std::fs::read_to_string(folder.child("graph.json")).unwrap();
    let table = r#"{"file": "points.csv", "columns": ["a", "b"]}"#;
    std::fs::write(folder.child("graph.json"), text.replace(table, r#"{"on_workers": "x.npy"}"#)).unwrap();
    for (tensor, why) in [
        (None, "meshtf node --data"),
        (Some(Tensor::from_vec([200, 3], vec![0f32; 600])), "an example has shape [3], and the placeholder takes"),
        (Some(Tensor::from_vec([100, 2], vec![0f32; 200])), "there are 100 examples for x, and 200 for y"),
        (Some(Tensor::from_vec([200, 2], vec![0i64; 400])), "it is int64, and the placeholder takes float32"),
    ] {
        if let Some(tensor) = tensor {
            std::fs::write(folder.child("there").join("x.npy"), npy::write(&tensor).unwrap()).unwrap();
        }
        let trouble = run(&folder, &["--data", &data]).await.unwrap_err();
        assert!(trouble.exit == Exit::BadInput && trouble.to_string().contains(why), "{trouble}\nwanted {why}");
        assert!(trouble.to_string().contains("x.npy") || why.starts_with("there are"), "{trouble}");
    }
    let wrong = text.replace(table, r#"{"on_workers": "../x.npy"}"#);
    std::fs::write(folder.child("graph.json"), wrong).unwrap();
    let trouble = run(&folder, &["--data", &data]).await.unwrap_err();
    assert!(trouble.to_string().contains("is named from their folder"), "{trouble}");
}

/// A model of 3 by 3 pixels, whose images are augmented; the loss has the metric `seen`, the sum of the pixels of a batch.
fn augmented(train: &str, augment: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for i in 0..12u8 {
        let path = folder.child(format!("photos/{}/{i}.png", ["a", "b"][usize::from(i % 2)]));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let pixel = |x: u32, y: u32| image::Luma([i * 11 + (y * 7 + x * 13) as u8]);
        image::GrayImage::from_fn(3 + u32::from(i % 3), 4, pixel).save(path).unwrap();
    }
    let graph = format!(
        r#"{{"version": 1, "variables": {{"w": {{"shape": [9, 2]}}}}, "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, 3, 3, 1]}}}},
            "y": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": [null]}}}},
            "flat": {{"op": "Reshape", "inputs": ["x", [-1, 9]]}}, "logits": {{"op": "MatMul", "inputs": ["flat", "w"]}},
            "each": {{"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]}},
            "loss": {{"op": "Mean", "inputs": ["each", 0]}}, "seen": {{"op": "Mean", "inputs": ["flat", [0, 1]]}}}},
        "data": {{"feed": {{"x": {{"images": "photos", "scale": 0.01{augment}}}, "y": {{"classes": "photos"}}}}, "batch": 4,
            "shuffle": 3, "hold_out": 0.25}},
        "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.5, "steps": 8, "metrics": ["seen"]{train}}},
        "evaluate": {{"every": 4, "metrics": ["seen"]}}}}"#
    );
    std::fs::write(folder.child("graph.json"), graph).unwrap();
    folder
}

/// The means of the pixels of the evaluations, from the log.
fn seen(folder: &TempDir, log: &str) -> Vec<serde_json::Value> {
    let lines = std::fs::read_to_string(folder.child(log).join("log.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line["evaluated"].is_object()).map(|line| line["evaluated"]["seen"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn augmented_images_are_the_same_for_any_number_of_workers_and_after_a_pause() {
    const AUGMENT: &str = r#", "augment": {"flip": "both", "crop": 0.3, "brightness": 0.2}"#;
    let end = async |train: &str, augment: &str, pause: bool| {
        let folder = augmented(train, augment);
        let [dir, log] = ["run", "log"].map(|name| folder.child(name).display().to_string());
        if pause {
            run(&folder, &["--checkpoint", &dir, "--steps", "5"]).await.unwrap();
            run(&folder, &["--checkpoint", &dir, "--resume", "--log", &log]).await.unwrap();
        } else {
            run(&folder, &["--checkpoint", &dir, "--log", &log]).await.unwrap();
        }
        let saved = saved(&folder, "run", 8);
        let w = floats(&saved.iter().find(|(name, _)| name == "w").unwrap().1);
        (w, seen(&folder, "log"))
    };
    let one = end("", AUGMENT, false).await;
    assert_eq!(end("", AUGMENT, false).await, one);
    assert_eq!(end("", AUGMENT, true).await.0, one.0);
    let two = end(r#", "workers": 2, "mode": "mirrored""#, AUGMENT, false).await;
    // The mean of two halves of a batch is rounded differently.
    for (a, b) in one.0.iter().zip(&two.0) {
        assert!((a - b).abs() < 1e-5, "{one:?} {two:?}");
    }
    let plain = end("", "", false).await;
    assert!(plain.0.iter().zip(&one.0).any(|(a, b)| (a - b).abs() > 1e-3), "{plain:?} {one:?}");
    // The images that are held out are as they are.
    assert!(!one.1.is_empty());
    assert_eq!(plain.1, one.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_is_continued_with_the_options_of_its_images() {
    let folder = augmented("", r#", "augment": {"flip": "both", "crop": 0.25}"#);
    let (file, dir) = (folder.child("graph.json"), folder.child("run").display().to_string());
    run(&folder, &["--checkpoint", &dir, "--steps", "4"]).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let state = folder.child("run").join("step-000000000004.safetensors");
    for (find, replace, differ) in [
        (r#""scale": 0.01"#, r#""scale": 0.02"#, r#""scale" of x was 0.01 and is 0.02"#),
        (
            r#""scale": 0.01"#,
            r#""resize": "pad_to_aspect_ratio", "scale": 0.01"#,
            r#""resize" of x was "stretch" and is "pad_to_aspect_ratio""#,
        ),
        (
            r#""scale": 0.01"#,
            r#""interpolation": "nearest", "scale": 0.01"#,
            r#""interpolation" of x was "bilinear" and is "nearest""#,
        ),
        (r#""crop": 0.25"#, r#""crop": 0.5"#, r#""augment.crop" of x was 0.25 and is 0.5"#),
    ] {
        assert!(text.contains(find), "{find}");
        std::fs::write(&file, text.replace(find, replace)).unwrap();
        let trouble = run(&folder, &["--checkpoint", &dir, "--resume"]).await.unwrap_err();
        let wanted = format!(
            "{}: the options of its data are not those of this training: {differ}; state those of the saved training to continue \
             it, or begin anew in another folder (--checkpoint DIR)",
            state.display()
        );
        assert_eq!((trouble.exit, trouble.to_string()), (Exit::BadInput, wanted));
    }
    // The same size, stated; and a state of an earlier version, which has no options.
    std::fs::write(&file, text.replace(r#""scale""#, r#""size": [3, 3], "scale""#)).unwrap();
    run(&folder, &["--checkpoint", &dir, "--resume", "--steps", "6"]).await.unwrap();
    let last = folder.child("run").join("step-000000000006.safetensors");
    let (_, mut contents) = stored::read(&last, stored::Which::Last).unwrap();
    assert!(contents.metadata.remove("meshtf.options").is_some_and(|options| options.contains("bilinear")));
    stored::write(&last, &contents).unwrap();
    std::fs::write(&file, text.replace("0.01", "0.02")).unwrap();
    run(&folder, &["--checkpoint", &dir, "--resume"]).await.unwrap();
}

/// A feature of numbers cannot be changed as images are: that is said with its line before the first batch.
#[tokio::test(flavor = "multi_thread")]
async fn augmentation_is_for_images_alone() {
    let folder = TempDir::new().unwrap();
    let records = include_bytes!("../../../../tests/data/train/examples.tfrecord.gz");
    std::fs::write(folder.child("x.tfrecord.gz"), records).unwrap();
    let write = |source: &str, shape: &str| {
        let graph = format!(
            r#"{{"version": 1, "variables": {{"w": {{"shape": []}}}}, "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {shape}}}}},
            "xw": {{"op": "Mul", "inputs": ["x", "w"]}}, "loss": {{"op": "Mean", "inputs": ["xw", {axes}]}}}},
            "data": {{"feed": {{
              "x": {source}}}, "batch": 1}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 0.5, "steps": 2}}}}"#,
            axes = if shape.len() > 12 { "[0, 1, 2, 3]" } else { "[0, 1]" }
        );
        std::fs::write(folder.child("graph.json"), graph).unwrap();
    };
    write(r#"{"file": "x.tfrecord.gz", "feature": "point", "augment": {"flip": "both"}}"#, "[null, 2]");
    let trouble = run(&folder, &[]).await.unwrap_err();
    let wanted = format!(
        "{}: $.data.feed.x.augment (line 5, column 77): x.tfrecord.gz: only images are augmented, and an example is float32[2]: leave \
         \"augment\" out",
        folder.child("graph.json").display()
    );
    assert_eq!((trouble.exit, trouble.to_string()), (Exit::BadInput, wanted));
    write(r#"{"file": "x.tfrecord.gz", "feature": "image/encoded", "augment": {"flip": "both"}}"#, "[null, 2, 2, 3]");
    run(&folder, &[]).await.unwrap();
    write(
        r#"{"file": "x.tfrecord.gz", "feature": "text", "tokens": "words", "augment": {"flip": "both"}}"#,
        "[null, 2]",
    );
    let trouble = run(&folder, &[]).await.unwrap_err().to_string();
    assert!(trouble.contains("a feature with \"tokens\" is a text, and takes no options of images"), "{trouble}");
}
