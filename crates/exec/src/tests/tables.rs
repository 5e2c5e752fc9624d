//! Tests of the ops of lookup tables: refusals, and vocabularies from files.

use meshtf_checkpoint::DataDir;

use super::ops::Ops;
use super::*;

fn texts(texts: &[&str]) -> Tensor {
    Tensor::vector(texts.iter().map(|text| text.as_bytes().to_vec()).collect())
}

fn fails(ops: &mut Ops, name: &str, given: &[(&str, &Tensor)], code: Code, words: &str) {
    let Err(failure) = ops.call(name, given) else { panic!("{name} was let") };
    assert_eq!(failure.code, code, "{name}: {failure}");
    assert!(failure.message.contains(words), "{name}: {failure}");
}

#[test]
fn a_vocabulary_comes_from_a_file_below_the_data_folder() {
    let folder = temp_dir::TempDir::new().unwrap();
    std::fs::write(folder.path().join("words"), "one\t1\r\ntwo\t2\nthree\t3").unwrap();
    std::fs::write(folder.path().join("holes"), "one\n\ntwo\n").unwrap();
    let resources = Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let text = "
        file = Placeholder dtype=string
        lines = HashTableV2 key_dtype=string value_dtype=int64
        number = InitializeTableFromTextFileV2 lines file key_index=-2 value_index=-1
        columns = HashTableV2 key_dtype=string value_dtype=int64
        split = InitializeTableFromTextFileV2 columns file key_index=0 value_index=1
        first = HashTableV2 key_dtype=int64 value_dtype=string
        two = InitializeTableFromTextFileV2 first file key_index=-1 value_index=0 vocab_size=2
        later = HashTableV2 key_dtype=string value_dtype=int64
        offset = InitializeTableFromTextFileV2 later file key_index=0 value_index=-1 vocab_size=2 offset=5
        all_later = LookupTableFindV2 later keys default
        short = InitializeTableFromTextFileV2 first file key_index=-1 value_index=0 vocab_size=9
        wide = InitializeTableFromTextFileV2 columns file key_index=0 value_index=2
        floats = HashTableV2 key_dtype=string value_dtype=float32
        whole = InitializeTableFromTextFileV2 floats file key_index=0 value_index=-2
        keys = Placeholder dtype=string
        default = Placeholder dtype=int64
        find = LookupTableFindV2 columns keys default
        size = LookupTableSizeV2 first";
    let mut ops = Ops::on(resources, text, Box::new(HostEngine));
    let file = |name: &str| Tensor::scalar(name.as_bytes().to_vec());
    let (words, default) = (file("words"), Tensor::scalar(-1i64));
    fails(&mut ops, "short", &[("file", &words)], Code::InvalidArgument, "expected 9 but got 3");
    fails(&mut ops, "wide", &[("file", &words)], Code::InvalidArgument, "expected 3 got 2");
    fails(&mut ops, "whole", &[("file", &words)], Code::InvalidArgument, "whole line requires");
    fails(&mut ops, "number", &[("file", &file("holes"))], Code::InvalidArgument, "empty line");
    fails(&mut ops, "number", &[("file", &file("absent"))], Code::NotFound, "No such file");
    fails(&mut ops, "number", &[("file", &file("../words"))], Code::PermissionDenied, "below");
    fails(&mut ops, "number", &[("file", &file("."))], Code::FailedPrecondition, "regular");
    let keys = texts(&["two", "three", "ten"]);
    fails(&mut ops, "find", &[("keys", &keys), ("default", &default)], Code::FailedPrecondition, "not initialized");
    for name in ["number", "split", "two", "offset"] {
        ops.answers(name, &[("file", &words)]);
    }
    assert_eq!(ops.answer("find", &[("keys", &keys), ("default", &default)]), Tensor::vector(vec![2i64, 3, -1]));
    assert_eq!(ops.answer("size", &[]), Tensor::scalar(2i64));
    // As TensorFlow 2.21 does, whose vocabulary size counts lines: no line is skipped.
    let keys = texts(&["one", "two", "three"]);
    assert_eq!(ops.answer("all_later", &[("keys", &keys), ("default", &default)]), Tensor::vector(vec![5i64, 6, -1]));
    // The table is filled already, so the contents of the file do not matter.
    ops.answers("short", &[("file", &file("words"))]);
}

