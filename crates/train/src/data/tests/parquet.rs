//! Parquet files that pyarrow wrote (tests/data/parquet), compared with the same table as .csv; and damaged ones.

use std::io::Read;
use std::path::PathBuf;

use super::*;

fn bytes(file: &str) -> Vec<u8> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/parquet")).join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Some columns of a file, as numbers or as texts.
fn column(file: &str, columns: &[&str], options: &TableOptions, is_text: bool) -> Result<Tensor> {
    let layout = Layout::of(&FilePart::of(file), &options.layout)?;
    let table = Csv::new(layout, table_text(file, bytes(file))?);
    let columns: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
    let wanted = Wanted { columns: &columns, except: &[], options, is_text, fit: None };
    let prepared = table.prepare(&[wanted], |count| vec![true; count])?;
    table.tensor(&prepared, &prepared.chosen[0], is_text)
}

/// Compressions, encodings, both forms of pages, groups of rows, and old and new types of dates.
const FILES: [&str; 4] = ["snappy.parquet", "plain.parquet", "gzip.parquet", "zstd.parquet"];

#[test]
fn columns_are_those_of_the_same_table_as_csv() {
    use DatePart::*;
    let numbers = TableOptions { missing: Some(Missing::Value(-1.0)), ..TableOptions::default() };
    let dates = |column: &str, parts: &[DatePart], format: Option<&str>| TableOptions {
        dates: vec![(column.to_owned(), parts.to_vec())],
        date_format: format.map(str::to_owned),
        ..numbers.clone()
    };
    let one_hot = TableOptions { categories: vec![("text".to_owned(), Category::OneHot)], ..TableOptions::default() };
    let all = [Year, DayOfYear, Hour, Minute, Seconds];
    for file in FILES {
        for (columns, options) in [
            (&["id", "small", "unsigned", "large", "truth", "price", "cents"][..], &numbers),
            (&["single", "double"], &numbers),
            (&["text"], &one_hot),
            (&["day"], &dates("day", &all, None)),
            (&["millis"], &dates("millis", &all, None)),
            (&["zone"], &dates("zone", &all, None)),
            (&["time"], &dates("time", &[Hour, Minute, Seconds], Some("%H:%M:%S"))),
        ] {
            let read = |file: &str| column(file, columns, options, false);
            let (own, wanted) = (read(file).unwrap(), read("rows.csv").unwrap());
            assert_eq!(own, wanted, "{file} {columns:?}");
            assert_eq!(own.dims()[0], 40);
        }
        let texts = |file: &str| column(file, &["text", "kind"], &TableOptions::default(), true).unwrap();
        assert_eq!(texts(file), texts("rows.csv"), "{file}");
    }
    // A missing value is an error with its row, unless an option says otherwise.
    let why = column("zstd.parquet", &["small"], &TableOptions::default(), false).unwrap_err().message;
    assert!(why.contains("line 7: column small has \"\", a missing value"), "{why}");
    let labels = TableOptions { classes: Some(Classes::Auto), ..TableOptions::default() };
    let classes = column("gzip.parquet", &["kind"], &labels, false).unwrap();
    assert_eq!(classes.slice::<f64>().unwrap()[..4], [0.0, 1.0, 2.0, 0.0]);
}

#[test]
fn a_column_alone_has_its_last_missing_value() {
    let missing = TableOptions { missing: Some(Missing::Value(-1.0)), ..TableOptions::default() };
    let numbers = column("one.parquet", &["7"], &missing, false).unwrap();
    assert_eq!(numbers.slice::<f64>().unwrap(), [1.5, -1.0, 2.5, -1.0]);
    let part = read_tensor(&FilePart::of("snappy.parquet:id,large"), bytes("snappy.parquet")).unwrap();
    assert_eq!(part.slice::<f64>().unwrap()[..4], [0.0, 2f64.powi(63), 1.0, 2f64.powi(63) + 4096.0]);
}

