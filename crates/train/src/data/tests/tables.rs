//! Tables: what becomes of their lines and columns. The expected numbers are computed by hand.

use super::*;

/// The numbers of a table in a file of that name, with the options of one placeholder, all of whose examples but the last are
/// trained with.
fn read(file: &str, text: &str, columns: &[&str], options: TableOptions) -> Result<(Vec<usize>, Vec<f64>)> {
    let table = Csv::new(Layout::of(&FilePart::of(file), &options.layout)?, text.as_bytes().to_vec());
    let columns: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
    let wanted = Wanted { columns: &columns, except: &[], options: &options, is_text: false, fit: None };
    let prepared = table.prepare(&[wanted], |count| (0..count).map(|place| place + 1 < count).collect())?;
    let tensor = table.tensor(&prepared, &prepared.chosen[0], false)?;
    Ok((tensor.dims().to_vec(), tensor.slice::<f64>()?.to_vec()))
}

fn options() -> TableOptions {
    TableOptions::default()
}

fn layout(delimiter: char, no_header: bool, skip: usize) -> TableOptions {
    TableOptions { layout: LayoutOptions { delimiter: Some(delimiter), no_header, skip }, ..options() }
}

#[test]
fn lines_are_cut_into_fields() {
    let plain = "\u{feff}a, b ,\"c \"\"d\"\"\"\r\n1,2.5,\"3\"\r\n\r\n-1e3, 4 ,\" 5\"\n";
    for (file, text, columns, options, wanted) in [
        ("t.csv", plain, &["b", "a"][..], options(), &[2.5, 1.0, 4.0, -1000.0][..]),
        ("t.csv", plain, &["c \"d\""], options(), &[3.0, 5.0]),
        ("t.tsv", "a\tb\n1\t2\n3\t4\n", &["b"], options(), &[2.0, 4.0]),
        ("t.csv", "a;b\n1;2\n", &["b"], layout(';', false, 0), &[2.0]),
        ("t.csv", "  a   b\t c\n 1  2   3 \n\n4\t5  6", &["a", "c"], layout(' ', false, 0), &[1.0, 3.0, 4.0, 6.0]),
        // Without names, columns are numbers from 0; a range includes its last column.
        ("t.csv", "1,2,3\n4,5,6\n", &["0..1"], layout(',', true, 0), &[1.0, 2.0, 4.0, 5.0]),
        ("t.csv", "made by x\n\n# 2026\na,b\n1,2\n", &["b"], layout(',', false, 3), &[2.0]),
        ("t.csv", "a,b,c,d\n1,2,3,4\n", &["d", "a..c"], options(), &[4.0, 1.0, 2.0, 3.0]),
        ("t.csv", "a,b\n1,2\n", &["1"], options(), &[2.0]),
        ("t.jsonl", "{\"b\": 1, \"a\": 2.5}\n\n{\"a\": 3, \"b\": true}\n", &[], options(), &[1.0, 2.5, 1.0, 3.0]),
    ] {
        let (dims, numbers) = read(file, text, columns, options).unwrap_or_else(|why| panic!("{text:?}: {why}"));
        assert_eq!(numbers, wanted, "{text:?}");
        assert_eq!(dims[0] * dims[1], wanted.len(), "{text:?}");
    }
}

/// The columns of a table of JSON are the keys of all objects at its beginning, in the order in which they occur.
#[test]
fn a_key_that_the_first_object_lacks_is_a_column() {
    let zero = || TableOptions { missing: Some(Missing::Value(0.0)), ..options() };
    let text = "{\"a\": 1}\n{\"b\": 2, \"a\": 3}\n{\"c\": [4], \"a\": null}\n";
    assert_eq!(read("t.jsonl", text, &[], zero()).unwrap(), (vec![3, 2], vec![1.0, 0.0, 3.0, 2.0, 0.0, 0.0]));
    assert_eq!(read("t.jsonl", text, &["b"], zero()).unwrap().1, [0.0, 2.0, 0.0]);
    assert_eq!(read("t.jsonl", "{}\n{\"a\": 7}", &["a"], zero()).unwrap().1, [0.0, 7.0]);
    let why = read("t.jsonl", "[1]\n{\"a\": 7}\n", &["a"], zero()).unwrap_err().message;
    assert!(why.contains("line 1: expected an object"), "{why}");
    // A key that occurs for the first time after 4 MiB is no column: it is ignored unless all columns are taken.
    let late = "{\"a\": 1}\n".repeat((4 << 20) / 9 + 1) + "{\"a\": 2, \"late\": 3}\n";
    let (dims, numbers) = read("t.jsonl", &late, &["a"], options()).unwrap();
    assert_eq!((dims[1], numbers[dims[0] - 1]), (1, 2.0));
    let why = read("t.jsonl", &late, &[], options()).unwrap_err().message;
    assert!(why.contains("late is in none of the objects in the first 4 MiB"), "{why}");
}