/// TensorFlow's own example of a warm start: a row of a saved matrix belongs to each line of a vocabulary.
#[test]
fn a_saved_matrix_is_read_in_the_order_of_another_vocabulary() {
    let folder = temp_dir::TempDir::new().unwrap();
    std::fs::write(folder.path().join("old"), "knitting\neminem\nMISSING\n").unwrap();
    std::fs::write(folder.path().join("new"), "MISSING\nknitting\nflask\neminem\n").unwrap();
    let resources = Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let text = "
        new = Placeholder dtype=string
        old = Placeholder dtype=string
        maps = GenerateVocabRemapping new old new_vocab_offset=1 num_new_vocab=3
        many = GenerateVocabRemapping new old new_vocab_offset=2 num_new_vocab=3
        prefix = Placeholder dtype=string
        names = Placeholder dtype=string
        slices = Placeholder dtype=string
        w = Placeholder dtype=float32
        saves = SaveV2 prefix names slices w dtypes=<float32>
        name = Placeholder dtype=string
        rows = Placeholder dtype=int64
        columns = Placeholder dtype=int64
        initial = Placeholder dtype=float32
        loads = LoadAndRemapMatrix prefix name rows columns initial num_rows=3 num_cols=2";
    let mut ops = Ops::on(resources, text, Box::new(HostEngine));
    let named = |name: &str| Tensor::scalar(name.as_bytes().to_vec());
    let (new, old, prefix, name) = (named("new"), named("old"), named("saved"), named("w"));
    fails(
        &mut ops,
        "many",
        &[("new", &new), ("old", &old)],
        Code::InvalidArgument,
        "last new vocab entry's line number",
    );
    fails(&mut ops, "maps", &[("new", &named("../new")), ("old", &old)], Code::PermissionDenied, "below");
    let rows = Tensor::vector(vec![0i64, -1, 1]);
    assert_eq!(ops.answer("maps", &[("new", &new), ("old", &old)]), rows);
    let w = Tensor::from_vec([3, 2], vec![0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
    ops.answers("saves", &[("prefix", &prefix), ("names", &texts(&["w"])), ("slices", &texts(&[""])), ("w", &w)]);
    let (columns, initial) = (Tensor::vector(Vec::<i64>::new()), Tensor::vector(vec![8f32, 9.0]));
    let given = [("prefix", &prefix), ("name", &name), ("rows", &rows), ("columns", &columns), ("initial", &initial)];
    assert_eq!(ops.answer("loads", &given), Tensor::from_vec([3, 2], vec![0f32, 1.0, 8.0, 9.0, 2.0, 3.0]));
    let absent = named("v");
    let given = [("prefix", &prefix), ("name", &absent), ("rows", &rows), ("columns", &columns), ("initial", &initial)];
    fails(&mut ops, "loads", &given, Code::NotFound, "Key v not found");
}

#[test]
fn tables_refuse_what_does_not_fit_them() {
    let text = "
        keys = Placeholder dtype=string
        values = Placeholder dtype=int64
        fixed = HashTableV2 key_dtype=string value_dtype=int64
        fill = InitializeTableV2 fixed keys values
        put_fixed = LookupTableInsertV2 fixed keys values
        mutable = MutableHashTableV2 key_dtype=string value_dtype=int64
        put = LookupTableInsertV2 mutable keys values
        fill_mutable = InitializeTableV2 mutable keys values
        find = LookupTableFindV2 mutable keys values
        vectors = MutableHashTableOfTensorsV2 key_dtype=string value_dtype=int64 value_shape=[2]
        put_vectors = LookupTableInsertV2 vectors keys values
        ints = Placeholder dtype=int64
        put_ints = LookupTableInsertV2 mutable ints values
        dense = MutableDenseHashTable ints key_dtype=int64 value_dtype=int64 initial_num_buckets=2
        odd = MutableDenseHashTableV2 ints values key_dtype=int64 value_dtype=int64
        size = LookupTableSizeV2 mutable";
    let mut ops = Ops::new(text, Box::new(HostEngine));
    let (two, one) = (texts(&["a", "b"]), Tensor::vector(vec![1i64]));
    let both = Tensor::vector(vec![1i64, 2]);
    let invalid = Code::InvalidArgument;
    fails(&mut ops, "fill", &[("keys", &two), ("values", &one)], invalid, "same size 2 vs 1");
    let twice = texts(&["a", "a"]);
    fails(&mut ops, "fill", &[("keys", &twice), ("values", &both)], Code::FailedPrecondition, "different value");
    fails(&mut ops, "put_fixed", &[("keys", &two), ("values", &both)], Code::Unimplemented, "Insert not supported");
    fails(&mut ops, "fill_mutable", &[("keys", &two), ("values", &both)], invalid, "mutable");
    fails(&mut ops, "put", &[("keys", &two), ("values", &one)], invalid, "Expected shape [2] for value");
    fails(&mut ops, "put_vectors", &[("keys", &two), ("values", &both)], invalid, "Expected shape [2,2]");
    fails(&mut ops, "put_ints", &[("ints", &one), ("values", &one)], invalid, "Key must be type string");
    ops.answers("put", &[("keys", &two), ("values", &both)]);
    // A default for all, or one for each key.
    let other = texts(&["b", "c"]);
    let each = Tensor::vector(vec![7i64, 8]);
    assert_eq!(ops.answer("find", &[("keys", &other), ("values", &each)]), Tensor::vector(vec![2i64, 8]));
    fails(&mut ops, "find", &[("keys", &other), ("values", &one)], invalid, "for default value");
    assert_eq!(ops.answer("size", &[]), Tensor::scalar(2i64));

    let empty = Tensor::scalar(0i64);
    fails(&mut ops, "odd", &[("ints", &empty), ("values", &empty)], invalid, "cannot be equal");
    fails(&mut ops, "odd", &[("ints", &empty), ("values", &one)], invalid, "same shape");
    fails(&mut ops, "dense", &[("ints", &Tensor::from_vec([1, 1], vec![1i64]))], invalid, "scalar or a vector");
    ops.answers("dense", &[("ints", &empty)]);
}

#[test]
fn a_dense_table_has_only_so_many_buckets() {
    let text = "
        keys = Placeholder dtype=int64
        values = Placeholder dtype=int64
        empty = Const is=(0l)
        deleted = Const is=(-1l)
        much = MutableDenseHashTableV2 empty deleted key_dtype=int64 value_dtype=int64 max_load_factor=1e-20
        put = LookupTableInsertV2 much keys values
        large = MutableDenseHashTableV2 empty deleted key_dtype=int64 value_dtype=int64 initial_num_buckets=4611686018427387904
        size = LookupTableSizeV2 large
        some = MutableDenseHashTableV2 empty deleted key_dtype=int64 value_dtype=int64 initial_num_buckets=536870912
        export = LookupTableExportV2 some Tkeys=int64 Tvalues=int64";
    let mut ops = Ops::new(text, Box::new(HostEngine));
    let one = Tensor::vector(vec![1i64]);
    let exhausted = Code::ResourceExhausted;
    fails(&mut ops, "put", &[("keys", &one), ("values", &one)], exhausted, "take more than 536870912 buckets");
    fails(&mut ops, "export", &[], exhausted, "limit");
    let mut cluster = Cluster::new(1);
    let failure = cluster.run(&graph(text), &[], &["size"]).unwrap_err();
    assert_eq!(failure.code, exhausted, "{failure}");
    assert!(failure.message.contains("initial_num_buckets is 4611686018427387904"), "{failure}");
}
