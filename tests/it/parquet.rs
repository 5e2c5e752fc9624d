//! A table in a Parquet file, from the first look to predictions, compared with the same table as .csv.

use crate::sandbox::{Sandbox, project};

/// The files that pyarrow wrote: 40 rows.
fn table(sandbox: &Sandbox) {
    for (from, to) in [("zstd.parquet", "rows.parquet"), ("rows.csv", "rows.csv")] {
        let bytes = std::fs::read(project(&format!("tests/data/parquet/{from}"))).unwrap();
        sandbox.file(to, bytes);
    }
}

#[test]
fn a_parquet_table_is_taken_wherever_a_csv_is() {
    let sandbox = Sandbox::new();
    table(&sandbox);
    let path = |name: &str| sandbox.path(name).display().to_string();
    let text = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    for kind in ["parquet", "csv"] {
        let (file, model, run) = (path(&format!("rows.{kind}")), path(&format!("{kind}.json")), path(kind));
        sandbox.run(&["new", "table", &file, "--label", "kind", "-o", &model]).expect(0);
        let train = ["train", &model, "--local", "--checkpoint", &run, "--steps", "20", "--quiet"];
        sandbox.run(&train).expect(0);
        let out = path(&format!("{kind}-predictions.csv"));
        sandbox.run(&["predict", &model, &run, &file, "--local", "--out", &out]).expect(0);
        let fed = format!("x=@{file}");
        let out = path(&format!("{kind}-run.csv"));
        let run = ["run", &model, "--weights", &run, "--fetch", "class", "--feed", &fed, "--out", &out];
        sandbox.run(&run).expect(0);
    }
    assert_eq!(text("parquet.json").replace("rows.parquet", "rows.csv"), text("csv.json"));
    for name in ["predictions.csv", "run.csv"] {
        assert_eq!(text(&format!("parquet-{name}")), text(&format!("csv-{name}")));
    }
    assert_eq!(text("parquet-predictions.csv").lines().count(), 41);
}