#[test]
fn numbers_are_read_as_people_write_them() {
    let german = || TableOptions { decimal: Some(','), thousands: Some('.'), ..layout(';', false, 0) };
    let english = || TableOptions { thousands: Some(','), ..layout(';', false, 0) };
    for (field, options, wanted) in [
        ("1.234,5", german(), Some(1234.5)),
        ("-0,25", german(), Some(-0.25)),
        ("1,234.5", english(), Some(1234.5)),
        ("1,5", layout(';', false, 0), None),
        ("1.5", TableOptions { decimal: Some(','), ..layout(';', false, 0) }, None),
        ("12.5 %", options(), Some(0.125)),
        ("TRUE", options(), Some(1.0)),
        ("false", options(), Some(0.0)),
        ("inf", options(), None),
    ] {
        let numbers = read("t.csv", &format!("a\n{field}\n"), &["a"], options);
        assert_eq!(numbers.as_ref().ok().map(|(_, numbers)| numbers[0]), wanted, "{field}: {numbers:?}");
    }
    let dates = |parts: &[DatePart], format: Option<&str>| TableOptions {
        dates: vec![("t".to_owned(), parts.to_vec())],
        date_format: format.map(str::to_owned),
        ..options()
    };
    use DatePart::*;
    for (field, parts, format, wanted) in [
        // A leap year: the 60th day is the 29th of February, a Thursday.
        ("2024-02-29", &[DayOfYear, DayOfWeek, Year, Month, Day][..], None, &[60.0, 3.0, 2024.0, 2.0, 29.0][..]),
        ("2026-05-31T23:45:10Z", &[Hour, Minute], None, &[23.0, 45.0]),
        ("1970-01-02 00:01", &[Seconds], None, &[86460.0]),
        ("31.12.2025", &[DayOfYear], Some("%d.%m.%Y"), &[365.0]),
    ] {
        assert_eq!(read("t.csv", &format!("t\n{field}\n"), &["t"], dates(parts, format)).unwrap().1, wanted, "{field}");
    }
    let why = read("t.csv", "t\n2026-02-30\n", &["t"], dates(&[Hour], None)).unwrap_err().message;
    assert!(why.contains("line 2: column t has \"2026-02-30\", which is not a date"), "{why}");
}

/// The last line is not trained with: it does not count.
#[test]
fn missing_fields_and_normalisation_are_measured_where_the_model_is_trained() {
    let text = "a,b\n1,10\n,20\n3,NA\n8,-\n100,1000\n";
    let of = |missing, normalize: &[(Option<&str>, Normalize)]| TableOptions {
        missing: Some(missing),
        missing_values: vec!["-".to_owned()],
        normalize: normalize.iter().map(|(name, how)| (name.map(str::to_owned), *how)).collect(),
        ..options()
    };
    for (options, wanted) in [
        (of(Missing::Value(-1.0), &[]), &[1.0, 10.0, -1.0, 20.0, 3.0, -1.0, 8.0, -1.0, 100.0, 1000.0][..]),
        (of(Missing::Mean, &[]), &[1.0, 10.0, 4.0, 20.0, 3.0, 15.0, 8.0, 15.0, 100.0, 1000.0]),
        (of(Missing::Median, &[]), &[1.0, 10.0, 3.0, 20.0, 3.0, 15.0, 8.0, 15.0, 100.0, 1000.0]),
        // Lines 2 and 6 are left; the second of them is not trained with.
        (of(Missing::Drop, &[]), &[1.0, 10.0, 100.0, 1000.0]),
        (of(Missing::Drop, &[(None, Normalize::Standard)]), &[0.0, 0.0, 99.0, 990.0]),
        // From 1 to 8; the mean of 10 and 20 is 15, and their deviation is 5.
        (
            of(Missing::Value(1.0), &[(None, Normalize::Standard), (Some("a"), Normalize::MinMax)]),
            &[0.0, -1.0, 0.0, 1.0, 2.0 / 7.0, -2.8, 1.0, -2.8, 99.0 / 7.0, 197.0],
        ),
    ] {
        let (_, numbers) = read("t.csv", text, &["a", "b"], options.clone()).unwrap();
        let off = numbers.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(numbers.len() == wanted.len() && off < 1e-12, "{options:?}: {numbers:?}");
    }
}

