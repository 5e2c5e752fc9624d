//! Tests of reading, refusing and writing GraphDefs, with TensorFlow's results written by hand.

use half::{bf16, f16};
use meshtf_tensor::{Complex, DType, Data, PartialShape};
use proptest::prelude::*;

use super::*;

/// A GraphDef of one Const whose tensor is this JSON.
fn constant(tensor: &str) -> Result<Tensor, String> {
    let text = format!(r#"{{"node": [{{"name": "c", "op": "Const", "attr": {{"value": {{"tensor": {tensor}}}}}}}]}}"#);
    let nodes = from_json(&text).map_err(|error| error.to_string())?;
    match &nodes[0].refused {
        Some(why) => Err(format!("node c: {why}")),
        None => nodes[0].attrs.whole_tensor("value").map_err(|failure| failure.message),
    }
}

#[test]
fn tensors_are_read_as_tensorflow_reads_them() {
    let check = |json: &str, want: Tensor| assert_eq!(constant(json), Ok(want), "{json}");
    check(r#"{"dtype": "DT_INT32", "tensorShape": {}, "intVal": [2]}"#, Tensor::scalar(2i32));
    check(r#"{"dtype": 3, "intVal": ["2"]}"#, Tensor::scalar(2i32));
    let dims = |n: &str| format!(r#""tensorShape": {{"dim": [{{"size": {n}}}]}}"#);
    let (three, two) = (dims("\"3\""), dims("2"));
    // One value fills the shape, a cut-off list repeats its last, none at all is zeros.
    check(&format!(r#"{{"dtype": "DT_FLOAT", {three}, "floatVal": [0.5]}}"#), Tensor::vector(vec![0.5f32; 3]));
    check(&format!(r#"{{"dtype": "DT_INT64", {three}, "int64Val": ["1", 2]}}"#), Tensor::vector(vec![1i64, 2, 2]));
    check(&format!(r#"{{"dtype": "DT_BOOL", {two}}}"#), Tensor::vector(vec![false, false]));
    check(
        &format!(r#"{{"dtype": "DT_STRING", {two}, "string_val": ["aGk="]}}"#),
        Tensor::vector(vec![b"hi".to_vec(), b"hi".to_vec()]),
    );
    // Half floats are their bits; 0x3c00 is 1 and 0x3f80 is 1 in bfloat16.
    check(r#"{"dtype": "DT_HALF", "halfVal": [15360]}"#, Tensor::scalar(f16::ONE));
    check(r#"{"dtype": "DT_BFLOAT16", "half_val": [16256]}"#, Tensor::scalar(bf16::ONE));
    check(
        &format!(r#"{{"dtype": "DT_DOUBLE", {three}, "doubleVal": ["NaN", "Infinity", "-Infinity"]}}"#)
            .replace("\"NaN\", ", "1.5, "),
        Tensor::vector(vec![1.5, f64::INFINITY, f64::NEG_INFINITY]),
    );
    // Little-endian bytes, with either alphabet and with or without padding.
    check(
        &format!(r#"{{"dtype": "DT_UINT16", {two}, "tensorContent": "+/8AAQ=="}}"#),
        Tensor::vector(vec![0xfffbu16, 256]),
    );
    check(
        &format!(r#"{{"dtype": "DT_UINT16", {two}, "tensor_content": "-_8AAQ"}}"#),
        Tensor::vector(vec![0xfffbu16, 256]),
    );
    check(
        &format!(r#"{{"dtype": "DT_STRING", {two}, "tensorContent": "AQJhYmM="}}"#),
        Tensor::vector(vec![b"a".to_vec(), b"bc".to_vec()]),
    );
    check(r#"{"dtype": "DT_UINT8", "intVal": [255], "floatVal": null}"#, Tensor::scalar(255u8));
    let quantized = |plain: Tensor, dtype| plain.retyped(dtype).unwrap();
    check(r#"{"dtype": "DT_QUINT8", "intVal": [255]}"#, quantized(Tensor::scalar(255u8), DType::QU8));
    check(
        r#"{"dtype": "DT_QINT8", "tensorShape": {"dim": [{"size": 2}]}, "tensorContent": "A/0="}"#,
        quantized(Tensor::vector(vec![3i8, -3]), DType::QI8),
    );
    check(
        r#"{"dtype": "DT_QINT32", "tensorShape": {"dim": [{"size": 2}]}, "intVal": [-7]}"#,
        quantized(Tensor::vector(vec![-7i32; 2]), DType::QI32),
    );
    check(
        r#"{"dtype": "DT_COMPLEX64", "scomplexVal": [1.5, "-Infinity"]}"#,
        Tensor::scalar(Complex::new(1.5f32, f32::NEG_INFINITY)),
    );
    let two = r#""tensorShape": {"dim": [{"size": 2}]}"#;
    check(
        &format!(r#"{{"dtype": "DT_COMPLEX128", {two}, "dcomplexVal": [1, 2]}}"#),
        Tensor::vector(vec![Complex::new(1f64, 2.0); 2]),
    );
    check(r#"{"dtype": "DT_UINT64", "uint64Val": ["18446744073709551615"]}"#, Tensor::scalar(u64::MAX));
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let check = |json: &str, part: &str| {
        let error = constant(json).expect_err(json);
        assert!(error.contains(part), "{json}: {error}");
    };
    check(r#"{"dtype": "DT_INT4"}"#, "node c: attribute \"value\" has dtype DT_INT4");
    check(
        r#"{"dtype": "DT_COMPLEX64", "scomplexVal": [1, 2, 3]}"#,
        "has 3 numbers in scomplexVal, which holds two for each",
    );
    check(r#"{"dtype": "DT_VARIANT"}"#, "has 0 variants and the shape []; a constant of DT_VARIANT is one");
    check(
        r#"{"dtype": "DT_VARIANT", "variantVal": [{"typeName": "x"}]}"#,
        "of type \"x\"; a constant of DT_VARIANT is one",
    );
    let short = r#"{"dtype": "DT_VARIANT", "variantVal": [{"typeName": "int", "metadata": "AAA="}]}"#;
    check(short, "takes 4 bytes, got 2");
    check(r#"{"dtype": "DT_QUINT8", "intVal": [256]}"#, "has 256 in intVal");
    check(r#"{"dtype": "DT_NONSENSE"}"#, "is not a dtype");
    check(r#"{"dtype": 4711}"#, "4711");
    check(r#"{"dtype": "DT_RESOURCE"}"#, "resource handle");
    check(r#"{"dtype": "DT_UINT8", "intVal": [256]}"#, "256");
    check(r#"{"dtype": "DT_INT32", "intVal": [3000000000]}"#, "is not a whole number of 32 bits");
    check(r#"{"dtype": "DT_INT32", "intVal": [1.5]}"#, "is not a whole number");
    check(r#"{"dtype": "DT_INT32", "intVal": [1, 2]}"#, "2 values, but its shape holds 1");
    check(r#"{"dtype": "DT_INT32", "tensorContent": "AAAA"}"#, "takes 4 bytes, got 3");
    check(r#"{"dtype": "DT_INT32", "tensorContent": "A*AA"}"#, "invalid base64");
    check(r#"{"dtype": "DT_FLOAT", "tensorShape": {"unknownRank": true}}"#, "not fully known");
    check(r#"{"dtype": "DT_FLOAT", "tensorShape": {"dim": [{"size": 10000000000}]}}"#, "exceeds the limit");
    check(r#"{"dtype": "DT_STRING", "tensorShape": {"dim": [{"size": 1000000000}]}}"#, "exceeds the limit");
    let wide = format!(
        r#"{{"dtype": "DT_STRING", "tensorShape": {{"dim": [{{"size": 1000000}}]}}, "stringVal": ["{}"]}}"#,
        "AAAA".repeat(1000)
    );
    check(&wide, "exceeds the limit of 2147483647 bytes");
    // The elements that a list of values omits are allocated, and so have a separate limit.
    let long = r#"{"dtype": "DT_FLOAT", "tensorShape": {"dim": [{"size": 100000000}]}, "floatVal": [1, 2]}"#;
    check(long, "more than 268435456 bytes in total");
    check(r#"{"dtype": "DT_FLOAT", "floatvals": []}"#, "no field \"floatvals\"; did you mean \"floatVal\"?");
    check(r#"{"dtype": "DT_STRING", "tensorShape": {"dim": [{"size": 2}]}, "tensorContent": "BQVh"}"#, "cut off");
}

#[test]
fn functions_are_refused_where_nobody_calls_them() {
    let library = r#""library": {"function": [{"signature": {"name": "f", "inputArg": []}, "ret": {}}]}"#;
    let graph =
        |op: &str, attr: &str| format!(r#"{{"node": [{{"name": "n", "op": "{op}", "attr": {{{attr}}}}}], {library}}}"#);
    assert_eq!(from_json(&graph("NoOp", "")).unwrap().len(), 1);
    let nodes = from_json(&graph("XlaLaunch", r#""f": {"func": {"name": "f", "attr": {}}}"#)).unwrap();
    let error = nodes[0].refused.as_deref().unwrap();
    assert!(error.contains("attribute \"f\" is the function \"f\"; of the ops that take functions"), "{error}");
    let hidden = graph("NoOp", r#""_f": {"func": {"name": "f"}}, "_gradient_op_type": {"s": "eA=="}"#);
    assert_eq!(from_json(&hidden).unwrap()[0].attrs, Attrs::from([("_gradient_op_type", Attr::Str(b"x".to_vec()))]));
}

/// 16 bytes of a message may stand for 8 GB: the constant stays compact until a step uses it.
#[test]
fn a_large_constant_of_one_value_stays_one_value() {
    let check = |tensor: &str, want: (DType, usize, Tensor)| {
        let text =
            format!(r#"{{"node": [{{"name": "c", "op": "Const", "attr": {{"value": {{"tensor": {tensor}}}}}}}]}}"#);
        let nodes = from_json(&text).unwrap();
        let Some(Attr::Filled(filled)) = nodes[0].attrs.get("value") else { panic!("{:?}", nodes[0].attrs) };
        assert_eq!((filled.element().dtype(), filled.shape().dims()[0], filled.element().clone()), want);
        assert_eq!(from_binary(&to_binary(&nodes)).unwrap(), nodes);
        assert_eq!(from_json(&to_json(&nodes)).unwrap(), nodes);
    };
    let dims = |n: usize| format!(r#""tensorShape": {{"dim": [{{"size": {n}}}]}}"#);
    let most = (1 << 29) - 1;
    check(
        &format!(r#"{{"dtype": "DT_FLOAT", {}, "floatVal": [0.5]}}"#, dims(most)),
        (DType::F32, most, Tensor::scalar(0.5f32)),
    );
    check(&format!(r#"{{"dtype": "DT_INT64", {}}}"#, dims(1 << 27)), (DType::I64, 1 << 27, Tensor::scalar(0i64)));
    let text = format!(r#"{{"dtype": "DT_INT32", {}, "intVal": [7]}}"#, dims(65_536));
    assert_eq!(constant(&text), Ok(Tensor::vector(vec![7i32; 65_536])));
}

/// As TensorFlow's aggregate_ops_test writes the int 3.
#[test]
fn a_constant_variant_contains_a_number() {
    let value =
        r#"{"dtype": "DT_VARIANT", "tensorShape": {}, "variantVal": [{"typeName": "int", "metadata": "AwAAAA=="}]}"#;
    let node = format!(
        r#"{{"node": [{{"name": "c", "op": "Const", "attr": {{"dtype": {{"type": "DT_VARIANT"}}, "value": {{"tensor": {value}}}}}}}]}}"#
    );
    let nodes = from_json(&node).unwrap();
    assert_eq!(nodes[0].attrs.get("value"), Some(&Attr::Variant(Tensor::scalar(3i32))));
    assert_eq!(nodes[0].attrs.tensor_type("value"), Ok((DType::Variant, &meshtf_tensor::Shape::scalar())));
    assert_eq!(from_binary(&to_binary(&nodes)).unwrap(), nodes);
}

/// Before version 24, clients wrote [] for an unknown shape.
#[test]
fn a_placeholder_of_an_old_client_may_have_any_shape() {
    let check = |versions: &str, shape: &str, want: PartialShape| {
        let attr = format!(r#""dtype": {{"type": "DT_FLOAT"}}, "shape": {{"shape": {shape}}}"#);
        let text = format!(
            r#"{{"node": [{{"name": "p", "op": "Placeholder", "attr": {{{attr}}}}}], "versions": {versions}}}"#
        );
        assert_eq!(from_json(&text).unwrap()[0].attrs.shape("shape"), Ok(&want), "{text}");
    };
    let (scalar, some) = (PartialShape(Some(vec![])), PartialShape(Some(vec![Some(3)])));
    check(r#"{"producer": 23}"#, "{}", PartialShape::UNKNOWN);
    check("{}", "{}", PartialShape::UNKNOWN);
    check(r#"{"producer": 24}"#, "{}", scalar);
    check(r#"{"producer": 9}"#, r#"{"dim": [{"size": 3}]}"#, some);
}

/// TensorFlow 1 had no attribute for it.
#[test]
fn the_draws_of_a_shuffle_by_an_old_client_go_on() {
    let marked = |attr: &str| {
        let text = format!(r#"{{"node": [{{"name": "s", "op": "ShuffleAndRepeatDataset", "attr": {{{attr}}}}}]}}"#);
        from_json(&text).unwrap()[0].attrs.get(DRAWS_GO_ON).cloned()
    };
    assert_eq!(marked(""), Some(Attr::Bool(true)));
    assert_eq!(marked(r#""reshuffle_each_iteration": {"b": true}"#), None);
}

#[test]
fn faults_in_the_json_have_their_place() {
    let check = |text: &str, want: &str| assert_eq!(from_json(text).unwrap_err().to_string(), want);
    check("{\"node\": [{\"name\": 1}]}", "$.node[0].name (line 1, column 20): expected a string, found a number");
    check(
        "{\"node\": [\n  {\"nam\": \"a\"}]}",
        "$.node[0].nam (line 2, column 4): NodeDef has no field \"nam\"; did you mean \"name\"?",
    );
    check("{\"node\": {}}", "$.node (line 1, column 10): expected a list, found an object");
    check("{\"node\": [}", "line 1, column 11: expected a value, found '}'");
    check(
        r#"{"node": [{"attr": {"T": {"i": "1", "f": 2}}}]}"#,
        "$.node[0].attr.T.f (line 1, column 42): an attribute has one value",
    );
}

fn every_attr() -> Vec<NodeDef> {
    let attrs = Attrs::from([
        ("bool", Attr::Bool(true)),
        ("bools", Attr::Bools(vec![true, false])),
        ("float", Attr::Float(0.1)),
        ("floats", Attr::Floats(vec![f32::INFINITY, -0.0])),
        ("int", Attr::Int(i64::MIN)),
        ("ints", Attr::Ints(vec![-1, i64::MAX])),
        ("list", Attr::Empty),
        ("shape", Attr::Shape(PartialShape(Some(vec![None, Some(3)])))),
        ("shapes", Attr::Shapes(vec![PartialShape::UNKNOWN, PartialShape(Some(vec![]))])),
        ("string", Attr::Str(vec![0xff, 0])),
        ("strings", Attr::Strs(vec![b"loc:@x".to_vec(), vec![]])),
        ("tensor", Attr::Tensor(Tensor::vector(vec![b"a".to_vec(), vec![]]))),
        ("type", Attr::Type(DType::BF16)),
        ("types", Attr::Types(DType::all().collect())),
        ("_output_shapes", Attr::Shapes(vec![PartialShape::UNKNOWN])),
    ]);
    let inputs = vec!["a:1".to_owned(), "^b".to_owned()];
    vec![
        NodeDef { name: "n".into(), op: "Op".into(), inputs, device: "/job:local/task:0".into(), attrs, refused: None },
        NodeDef { name: "m".into(), ..NodeDef::default() },
    ]
}

#[test]
fn every_kind_of_attribute_is_written_and_read_back() {
    let nodes = every_attr();
    assert_eq!(from_binary(&to_binary(&nodes)).unwrap(), nodes);
    assert_eq!(from_json(&to_json(&nodes)).unwrap(), nodes);
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let elements = 0usize..6;
    prop_oneof![
        (elements.clone(), any::<f32>()).prop_map(|(n, v)| Tensor::vector(vec![v; n])),
        proptest::collection::vec(any::<u64>(), elements.clone()).prop_map(Tensor::vector),
        proptest::collection::vec(any::<i8>(), elements.clone()).prop_map(Tensor::vector),
        proptest::collection::vec(any::<bool>(), elements.clone()).prop_map(Tensor::vector),
        any::<u16>().prop_map(|bits| Tensor::scalar(f16::from_bits(bits))),
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), elements)
            .prop_map(|strings| Tensor::new([strings.len()], Data::String(strings)).unwrap()),
    ]
}

/// Equal except for NaN, which equals nothing: every NaN has the same text.
fn same(a: &Tensor, b: &Tensor) -> bool {
    (a.dtype(), a.shape(), a.to_string()) == (b.dtype(), b.shape(), b.to_string())
}

proptest! {
    #[test]
    fn tensors_survive_both_forms(tensor in any_tensor()) {
        let attrs = Attrs::from([("value", Attr::Tensor(tensor.clone()))]);
        let nodes = vec![NodeDef { name: "c".into(), op: "Const".into(), attrs, ..NodeDef::default() }];
        let binary = from_binary(&to_binary(&nodes)).unwrap();
        prop_assert!(same(binary[0].attrs.tensor("value").unwrap(), &tensor));
        let json = from_json(&to_json(&nodes)).unwrap();
        prop_assert!(same(json[0].attrs.tensor("value").unwrap(), &tensor));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = from_binary(&bytes);
        let _ = crate::read(&bytes);
    }

    #[test]
    fn no_damaged_file_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        for mut bytes in [to_binary(&every_attr()), to_json(&every_attr()).into_bytes()] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            let _ = crate::read(&bytes);
        }
    }
}

#[test]
fn functions_that_attributes_hold_are_written_and_read_again() {
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/dataset_functions/graph.pb");
    let nodes = from_binary(&std::fs::read(recorded).unwrap()).unwrap();
    assert!(nodes.iter().all(|node| node.refused.is_none()));
    let holding = nodes.iter().filter(|node| node.attrs.0.values().any(|attr| matches!(attr, Attr::Func(_))));
    assert!(holding.count() > 20);
    let again = from_binary(&to_binary(&nodes)).unwrap();
    for (node, again) in nodes.iter().zip(&again) {
        assert_eq!(format!("{node:#?}"), format!("{again:#?}"), "{}", node.name);
    }
    assert_eq!(nodes.len(), again.len());
}

#[test]
fn functions_of_one_name_that_differ_are_written_under_two() {
    let answering = |number: i64| {
        let attrs = [("dtype", Attr::Type(DType::I64)), ("value", Attr::Tensor(Tensor::scalar(number)))];
        let node = NodeDef { name: "f/n".into(), op: "Const".into(), attrs: Attrs::from(attrs), ..NodeDef::default() };
        let results = vec![("f/n".to_owned(), DType::I64)];
        let body = crate::FunctionBody { name: "f".into(), nodes: vec![node], results, ..Default::default() };
        crate::Function::new(body)
    };
    let holding = |number: i64| NodeDef {
        name: format!("d{number}"),
        op: "MapDataset".into(),
        attrs: Attrs::from([("f", Attr::Func(answering(number)))]),
        ..NodeDef::default()
    };
    let nodes = [holding(1), holding(2), NodeDef { name: "again".into(), ..holding(2) }];
    let read = from_binary(&to_binary(&nodes)).unwrap();
    let answers = read.iter().map(|node| match node.attrs.get("f") {
        Some(Attr::Func(function)) => match function.nodes.iter().find_map(|node| node.attrs.get("value")) {
            Some(Attr::Tensor(value)) => (function.name.clone(), value.to_i64().unwrap()),
            other => panic!("{other:?}"),
        },
        other => panic!("{}: {other:?}, {:?}", node.name, node.refused),
    });
    let wanted = [("f", 1), ("f_1", 2), ("f_1", 2)].map(|(name, number)| (name.to_owned(), number));
    assert_eq!(answers.collect::<Vec<_>>(), wanted);
}
