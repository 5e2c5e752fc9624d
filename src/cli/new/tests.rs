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
fn another_delimiter_and_missing_names_are_found() {
    let lines: String = (0..40).map(|i| format!("{},5;{};{}\n", i * 13 % 7, i * i % 11, i as f64 * 1.5)).collect();
    let file = value(&table(&lines, None).unwrap());
    let x = &file["data"]["feed"]["x"];
    assert_eq!(
        (x["delimiter"].as_str(), x["decimal"].as_str(), x["header"].as_bool()),
        (Some(";"), Some(","), Some(false))
    );
    assert_eq!(file["data"]["feed"]["y"]["normalize"], "standard");
    assert_eq!(file["nodes"]["out"]["units"], 1);
}

#[test]
fn a_line_of_text_has_a_limit() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.txt"), "abc\nabcde\n\n").unwrap();
    let model = lines::model(&folder.child("t.txt"), "t.txt").unwrap();
    assert_eq!(value(&model)["nodes"]["x"]["attrs"]["shape"], serde_json::json!([null, 5]));
    std::fs::write(folder.child("t.txt"), format!("abc\n{}", "a".repeat(257))).unwrap();
    let why = lines::model(&folder.child("t.txt"), "t.txt").err().unwrap();
    assert!(why.starts_with("line 2 has more than 256 bytes"), "{why}");
}