#[test]
fn text_becomes_classes_and_categories() {
    let text = "kind,n\ndog,10\ncat,9\nbird,10\n,2\n";
    let two = "kind\ndog\ncat\n";
    let categories = |category| TableOptions { categories: vec![("kind".to_owned(), category)], ..options() };
    let classes = |classes| TableOptions { classes: Some(classes), ..options() };
    for (text, columns, options, wanted) in [
        (two, &["kind"][..], classes(Classes::Auto), &[1.0, 0.0][..]),
        (two, &["kind"], classes(Classes::Listed(vec!["dog".to_owned(), "cat".to_owned()])), &[0.0, 1.0]),
        // Numbers are classes in the order of their values.
        (text, &["n"], classes(Classes::Auto), &[2.0, 1.0, 2.0, 0.0]),
        // A line that is dropped has no label.
        (
            "a,kind\n1,x\n,only\n3,y\n",
            &["a", "kind"],
            TableOptions { missing: Some(Missing::Drop), ..categories(Category::OneHot) },
            &[1.0, 1.0, 0.0, 3.0, 0.0, 1.0],
        ),
        // A missing field is a category of its own.
        (text, &["kind"], categories(Category::Ids), &[3.0, 2.0, 1.0, 0.0]),
        (
            text,
            &["n", "kind"],
            categories(Category::OneHot),
            &[10.0, 0.0, 0.0, 0.0, 1.0, 9.0, 0.0, 0.0, 1.0, 0.0, 10.0, 0.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0],
        ),
        // FNV-1a of "a" in 64 bits is 0xaf63dc4c8601ec8c.
        ("kind\na\n", &["kind"], categories(Category::Hash(1 << 16)), &[f64::from(0xec8c)]),
    ] {
        assert_eq!(read("t.csv", text, columns, options).unwrap().1, wanted, "{columns:?}");
    }
}

/// The measurements of one table apply to another one, whose columns have another order.
#[test]
fn a_fit_applies_to_other_tables() {
    let options = TableOptions {
        missing: Some(Missing::Mean),
        normalize: vec![(None, Normalize::Standard)],
        categories: vec![("kind".to_owned(), Category::OneHot)],
        ..options()
    };
    let layout = Layout::of(&FilePart::of("t.csv"), &options.layout).unwrap();
    let columns = ["a", "kind"].map(str::to_owned);
    let wanted = Wanted { columns: &columns, except: &[], options: &options, is_text: false, fit: None };
    let table = Csv::new(layout.clone(), b"a,kind\n1,x\n3,y\n".to_vec());
    let fit = table.prepare(&[wanted], |count| vec![true; count]).unwrap().chosen[0].fit().clone();
    let fit: Fit = serde_json::from_str(&serde_json::to_string(&fit).unwrap()).unwrap();
    let other = Csv::new(layout, b"more,kind,a\n7,y,\n7,z,5\n".to_vec());
    let prepared = other.prepare(&[Wanted { columns: &[], fit: Some(&fit), ..wanted }], |_| Vec::new()).unwrap();
    let tensor = other.tensor(&prepared, &prepared.chosen[0], false).unwrap();
    // Mean 2 and deviation 1; the category z was not there.
    assert_eq!(tensor, Tensor::from_vec([2, 3], vec![0f64, 0.0, 1.0, 3.0, 0.0, 0.0]));
}