#[test]
fn files_that_are_no_tables_are_refused() {
    let failure = table_text("lz4.parquet", bytes("lz4.parquet")).unwrap_err();
    let why = "row group 1: column id: it is compressed by LZ4_RAW; expected snappy, gzip, zstd or none";
    assert!(failure.message.contains(why), "{failure}");
    let cut = bytes("plain.parquet");
    for (bytes, why) in [
        (b"a,b\n1,2\n".to_vec(), "this is text, and no Parquet file as its name says"),
        (Vec::new(), "this is an empty file"),
        (b"PAR1".to_vec(), "truncated"),
        (cut[..cut.len() - 9].to_vec(), "its footer is missing"),
        ([&b"PAR1"[..], &[0xff; 20], b"\x14\0\0\0PAR1"].concat(), "its footer has no valid schema"),
        ([&b"PAR1"[..], b"\xff\xff\xff\x7fPAR1"].concat(), "the limit"),
    ] {
        let failure = table_text("x.parquet", bytes).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
    let options = LayoutOptions { skip: 1, ..LayoutOptions::default() };
    let failure = Layout::of(&FilePart::of("x.parquet"), &options).unwrap_err();
    assert!(failure.message.contains("a .parquet file takes neither"), "{failure}");
}

/// Lists and structures are refused by name where they would be taken, and other columns are read.
#[test]
fn nested_columns_are_refused_where_they_are_taken() {
    let read = |columns: &[&str]| column("nested.parquet", columns, &TableOptions::default(), false);
    assert_eq!(read(&["a", "b"]).unwrap().slice::<f64>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    let options = TableOptions::default();
    let except = ["place", "tags", "counts"].map(str::to_owned);
    let wanted = Wanted { columns: &[], except: &except, options: &options, is_text: false, fit: None };
    let layout = Layout::of(&FilePart::of("nested.parquet"), &options.layout).unwrap();
    let table = Csv::new(layout, table_text("nested.parquet", bytes("nested.parquet")).unwrap());
    assert_eq!(table.prepare(&[wanted], |count| vec![true; count]).unwrap().chosen[0].width(), 2);
    for (columns, why) in [
        (&["a", "tags"][..], "column tags is a list; the fields of a table are numbers"),
        (&[], "column tags is a list; the fields"),
        (&["place"], "column place is a structure of several parts; the fields"),
        (&["counts"], "column counts is a map; the fields"),
        (&["tag"], "there is no column tag; did you mean tags?"),
    ] {
        let failure = read(columns).unwrap_err();
        assert!(failure.message.contains(why), "{columns:?}: {failure}");
    }
}

/// A schema whose groups say that they have more parts than there are, or are within each other without end.
#[test]
fn a_schema_that_cannot_be_is_refused_before_it_is_built() {
    let file = |parts: &[u8]| {
        // Field 2, a list of structures; of each, field 5 is its number of parts.
        let mut footer = vec![0x29, 0xfc, parts.len() as u8 | 0x80, (parts.len() >> 7) as u8];
        parts.iter().for_each(|own| footer.extend([0x55, 2 * own, 0]));
        footer.push(0);
        let length = (footer.len() as u32).to_le_bytes();
        [&b"PAR1"[..], &footer, &length, b"PAR1"].concat()
    };
    let nested = vec![1; 1000];
    for parts in [&[2, 0][..], &[1, 0, 0], &[60, 0, 0], &nested] {
        let failure = table_text("x.parquet", file(parts)).unwrap_err();
        assert!(failure.message.contains("no valid schema"), "{parts:?}: {failure}");
    }
    // A sound one gets as far as the library, which misses names.
    let failure = table_text("x.parquet", file(&[2, 0, 0])).unwrap_err();
    assert!(!failure.message.contains("no valid schema"), "{failure}");
}

/// Each file with bytes that are cut off or changed, at many positions: it is read or refused, and nothing panics.
#[test]
fn damaged_files_are_read_or_refused() {
    for file in FILES {
        let whole = bytes(file);
        for end in (0..whole.len()).step_by(97) {
            assert!(table_text(file, whole[..end].to_vec()).is_err(), "{file} {end}");
        }
        for at in (0..whole.len()).step_by(13) {
            for change in [0xff, 0x80, 0x01] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                if let Ok(mut text) = parquet_text(bytes) {
                    // A changed page of levels may stand for many missing values.
                    let _ = text.as_mut().take(1 << 20).read_to_end(&mut Vec::new());
                }
            }
        }
    }
}
