//! An ONNX model through the command: made by hand here, message by message, so that the test has every byte of it.

use crate::sandbox::Sandbox;

/// A field of a message: bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128, "its length is one byte");
    [&[number << 3 | 2, content.len() as u8], content].concat()
}

fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// A node: inputs, one output, an op type.
fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let mut content: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    content.extend(field(2, output.as_bytes()));
    content.extend(field(4, op.as_bytes()));
    field(1, &content)
}

/// An input or output of the graph, float, with a named and a stated size.
fn info(number: u8, name: &str) -> Vec<u8> {
    let shape = [field(1, &field(2, b"n")), field(1, &varint(1, 2))].concat();
    let tensor = [varint(1, 1), field(2, &shape)].concat();
    field(number, &[field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat())
}

/// `y = relu(x * w) + b`, and `z = -y`; w is in the model, b in a file beside it.
fn model() -> Vec<u8> {
    let floats: Vec<u8> = [1f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let w = [varint(1, 2), varint(2, 1), field(8, b"w"), field(9, &floats)].concat();
    let location = [field(1, b"location"), field(2, b"b.bin")].concat();
    let b = [varint(1, 2), varint(2, 1), field(8, b"b"), field(13, &location), varint(14, 1)].concat();
    let graph = [
        node("Mul", &["x", "w"], "xw"),
        node("Relu", &["xw"], "r"),
        node("Add", &["r", "b"], "y:out"),
        node("Neg", &["y:out"], "z"),
        field(5, &w),
        field(5, &b),
        info(11, "x"),
        info(12, "y:out"),
        info(12, "z"),
    ]
    .concat();
    // The graph's length takes two bytes.
    let length = [(graph.len() & 127) as u8 | 128, (graph.len() >> 7) as u8];
    [varint(1, 10), vec![7 << 3 | 2], length.to_vec(), graph, field(8, &varint(2, 21))].concat()
}

#[test]
fn a_model_runs_is_planned_and_differentiated() {
    let sandbox = Sandbox::new();
    let file = |name: &str| sandbox.path(name).display().to_string();
    // The name says nothing: the content does.
    std::fs::write(file("model.bin"), model()).unwrap();
    std::fs::write(file("b.bin"), [0.5f32, 0.25].map(f32::to_le_bytes).concat()).unwrap();
    let path = file("model.bin");

    let ran = sandbox.run(&["run", &path, "--feed", "x=[[3,1],[-1,-2]]", "--json"]).expect(0);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    // 3·1 and 1·(-2), -1·1 and -2·(-2), above zero, and the file's 0.5 and 0.25 added. Results have the names of the model.
    assert_eq!(answer["values"]["y:out"]["value"], serde_json::json!([[3.5, 0.25], [0.5, 4.25]]), "{}", ran.stdout);
    assert_eq!(answer["values"]["z"]["value"], serde_json::json!([[-3.5, -0.25], [-0.5, -4.25]]));

    // By the name in the model, which is no name of a node.
    let one = sandbox.run(&["run", &path, "--feed", "x=[[3,1]]", "--fetch", "y:out", "-q"]).expect(0);
    assert_eq!(one.stdout.trim(), "[[3.5  0.25]]");

    let made = file("gradient.json");
    sandbox.run(&["differentiate", &path, "--of", "z", "--by", "w", "--out", &made]).expect(0);
    let gradient =
        sandbox.run(&["run", &made, "--feed", "x=[[3,1],[-1,-2]]", "--fetch", "gradients/w", "-q"]).expect(0);
    // The gradient of the sum of z: of the elements above zero, -x.
    assert_eq!(gradient.stdout.trim(), "[-3.  2.]");

    std::fs::remove_file(file("b.bin")).unwrap();
    let missing = sandbox.run(&["run", &path, "--feed", "x=[[3,1]]"]).expect(2);
    assert!(missing.stderr.contains("node b") && missing.stderr.contains("b.bin"), "{}", missing.stderr);
}