/// A table to evaluate with takes its own columns, and needs the same kinds.
#[test]
fn a_table_with_other_columns_takes_these() {
    let options = TableOptions { classes: Some(Classes::Auto), ..options() };
    let layout = Layout::of(&FilePart::of("t.csv"), &options.layout).unwrap();
    let fit = Fit {
        columns: vec!["kind".to_owned()],
        labels: [("kind".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
        ..Fit::default()
    };
    let table = Csv::new(layout, b"kind,sort\n9,y\n9,x\n".to_vec());
    let columns = ["sort".to_owned()];
    let wanted = Wanted { columns: &columns, except: &[], options: &options, is_text: false, fit: Some(&fit) };
    let prepared = table.prepare(&[wanted], |_| Vec::new()).unwrap();
    let tensor = table.tensor(&prepared, &prepared.chosen[0], false).unwrap();
    assert_eq!(tensor, Tensor::from_vec([2, 1], vec![1f64, 0.0]));
    let refused = |wanted: Wanted<'_>| table.prepare(&[wanted], |_| Vec::new()).unwrap_err().message;
    let plain = TableOptions::default();
    assert!(refused(Wanted { options: &plain, ..wanted }).contains("has labels where the model is trained"));
    let both = ["kind", "sort"].map(str::to_owned);
    assert!(
        refused(Wanted { columns: &both, ..wanted }).contains("2 columns are taken, and the model was trained with 1")
    );
}

#[test]
fn a_line_that_one_placeholder_drops_is_no_example() {
    let options = [TableOptions { missing: Some(Missing::Drop), ..options() }, options()];
    let columns = ["a", "b"].map(str::to_owned);
    let wanted =
        |i: usize| Wanted { columns: &columns[i..=i], except: &[], options: &options[i], is_text: i == 1, fit: None };
    let layout = Layout::of(&FilePart::of("t.csv"), &options[0].layout).unwrap();
    let table = Csv::new(layout, b"a,b\n1,x\n,y\n3,z\n".to_vec());
    let prepared = table.prepare(&[wanted(0), wanted(1)], |_| Vec::new()).unwrap();
    assert_eq!(prepared.count, 2);
    let texts = table.tensor(&prepared, &prepared.chosen[1], true).unwrap();
    assert_eq!(texts, Tensor::vector(vec![b"x".to_vec(), b"z".to_vec()]).reshaped([2, 1]).unwrap());
}

#[test]
fn mistakes_in_a_table_are_named() {
    let listed = TableOptions { classes: Some(Classes::Listed(vec!["cat".to_owned()])), ..options() };
    let empty = [String::new(), "blue".to_owned()].to_vec();
    let empty = TableOptions { classes: Some(Classes::Listed(empty)), ..options() };
    let named = TableOptions { normalize: vec![(Some("c".to_owned()), Normalize::MinMax)], ..options() };
    let mean = TableOptions { missing: Some(Missing::Mean), ..options() };
    let both = TableOptions {
        categories: vec![("a".to_owned(), Category::Ids)],
        normalize: vec![(Some("a".to_owned()), Normalize::MinMax)],
        ..options()
    };
    for (file, text, columns, options, why) in [
        ("t.csv", "", &["a"][..], options(), "it is empty"),
        ("t.csv", "a,b\n1\n", &["a"], options(), "line 2 has 1 fields, and the first line has 2"),
        ("t.csv", "a,a\n1,2\n", &["a"], options(), "two columns are named a"),
        ("t.csv", "1,-2.5e3\n3,4\n", &["1"], options(), "the first line has numbers alone (1,-2.5e3)"),
        ("t.csv", "label\n1\n", &["lable"], options(), "did you mean label?"),
        ("t.csv", "1,2,3\n", &["9"], layout(',', true, 0), "there is no column 9; there are 0, 1, 2"),
        ("t.csv", "a\u{1b}[2J,b\n1,2\n", &["c9"], options(), "there are a\\u{1b}[2J, b"),
        ("t.csv", "a;b\n1;2\n", &["b"], options(), "say which character separates them with \"delimiter\""),
        ("t.csv", "a\n1\n\"\n2\"\nx\n", &["a"], options(), "line 5: column a has \"x\", which is not a number"),
        ("t.csv", "a,b\n1,\"2\n3,4\n", &["b"], options(), "line 2: column b has \"2\\n3,4\", which is not a number"),
        (
            "t.csv",
            "a,b\n1,2\n,\n",
            &["a"],
            options(),
            "line 3: column a has \"\", a missing value; say what to do then",
        ),
        ("t.csv", "a\nNaN\n", &["a"], options(), "line 2: column a has \"NaN\", a missing value"),
        ("t.csv", "a\n\"1\"x\n", &["a"], options(), "line 2: column a has \"1x\", which is not a number"),
        ("t.csv", "a\nx\n1\ny\n", &["a"], options(), "2 lines cannot be read; they are:\n  line 2: column a has \"x\""),
        ("t.csv", "a\nx\ny\nx\ny\nx\nz\n", &["a"], options(), "6 lines cannot be read; the first 5:\n  line 2: "),
        ("t.csv", "a\ncat\ndog\n", &["a"], listed, "line 3: column a has \"dog\", which is not among cat"),
        ("t.csv", "a\ngreen\n", &["a"], empty, "which is not among \"\" (missing), blue"),
        ("t.csv", "a,c\n1,2\n", &["a"], named, "\"normalize\" names c, which is not among the columns that are taken"),
        ("t.csv", "a\nNA\n3\n", &["a"], mean, "column a has no number to measure"),
        ("t.jsonl", "{\"a\": 1}\n[2]\n", &["a"], options(), "line 2: expected an object"),
        (
            "t.jsonl",
            "{\"a\": 1}\n{\"a\"\n[3]\n{\"a\": 2}\n",
            &["a"],
            options(),
            "2 lines cannot be read; they are:\n  line 2: it is",
        ),
        ("t.csv", "a\r\n1\r\n\r\n3\r\n", &["a"], options(), "line 3: column a has \"\", a missing value"),
        ("t.jsonl", "{\"a\": 1}\n{\"a\": [2]}\n", &["a"], options(), "line 2: a is a list or an object"),
        ("t.jsonl", "{\"a\": 1}\n{\"b\": 2}\n", &["a"], options(), "line 2: column a has \"\", a missing value"),
        ("t.jsonl", "{\"a\": 1}\n{\"a\": }\n", &["a"], options(), "line 2: it is not JSON"),
        ("t.jsonl", "{\"a\": 1}\n", &["a"], layout(';', false, 0), "takes neither \"delimiter\""),
        ("t.csv", "a,b\n1,2\n", &["b..a"], options(), "the range b..a is empty"),
        ("t.csv", "a\n1\n", &["a"], layout(',', false, usize::MAX), "it is empty"),
        (
            "t.csv",
            "a\n3.14\n",
            &["a"],
            TableOptions { thousands: Some('.'), ..options() },
            "'.' stands before the fraction",
        ),
        (
            "t.csv",
            "a\n1\n",
            &["a"],
            TableOptions { decimal: Some('1'), ..options() },
            "'1' cannot stand before the fraction",
        ),
        ("t.csv", "a\n1\n", &["a"], both, "column a is in \"categories\", and so in neither"),
    ] {
        let message = read(file, text, columns, options).unwrap_err().message;
        assert!(message.contains(why), "{text:?}: {message}");
    }
}

/// A blank line between others is a missing field of a table with one column; one at the end is none.
#[test]
fn a_blank_line_of_one_column_is_a_missing_field() {
    let mean = || TableOptions { missing: Some(Missing::Value(-1.0)), ..options() };
    for (text, wanted) in [
        ("a\n1\n\n3\n", &[1.0, -1.0, 3.0][..]),
        ("a\r\n1\r\n\r\n\r\n3\r\n", &[1.0, -1.0, -1.0, 3.0]),
        ("\n\na\n\n1\n\n\n", &[-1.0, 1.0]),
        ("a\n\"1\"\n\n2", &[1.0, -1.0, 2.0]),
    ] {
        assert_eq!(read("t.csv", text, &["a"], mean()).unwrap().1, wanted, "{text:?}");
    }
    assert_eq!(read("t.csv", "a,b\n1,2\n\n3,4\n", &["a"], mean()).unwrap().1, [1.0, 3.0]);
}

#[test]
fn dates_have_offsets_and_need_no_day() {
    use DatePart::{Day, Hour, Minute, Month, Seconds, Year};
    let read = |field: &str, format: Option<&str>, parts: &[DatePart]| {
        let options = TableOptions {
            dates: vec![("t".to_owned(), parts.to_vec())],
            date_format: format.map(str::to_owned),
            ..options()
        };
        read("t.csv", &format!("t,u\n{field},1\n"), &["t"], options).map(|(_, numbers)| numbers)
    };
    // Seconds as by `date -u -d … +%s`.
    let all = [Hour, Minute, Seconds];
    for field in ["2026-05-31T12:30:00+02:00", "2026-05-31 12:30+02", "2026-05-31 12:30:00.5 +0200"] {
        assert_eq!(read(field, None, &all).unwrap(), [12.0, 30.0, 1_780_223_400.0], "{field}");
    }
    assert_eq!(read("2026-05-31T10:30Z", None, &all).unwrap(), [10.0, 30.0, 1_780_223_400.0]);
    assert_eq!(read("2026-05-31T08:30-02:00", None, &all).unwrap(), [8.0, 30.0, 1_780_223_400.0]);
    assert_eq!(read("05.2026", Some("%m.%Y"), &[Year, Month, Day]).unwrap(), [2026.0, 5.0, 1.0]);
    assert_eq!(read("2026", Some("%Y"), &[Year, Month, Day]).unwrap(), [2026.0, 1.0, 1.0]);
    assert_eq!(read("07:45", Some("%H:%M"), &[Hour, Minute]).unwrap(), [7.0, 45.0]);
    assert_eq!(read("31.05.2026 7 +0200", Some("%d.%m.%Y %H %z"), &[Day, Hour]).unwrap(), [31.0, 7.0]);
    for (field, format) in
        [("2026-13", Some("%Y-%m")), ("2026-05-31 12:30+99:99", None), ("31.02.2026", Some("%d.%m.%Y"))]
    {
        assert!(read(field, format, &[Day]).unwrap_err().message.contains("is not a date"), "{field}");
    }
}
