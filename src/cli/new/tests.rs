//! Tests of the models that are written: they are read, and their shapes fit.

use meshtf_graph::Graph;
use temp_dir::TempDir;

use super::*;

/// The model of a table with this text, and its lines about it.
fn table(text: &str, label: Option<&str>) -> Result<Model, String> {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.csv"), text).unwrap();
    table::model(&folder.child("t.csv"), "t.csv", label)
}

fn value(model: &Model) -> serde_json::Value {
    let program = meshtf_train::model::file::read(model.text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    Graph::new(program.nodes).unwrap().check_shapes().unwrap();
    serde_json::from_str(&model.text).unwrap()
}

#[test]
fn the_columns_of_a_table_are_looked_up() {
    let kinds = ["red", "green", "blue"];
    let lines: String = (0..60)
        .map(|i| {
            format!(
                "{i},{},{},2026-0{}-01,{}\n",
                i * 7 % 5,
                if i == 3 { "" } else { kinds[i % 3] },
                i % 9 + 1,
                ["no", "yes"][i % 2]
            )
        })
        .collect();
    let text = format!("id,size,colour,day,sold\n{lines}");
    let model = table(&text, None).unwrap();
    let file = value(&model);
    let x = &file["data"]["feed"]["x"];
    assert_eq!(x["columns"], serde_json::json!(["size", "colour", "day"]));
    assert_eq!(x["categories"], serde_json::json!({"colour": "one_hot"}));
    // One number, three colours and that of the missing field, and four of the date.
    assert_eq!(file["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 9]));
    assert_eq!(file["data"]["feed"]["y"]["classes"], "auto");
    assert_eq!(file["data"]["hold_out"], serde_json::json!({"share": 0.2, "stratify": "sold"}));
    assert_eq!(file["nodes"]["logits"]["units"], 2);
    assert!(
        model.summary.iter().any(|line| line == "column id is left out: it counts the lines"),
        "{:?}",
        model.summary
    );
    let amounts = value(&table(&text, Some("size")).unwrap());
    assert_eq!(amounts["data"]["feed"]["y"]["classes"], "auto", "five whole numbers are classes");
    assert!(table(&text, Some("sizes")).err().unwrap().contains("did you mean size?"));
    assert!(table("a,b\n1,2\n1,2\n", None).err().unwrap().contains("one value in all lines"));
    assert!(table("", None).is_err());
}

#[test]
fn a_model_is_written_beside_its_data() {
    for (data, wanted) in [
        ("photos", "model.json"),
        ("a/photos/", "a/model.json"),
        ("a/houses.csv", "a/model.json"),
        (".", "../model.json"),
        ("./", "../model.json"),
        ("..", "../../model.json"),
    ] {
        assert_eq!(beside(Path::new(data)), Path::new(wanted), "{data}");
    }
    // The folder of the data itself is not one that contains it.
    let folder = TempDir::new().unwrap();
    let (photos, own) = (folder.child("photos"), folder.child("photos").join("model.json"));
    std::fs::create_dir(&photos).unwrap();
    let why = name_from(&own, &photos).err().unwrap();
    assert!(format!("{why:?}").contains(&folder.child("model.json").display().to_string()), "{why:?}");
    assert_eq!(name_from(&folder.child("model.json"), &photos).ok().unwrap(), "photos");
}

#[test]
fn another_delimiter_and_missing_names_are_found() {
    let lines: String = (0..40).map(|i| format!("{},5;{};{}\n", i * 13 % 7, i * i % 11, i as f64 * 1.5)).collect();
    let file = value(&table(&lines, None).unwrap());
    let x = &file["data"]["feed"]["x"];
    assert_eq!(
        (x["delimiter"].as_str(), x["decimal"].as_str(), x["header"].as_bool()),
        (Some(";"), Some(","), Some(false))
    );
    let y = &file["data"]["feed"]["y"];
    // The label is written with a point.
    assert_eq!((y["normalize"].as_str(), y["decimal"].as_str()), (Some("standard"), None));
    assert_eq!(file["data"]["hold_out"], 0.2, "amounts have no classes");
    assert_eq!(file["nodes"]["out"]["units"], 1);
}

/// Reads the table of a model as a training reads it.
fn loaded(model: &Model, text: &str) -> meshtf::trainer::TrainingData {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.csv"), text).unwrap();
    let sections = meshtf_train::file::read(&model.text).unwrap();
    let program = meshtf_train::model::file::read(model.text.as_bytes()).unwrap();
    let graph = Graph::new(program.nodes).unwrap();
    let loaded = meshtf::trainer::load(&sections, &graph, folder.path(), &Default::default());
    loaded.unwrap_or_else(|error| panic!("{error}\n{}", model.text)).data
}

#[test]
fn numbers_are_taken_as_the_table_writes_them() {
    let lines = |field: &dyn Fn(usize) -> String, mark: char| {
        (0..40).map(|i| format!("{}{mark}{}\n", field(i), ["a", "b"][i % 2])).collect::<String>()
    };
    let large = |i: usize| if i == 0 { "981".to_owned() } else { format!("\"1,{:03}\"", i * 7) };
    let million = |i: usize| format!("\"{i},000,000\"");
    let beside_point = |i: usize| format!("{}.{},\"1,{:03}\"", i % 9, i % 3, i * 7);
    let german = |i: usize| format!("1.{:03},50", i * 11);
    let quoted = |i: usize| format!("\"{i},5\"");
    for (head, field, mark, wanted) in [
        ("x,y", &large as &dyn Fn(usize) -> String, ',', (None, Some(","))),
        ("x,y", &million, ',', (None, Some(","))),
        ("area,x,y", &beside_point, ',', (None, Some(","))),
        ("x;y", &german, ';', (Some(","), Some("."))),
        ("x,y", &quoted, ',', (Some(","), None)),
        ("x;y", &|i: usize| format!("{i}.25"), ';', (None, None)),
    ] {
        let text = format!("{head}\n{}", lines(field, mark));
        let model = table(&text, None).unwrap();
        let x = &value(&model)["data"]["feed"]["x"];
        assert_eq!((x["decimal"].as_str(), x["thousands"].as_str()), wanted, "{text:.60}");
        assert!(model.summary.iter().all(|line| !line.contains("left out")), "{:?}", model.summary);
        loaded(&model, &text);
    }
    // The options are those of all columns of a placeholder.
    let text = lines(&|i: usize| format!("{i}.5;{i}.25;{i},5"), ';');
    let model = table(&format!("a;b;c;y\n{text}"), None).unwrap();
    let told = "column c is left out: its numbers, such as 0,5, are written in another way than those of other columns";
    assert!(model.summary.iter().any(|line| line == told), "{:?}", model.summary);
}

#[test]
fn dates_of_other_forms_are_taken() {
    let lines = |form: &dyn Fn(usize) -> String| {
        (0..40).map(|i| format!("{},{},{}\n", form(i), i * 7 % 5, ["a", "b"][i % 2])).collect::<String>()
    };
    let (day, month) = (|i: usize| i % 28 + 1, |i: usize| i % 12 + 1);
    for (form, wanted) in [
        (&(|i: usize| format!("{:02}.{:02}.2021", day(i), month(i))) as &dyn Fn(usize) -> String, "%d.%m.%Y"),
        (&|i: usize| format!("{:02}.{:02}.2021 07:30", day(i), month(i)), "%d.%m.%Y %H:%M"),
        (&|i: usize| format!("{}/{}/2021", month(i), day(i)), "%m/%d/%Y"),
        (&|i: usize| format!("{}/{}/2021", day(i), month(i)), "%d/%m/%Y"),
    ] {
        let text = format!("day,n,y\n{}", lines(form));
        let model = table(&text, None).unwrap();
        let x = &value(&model)["data"]["feed"]["x"];
        assert_eq!(x["date_format"], wanted);
        assert_eq!(x["columns"], serde_json::json!(["day", "n"]));
        loaded(&model, &text);
    }
    let text = format!("day,n,y\n{}", lines(&|i: usize| format!("{}/{}/2021", i % 9 + 1, i % 7 + 1)));
    let model = table(&text, None).unwrap();
    assert!(model.summary.iter().any(|line| line.contains("have the day or the month first")), "{:?}", model.summary);
}

#[test]
fn a_first_line_of_values_is_an_example() {
    let kinds = ["Iris-a", "Iris-b", "Iris-c"];
    let iris: String = (0..30).map(|i| format!("{}.1,{}.9,{}\n", i % 5, i % 4, kinds[i % 3])).collect();
    let model = table(&iris, None).unwrap();
    let feed = &value(&model)["data"]["feed"];
    assert_eq!((&feed["x"]["header"], &feed["x"]["columns"]), (&false.into(), &serde_json::json!(["0", "1"])));
    assert_eq!(feed["y"]["columns"], serde_json::json!(["2"]));
    assert!(model.summary[0].starts_with("30 lines: 2 numbers tell 3 classes of 2"), "{:?}", model.summary);
    assert!(model.summary.iter().any(|line| line.starts_with("line 1 has values and no names")), "{:?}", model.summary);
    loaded(&model, &iris);
    // Its label occurs again, although its number is whole.
    let whole: String = (0..30).map(|i| format!("{},{}\n", i * 7 % 11, kinds[i % 3])).collect();
    assert_eq!(value(&table(&whole, None).unwrap())["data"]["feed"]["x"]["header"], false);
    // Years are names.
    let years: String = (0..30).map(|i| format!("{},{},{}\n", i * 7 % 5, i * 3 % 11, kinds[i % 3])).collect();
    let model = table(&format!("2019,2020,kind\n{years}"), None).unwrap();
    assert_eq!(value(&model)["data"]["feed"]["x"]["columns"], serde_json::json!(["2019", "2020"]));
    assert!(model.summary.iter().any(|line| line.contains("names of the columns, 2019 among them")));
}

#[test]
fn a_table_without_columns_is_refused() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.jsonl"), "{}\n{}\n").unwrap();
    for label in [None, Some("a")] {
        let why = table::model(&folder.child("t.jsonl"), "t.jsonl", label).err().unwrap();
        assert!(why.contains("it has no columns"), "{why}");
    }
}

#[test]
fn a_file_that_is_no_table_by_its_name_is_described() {
    let folder = TempDir::new().unwrap();
    for (name, bytes, why) in [
        (
            "iris.data",
            &b"5.1,3.5,Iris-setosa\n4.9,3.0,Iris-setosa\n"[..],
            "it looks like a table: let its name end in .csv",
        ),
        ("t.txt", b"a\tb\n1\t2\n", "it looks like a table: let its name end in .tsv"),
        ("rows.json", b"{\"a\": 1}\n{\"a\": 2}\n", "let its name end in .jsonl"),
        ("poem.txt", b"The sun, and the moon\nand all\n", "this is text; a table is a .csv"),
        ("s.XLSX", b"PK\x03\x04", "this is a spreadsheet: export it as .csv; a table is"),
        ("s.dat", b"%PDF-1.7", "this is a PDF document; a table is"),
    ] {
        std::fs::write(folder.child(name), bytes).unwrap();
        let told = table::model(&folder.child(name), name, None).err().unwrap();
        assert!(told.contains(why) && told.ends_with("perhaps compressed (.gz, .zst)"), "{told}");
    }
    let told = table::model(folder.path(), "folder", None).err().unwrap();
    assert!(told.starts_with("this is a folder; a table is"), "{told}");
}

#[test]
fn all_keys_of_a_table_of_json_are_columns() {
    let folder = TempDir::new().unwrap();
    let line =
        |i: usize| format!("{{\"a\": {}, \"b\": {}, \"y\": \"{}\"}}\n", i * 7 % 5, i * 3 % 11, ["n", "p"][i % 2]);
    let text = "{\"a\": 3, \"y\": \"p\"}\n".to_owned() + &(0..40).map(line).collect::<String>();
    std::fs::write(folder.child("t.jsonl"), text).unwrap();
    let file = value(&table::model(&folder.child("t.jsonl"), "t.jsonl", Some("y")).unwrap());
    assert_eq!(file["data"]["feed"]["x"]["columns"], serde_json::json!(["a", "b"]));
    assert_eq!(file["data"]["feed"]["x"]["missing"], "median");
}

#[test]
fn a_series_is_cut_into_windows_of_its_columns() {
    let series = |text: &str, label: Option<&str>| {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.child("t.csv"), text).unwrap();
        series::model(&folder.child("t.csv"), "t.csv", label)
    };
    let day = |i: usize| format!("20{:02}-{:02}-{:02}", 20 + i / 336, i / 28 % 12 + 1, i % 28 + 1);
    let lines: String = (0..700).map(|i| format!("{},{},{},x{i},7\n", day(i), i * 7 % 5, i * 3 % 11)).collect();
    let text = format!("day,rain,wind,note,same\n{lines}");
    // The last column has one value, and is no default.
    let file = value(&series(&text, None).unwrap());
    assert_eq!(file["data"]["feed"]["y"]["columns"], serde_json::json!(["wind"]));
    let file = value(&series(&text, Some("rain")).unwrap());
    let (x, y) = (&file["data"]["feed"]["x"], &file["data"]["feed"]["y"]);
    assert_eq!(x["columns"], serde_json::json!(["day", "rain", "wind"]));
    assert_eq!(x["dates"], serde_json::json!({"day": ["day_of_week", "day_of_year"]}));
    assert_eq!(x["window"], serde_json::json!({"length": 24, "stride": 1}));
    assert_eq!(y["window"], serde_json::json!({"length": 24, "stride": 1, "ahead": 1}));
    assert_eq!(file["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 24, 4]));
    // The forecast column is the third of the numbers of a line.
    assert_eq!(file["nodes"]["recent"]["inputs"][1], serde_json::json!([0, 23, 2]));
    assert_eq!(file["data"]["hold_out"], serde_json::json!({"last": 0.2}));
    // Values alone, without names; a short series has a short window.
    let values: String = (0..60).map(|i| format!("{}\n", i * i % 17)).collect();
    let file = value(&series(&values, None).unwrap());
    assert_eq!(file["data"]["feed"]["y"]["header"], false);
    assert_eq!(file["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 6, 1]));
    // A date and a value without names.
    let dated: String = (0..60).map(|i| format!("{},{}\n", day(i), i * i % 17)).collect();
    let file = value(&series(&dated, None).unwrap());
    assert_eq!(file["data"]["feed"]["y"]["columns"], serde_json::json!(["1"]));
    // The column that is forecast has whole numbers, which are written in one way.
    let comma: String = (0..60).map(|i| format!("{},5;{}\n", i * 7 % 11, i * i % 17)).collect();
    let file = value(&series(&format!("temp;load\n{comma}"), None).unwrap());
    let (x, y) = (&file["data"]["feed"]["x"], &file["data"]["feed"]["y"]);
    assert_eq!((&x["columns"], &x["decimal"]), (&serde_json::json!(["temp", "load"]), &",".into()));
    assert_eq!((&y["columns"], &y["decimal"]), (&serde_json::json!(["load"]), &",".into()));
    let backwards: String = (0..60).rev().map(|i| format!("{},{}\n", day(i), i * i % 17)).collect();
    for (text, label, why) in [
        (&*text, Some("note"), "is not one of numbers"),
        (&*text, Some("same"), "has one value in all lines"),
        (&*text, Some("winds"), "did you mean wind?"),
        (&*format!("day,a\n{backwards}"), None, "the dates go back in time; sort the lines, the oldest first"),
        ("a\n1\n2\n", None, "it has 2 lines; a forecast needs 20 or more"),
        ("a\nx\ny\n", None, "no column of numbers"),
    ] {
        let told = series(text, label).err().unwrap();
        assert!(told.contains(why), "{told}\nwanted {why}");
    }
}

#[test]
fn a_text_is_cut_into_windows_of_characters() {
    let folder = TempDir::new().unwrap();
    let text = "abc\r\n".repeat(100);
    std::fs::write(folder.child("t.txt"), &text).unwrap();
    let model = lines::model(&folder.child("t.txt"), "t.txt").unwrap();
    let file = value(&model);
    // 400 characters, of which four are different: 33 steps are a twelfth.
    assert_eq!(file["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 34]));
    assert_eq!(file["nodes"]["logits"]["units"], 6);
    let data = &file["data"];
    assert_eq!(data["feed"]["x"]["window"], serde_json::json!({"length": 34, "stride": 16}));
    assert_eq!(data["hold_out"], serde_json::json!({"last": 0.2}));
    assert_eq!(model.summary, ["400 characters, 4 different: 23 examples of 34 each"]);
    std::fs::write(folder.child("t.txt"), "abc").unwrap();
    let why = lines::model(&folder.child("t.txt"), "t.txt").err().unwrap();
    assert!(why.contains("it has 3 characters, too few"), "{why}");
    assert!(lines::model(&folder.child("t.md"), "t.md").err().unwrap().contains("a text is a .txt file"));
}

#[test]
fn texts_with_labels_are_told_apart_by_words() {
    let folder = TempDir::new().unwrap();
    let lines: String =
        (0..30).map(|i| format!("{i};{};a b c {}\n", ["no", "yes"][i % 2], "d ".repeat(i % 4))).collect();
    std::fs::write(folder.child("t.csv"), format!("id;verdict;review\n{lines}")).unwrap();
    let model = words::of_table(&folder.child("t.csv"), "t.csv", None).unwrap();
    let file = value(&model);
    let feed = &file["data"]["feed"];
    assert_eq!((feed["x"]["columns"].as_str(), feed["y"]["columns"].as_str()), (Some("review"), Some("verdict")));
    assert_eq!((&feed["x"]["delimiter"], &feed["x"]["vocabulary"]), (&";".into(), &6.into()));
    assert_eq!(file["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 6]));
    assert_eq!(file["data"]["hold_out"], serde_json::json!({"share": 0.2, "stratify": "verdict"}));
    let why = words::of_table(&folder.child("t.csv"), "t.csv", Some("kind")).err().unwrap();
    assert!(why.contains("there is no column kind; there are id, verdict, review"), "{why}");
    for (name, text) in [("neg/1.txt", "a b"), ("pos/1.txt", "c d"), ("pos/2.txt", "c d e f g")] {
        let path = folder.child("texts").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let file = value(&words::of_folder(&folder.child("texts"), "texts").unwrap());
    assert_eq!(file["data"]["feed"]["y"], serde_json::json!({"classes": "texts"}));
    assert_eq!(file["nodes"]["seen"]["rows"], 9);
}

/// A folder with two classes of grey images of these heights and widths.
fn photos(sizes: &[[u32; 2]]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for class in ["cat", "dog"] {
        std::fs::create_dir_all(folder.child("photos").join(class)).unwrap();
        for (i, &[height, width]) in sizes.iter().enumerate() {
            let path = folder.child("photos").join(class).join(format!("{i}.png"));
            image::GrayImage::new(width, height).save(path).unwrap();
        }
    }
    folder
}

/// Of 12 images a class, 4 of 24 are held out, two of each class.
#[test]
fn each_class_of_images_is_held_out_in_the_same_share() {
    let folder = photos(&[[8, 8]; 12]);
    let model = images::model(&folder.child("photos"), "photos").unwrap();
    let sections = meshtf_train::file::read(&model.text).unwrap();
    let program = meshtf_train::model::file::read(model.text.as_bytes()).unwrap();
    let graph = Graph::new(program.nodes).unwrap();
    let loaded = meshtf::trainer::load(&sections, &graph, folder.path(), &Default::default()).unwrap();
    let train = loaded.data.train;
    let data = &sections.data;
    let (_, held) = train.split_by(&data.hold_out_by, data.hold_out, data.shuffle.unwrap()).unwrap();
    let places: Vec<usize> = (0..held.len()).collect();
    let labels = held.take(&places, &[places.len()]).unwrap().pop().unwrap();
    let mut labels = labels.slice::<i32>().unwrap().to_vec();
    labels.sort_unstable();
    assert_eq!(labels, [0, 0, 1, 1]);
}

#[test]
fn images_of_several_sizes_get_the_median() {
    for (sizes, wanted, words) in [
        (
            &[[20, 30], [10, 90], [40, 20]][..],
            [20, 30],
            "have 10 to 40 by 20 to 90 pixels, of which this is the median.",
        ),
        (&[[300, 200]; 3], [128, 85], "The files have 300 by 200; no side is longer than 128 here."),
        (&[[300, 200], [600, 500], [8, 9]], [128, 85], "the median, with no side longer than 128."),
        (&[[28, 28]; 2], [28, 28], "from 0 to 1. \"augment\" in data.feed.x changes"),
    ] {
        let folder = photos(sizes);
        let model = images::model(&folder.child("photos"), "photos").unwrap();
        let file = value(&model);
        let x = &file["nodes"]["x"];
        assert_eq!(x["attrs"]["shape"], serde_json::json!([null, wanted[0], wanted[1], 1]));
        assert!(x["description"].as_str().unwrap().contains(words), "{x}");
        assert_eq!(file["data"]["feed"]["x"]["augment"]["translate"], 0.1);
        // It is read as a training reads it.
        let sections = meshtf_train::file::read(&model.text).unwrap();
        let program = meshtf_train::model::file::read(model.text.as_bytes()).unwrap();
        let graph = Graph::new(program.nodes).unwrap();
        let loaded = meshtf::trainer::load(&sections, &graph, folder.path(), &Default::default()).unwrap();
        let columns: Vec<_> = loaded.data.train.columns().map(|(_, _, shape)| shape.to_vec()).collect();
        assert_eq!(columns, [vec![wanted[0], wanted[1], 1], vec![]]);
    }
}
