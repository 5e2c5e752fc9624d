//! The rows of a Parquet file that is not held in memory, compared with the same table as .csv.

use super::*;

#[test]
fn rows_of_a_large_parquet_file_are_those_of_the_table() {
    let folder = TempDir::new().unwrap();
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/parquet"));
    for file in ["zstd.parquet", "snappy.parquet", "rows.csv"] {
        write(&folder, file, &std::fs::read(data.join(file)).unwrap());
    }
    let read = |file: &str, held: u64| {
        let mut source = source(&format!("{file}:id,cents,text"));
        source.table.categories = vec![("text".to_owned(), meshtf_train::data::Category::Ids)];
        let rows = open(&folder, &source, &takes(DType::F64, &[None, Some(3)], None), held).unwrap();
        rows.map(|rows| (rows.count(), rows.read(&[39, 0, 12, 12]).unwrap()))
    };
    let wanted = read("rows.csv", HELD).unwrap();
    assert_eq!(wanted.0, COUNT);
    for file in ["zstd.parquet", "snappy.parquet", "zstd.parquet.gz"] {
        assert_eq!(read(file, HELD).unwrap(), wanted, "{file}");
        assert!(read(file, 1 << 20).is_none(), "{file}");
    }
    // A fault of the file is said as one, and not as one of the folder for temporary files.
    let mut bytes = std::fs::read(data.join("snappy.parquet")).unwrap();
    bytes[1000..1100].fill(0xee);
    std::fs::write(folder.child("bad.parquet"), bytes).unwrap();
    let failure = DataFile::open(&folder.child("bad.parquet"), HELD).unwrap_err();
    assert!(failure.message.contains("row group 1: column "), "{failure}");
    assert!(!failure.message.contains("TMPDIR"), "{failure}");
}
