//! Constants that are divided, since no device has the memory for them or to be multiplied by several: the values are those of
//! the whole constant.

use meshtf_graph::NodeDef;
use meshtf_graph::plan::{divided, divided_among};
use meshtf_tensor::device::{Capacity, DeviceFacts, DeviceMemory};

use super::*;

/// A device that may hold three quarters of so many bytes.
fn with_memory(free: u64) -> DeviceFacts {
    let capacity = Capacity { memory: Some(DeviceMemory { total: free, free }), ..Capacity::default() };
    DeviceFacts { capacity, ..DeviceFacts::unknown(Task::new("t", 0).device(DeviceKind::Cpu, 0)) }
}

/// A graph of these lines and a constant `w` of floats that no two neighbours have alike.
fn with_constant(lines: &str, shape: [usize; 2]) -> Graph {
    let elements = (0..shape[0] * shape[1]).map(|at| ((at * 37 % 101) as f32 - 50.0) / 7.0).collect();
    let w = Tensor::from_vec(shape.to_vec(), elements);
    let mut defs: Vec<NodeDef> = lines.lines().filter(|line| !line.trim().is_empty()).map(node).collect();
    defs.push(NodeDef::constant("w".into(), String::new(), Attr::Tensor(w)));
    Graph::new(defs).unwrap()
}

fn floats(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    Tensor::from_vec(shape.to_vec(), (0..count).map(|at| ((at * 29 % 67) as f32 - 33.0) / 5.0).collect())
}

/// A node of which `_class` names another.
fn beside(line: &str, with: &str) -> NodeDef {
    let mut def = node(line);
    def.attrs.set("_class", Attr::Strs(vec![format!("loc:@{with}").into_bytes()]));
    def
}

/// Whether two results are the same but for the rounding of sums of so many products, of numbers below 7 and 14.
#[track_caller]
fn are_near(whole: &Tensor, divided: &Tensor, terms: usize, what: &str) {
    assert_eq!(whole.shape(), divided.shape(), "{what}");
    let off = whole.numbers().unwrap().zip(divided.numbers().unwrap()).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f64::max) < terms as f64 * 98.0 * f64::from(f32::EPSILON), "{what}");
}

#[test]
fn products_by_columns_have_the_same_values_and_look_ups_the_same_bits() {
    let indices = Tensor::from_vec(vec![2, 3], vec![0i32, 11, 5, 6, 7, 0]);
    let wide = Tensor::from_vec(vec![2], vec![11i64, 3]);
    let cases: [(&str, [usize; 2], Tensor); 8] = [
        ("y = MatMul x w", [6, 12], floats(&[3, 6])),
        ("y = MatMul x w transpose_b=true", [12, 6], floats(&[3, 6])),
        ("y = MatMul x w transpose_a=true", [6, 12], floats(&[6, 3])),
        ("r = Identity w\ny = MatMul x r", [6, 12], floats(&[3, 6])),
        ("y = BatchMatMulV2 x w", [6, 12], floats(&[2, 3, 6])),
        ("y = BatchMatMulV2 x w adj_y=true", [12, 6], floats(&[2, 3, 6])),
        ("zero = Const is=(0)\ny = GatherV2 w x zero", [12, 6], indices),
        ("y = Gather w x", [12, 6], wide),
    ];
    for (lines, shape, fed) in cases {
        let dims: Vec<String> = fed.dims().iter().map(usize::to_string).collect();
        let placeholder = format!("x = Placeholder dtype={} shape=[{}]\n", fed.dtype().name(), dims.join(","));
        let graph = with_constant(&format!("{placeholder}{lines}"), shape);
        // 288 bytes, of which a device may hold 150, and a part a quarter of that.
        let parts = divided(&graph, &[with_memory(200)], &["y"]).unwrap().expect(lines);
        let of_w = |graph: &Graph| graph.nodes().filter(|(_, node)| node.name.starts_with("w/part")).count();
        assert_eq!((of_w(&parts), parts.find("w")), (8, None), "{lines}");
        let run = |graph: &Graph| Cluster::new(1).run(graph, &[("x", fed.clone())], &["y"]).unwrap().remove(0);
        let (whole, divided) = (run(&graph), run(&parts));
        match lines.contains("Gather") {
            true => assert_eq!((whole.shape(), whole.bytes()), (divided.shape(), divided.bytes()), "{lines}"),
            false => are_near(&whole, &divided, 6, lines),
        }
    }
}

#[test]
fn a_matrix_of_few_columns_is_divided_by_rows() {
    for (lines, shape, fed) in [
        ("y = MatMul x w", [48, 2], floats(&[3, 48])),
        ("y = MatMul x w transpose_a=true", [48, 2], floats(&[48, 3])),
        ("y = BatchMatMulV2 x w adj_y=true", [2, 48], floats(&[2, 3, 48])),
    ] {
        let dims: Vec<String> = fed.dims().iter().map(usize::to_string).collect();
        let graph = with_constant(&format!("x = Placeholder dtype=float32 shape=[{}]\n{lines}", dims.join(",")), shape);
        let parts = divided(&graph, &[with_memory(200)], &["y"]).unwrap().expect(lines);
        assert_eq!(parts.node(parts.find("y").unwrap()).op.name, "AddN", "{lines}");
        let run = |graph: &Graph| Cluster::new(1).run(graph, &[("x", fed.clone())], &["y"]).unwrap().remove(0);
        let (whole, divided) = (run(&graph), run(&parts));
        are_near(&whole, &divided, 48, lines);
    }
}

#[test]
fn products_among_devices_are_divided_by_columns() {
    for (lines, shape, fed) in [
        ("y = MatMul x w", [6, 13], floats(&[3, 6])),
        ("y = MatMul x w transpose_b=true", [13, 6], floats(&[3, 6])),
        ("a = MatMul x w\nb = Neg x\nc = MatMul b w\ny = Mul a c", [6, 13], floats(&[3, 6])),
    ] {
        let dims: Vec<String> = fed.dims().iter().map(usize::to_string).collect();
        let graph = with_constant(&format!("x = Placeholder dtype=float32 shape=[{}]\n{lines}", dims.join(",")), shape);
        let parts = divided_among(&graph, 3, 100, &["y"]).unwrap().expect(lines);
        let value =
            |part: usize| parts.node(parts.find(&format!("w/part{part}")).unwrap()).attrs.tensor("value").unwrap();
        let columns = |part: usize| value(part).byte_len() / 24;
        assert_eq!(([0, 1, 2].map(columns), parts.find("w/part3")), ([5, 4, 4], None), "{lines}");
        let run = |graph: &Graph| Cluster::new(1).run(graph, &[("x", fed.clone())], &["y"]).unwrap().remove(0);
        let (whole, divided) = (run(&graph), run(&parts));
        // At most two factors of six products each.
        are_near(&whole, &divided, 6 * 6 * 98, lines);
    }
}

/// A graph of these lines with constants of floats.
fn with_constants(lines: &str, constants: &[(&str, &[usize])]) -> Graph {
    let mut defs: Vec<NodeDef> = lines.lines().filter(|line| !line.trim().is_empty()).map(node).collect();
    for &(name, shape) in constants {
        defs.push(NodeDef::constant(name.into(), String::new(), Attr::Tensor(floats(shape))));
    }
    Graph::new(defs).unwrap()
}

#[test]
fn a_product_by_rows_follows_products_by_columns_part_by_part() {
    let bias = "h = MatMul x w\nb = BiasAdd h c\nr = Relu b\ny = MatMul r v";
    let gated = "g = MatMul x w\ns = Sigmoid g\nt = Mul g s\nu = MatMul x w2\nz = Mul t u\ny = MatMul z v";
    let read = "k = Identity w\nh = MatMul x k\nr = Relu h\nj = Identity v\ny = MatMul r j transpose_b=true";
    let twice = "h = MatMul x w\nn = Neg h\na = Add n one\nm = Maximum a h\ny = MatMul m v";
    let batch = "h = BatchMatMulV2 x w\nr = Relu h\ny = BatchMatMulV2 r v";
    let constants: &[(&str, &[usize])] =
        &[("w", &[6, 13]), ("w2", &[6, 13]), ("c", &[13]), ("one", &[1]), ("v", &[13, 4])];
    for (lines, v, x) in [
        (bias, [13, 4], &[3, 6][..]),
        (gated, [13, 4], &[3, 6]),
        (read, [4, 13], &[3, 6]),
        (twice, [13, 4], &[3, 6]),
        (batch, [13, 4], &[2, 3, 6]),
    ] {
        let mut own: Vec<(&str, &[usize])> =
            constants.iter().copied().filter(|(name, _)| lines.contains(&format!(" {name}"))).collect();
        own.iter_mut().filter(|(name, _)| *name == "v").for_each(|one| one.1 = &v);
        let dims: Vec<String> = x.iter().map(usize::to_string).collect();
        let graph = with_constants(&format!("x = Placeholder dtype=float32 shape=[{}]\n{lines}", dims.join(",")), &own);
        let parts = divided_among(&graph, 3, 100, &["y"]).unwrap().expect(lines);
        let concatenated = parts.nodes().filter(|(_, node)| node.op.name == "ConcatV2").count();
        assert_eq!((parts.node(parts.find("y").unwrap()).op.name, concatenated), ("AddN", 0), "{lines}");
        assert!(["w", "v"].iter().all(|name| parts.find(name).is_none()), "{lines}");
        let sizes = |part: usize| {
            let node = parts.node(parts.find(&format!("w/part{part}")).unwrap());
            node.attrs.tensor("value").unwrap().dims().to_vec()
        };
        assert_eq!([sizes(0), sizes(1), sizes(2)], [[6, 5], [6, 4], [6, 4]], "{lines}");
        let run = |graph: &Graph| Cluster::new(1).run(graph, &[("x", floats(x))], &["y"]).unwrap().remove(0);
        let (whole, divided) = (run(&graph), run(&parts));
        // Sums of 13 products of up to three sums of six each.
        are_near(&whole, &divided, 13 * 6 * 6 * 98 * 7, lines);
    }
}

#[test]
fn products_are_no_pair_if_others_take_what_is_between() {
    let all = [("w", &[6, 13][..]), ("v", &[13, 4]), ("wide", &[13, 40]), ("c", &[13])];
    let ends_whole = |lines: &str, named: &[&str]| {
        let own: Vec<(&str, &[usize])> =
            all.iter().copied().filter(|(name, _)| lines.contains(&format!(" {name}"))).collect();
        let graph = with_constants(&format!("x = Placeholder dtype=float32 shape=[3,6]\n{lines}"), &own);
        let parts = divided_among(&graph, 3, 100, named).unwrap().expect(lines);
        parts.node(parts.find("y").unwrap()).op.name != "AddN"
    };
    assert!(!ends_whole("h = MatMul x w\nr = Relu h\ny = MatMul r v", &["y"]));
    assert!(ends_whole("h = MatMul x w\nr = Relu h\ny = MatMul r v", &["y", "r"]));
    assert!(ends_whole("h = MatMul x w\nr = Relu h\ny = MatMul r v\nother = Neg r", &["y", "other"]));
    assert!(ends_whole("h = MatMul x w\nr = Softmax h\ny = MatMul r v", &["y"]));
    assert!(ends_whole("h = MatMul x w\nr = Relu h\ny = MatMul r wide", &["y"]));
    assert!(ends_whole("h = MatMul x w\nr = Relu h @0\ny = MatMul r v", &["y"]));
    assert!(ends_whole("h = MatMul x w\nr = BiasAdd h c data_format=\"NCHW\"\ny = MatMul r v", &["y"]));
}

#[test]
fn what_several_devices_would_not_multiply_sooner_stays_whole() {
    let x = "x = Placeholder dtype=float32 shape=[3,6]\n";
    let stays = |lines: &str, count: usize, least: u64| {
        let graph = with_constant(&format!("{x}{lines}"), [6, 12]);
        divided_among(&graph, count, least, &["y"]).unwrap().is_none()
    };
    assert!(!stays("y = MatMul x w", 2, 287));
    // It is not larger than that; it has fewer columns; not only columns are taken, or not only of products.
    assert!(stays("y = MatMul x w", 2, 288));
    assert!(stays("y = MatMul x w", 13, 100));
    assert!(stays(
        "b = Placeholder dtype=float32 shape=[3,12]\na = MatMul x w\nc = MatMul b w transpose_b=true\ny = NoOp ^a ^c",
        2,
        100
    ));
    assert!(stays("i = Const is=(0)\nz = Const is=(0)\ng = GatherV2 w i z\na = MatMul x w\ny = NoOp ^a ^g", 2, 100));
}

#[test]
fn an_index_that_the_table_lacks_is_refused() {
    let graph =
        with_constant("x = Placeholder dtype=int32 shape=[2]\nzero = Const is=(0)\ny = GatherV2 w x zero", [12, 6]);
    let parts = divided(&graph, &[with_memory(200)], &["y"]).unwrap().unwrap();
    for indices in [[0i32, 12], [-1, 3]] {
        let failure = Cluster::new(1).run(&parts, &[("x", Tensor::vector(indices.to_vec()))], &["y"]).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
        assert!(failure.node.as_deref().is_some_and(|node| node.starts_with("y/part")), "{failure}");
    }
}

#[test]
fn what_cannot_be_divided_stays_whole() {
    let x = "x = Placeholder dtype=float32 shape=[3,6]\n";
    let stays = |lines: &str, devices: &[DeviceFacts], named: &[&str]| {
        divided(&with_constant(&format!("{x}{lines}"), [6, 12]), devices, named).unwrap().is_none()
    };
    let small = with_memory(200);
    assert!(!stays("y = MatMul x w", std::slice::from_ref(&small), &["y"]));
    // There is memory; nothing is known of it; one device has enough; there is no device.
    assert!(stays("y = MatMul x w", &[with_memory(384)], &["y"]));
    assert!(stays("y = MatMul x w", &[DeviceFacts::unknown(small.name.clone())], &["y"]));
    let mut other = with_memory(1000);
    other.name = Task::new("t", 1).device(DeviceKind::Cpu, 0);
    assert!(stays("y = MatMul x w", &[small.clone(), other], &["y"]));
    assert!(stays("y = MatMul x w", &[], &["y"]));
    // It is fetched; something else takes it; a device is requested.
    assert!(stays("y = MatMul x w", std::slice::from_ref(&small), &["y", "w:0"]));
    assert!(stays("r = Identity w\ny = MatMul x r", std::slice::from_ref(&small), &["y", "r"]));
    assert!(stays("y = MatMul x w\nz = Neg w", std::slice::from_ref(&small), &["y"]));
    assert!(stays("y = MatMul x w\nz = NoOp ^w", std::slice::from_ref(&small), &["y"]));
    assert!(stays(
        "t = Placeholder dtype=float32 shape=[2,6]\ny = MatMul w t transpose_a=true transpose_b=true",
        &[small],
        &["y"]
    ));
}

/// The nodes of a graph with a constant `w` of so many floats in rows of 6, and of other nodes.
fn beside_constant(rows: usize, nodes: Vec<NodeDef>) -> Graph {
    let mut defs = with_constant("", [rows, 6]).to_defs();
    defs.extend(nodes);
    Graph::new(defs).unwrap()
}

#[test]
fn what_has_to_be_beside_a_constant_goes_with_it_or_keeps_it_whole() {
    // As TensorFlow 1 writes a frozen variable and its look-up.
    let frozen = |more: Vec<NodeDef>| {
        let mut nodes = vec![
            node("x = Placeholder dtype=int32 shape=[3]"),
            beside("read = Identity w", "w"),
            beside("y = Gather read x", "w"),
        ];
        nodes.extend(more);
        beside_constant(12, nodes)
    };
    let graph = frozen(Vec::new());
    let parts = divided(&graph, &[with_memory(200)], &["y"]).unwrap().expect("a division");
    assert!(["w", "read"].iter().all(|name| parts.find(name).is_none()));
    let fed = Tensor::vector(vec![11i32, 0, 6]);
    let run = |graph: &Graph| Cluster::new(1).run(graph, &[("x", fed.clone())], &["y"]).unwrap().remove(0);
    assert_eq!(run(&graph).bytes(), run(&parts).bytes());
    // Others have to be on its device, or it on theirs: there is no single device of the parts.
    for (line, with) in [("z = Neg x", "w"), ("z = Neg x", "read")] {
        let whole = divided(&frozen(vec![beside(line, with)]), &[with_memory(200)], &["y", "z"]).unwrap();
        assert!(whole.is_none(), "{line} beside {with}");
    }
    let other = beside_constant(
        12,
        vec![
            node("x = Placeholder dtype=int32 shape=[3]"),
            node("v = VariableV2 dtype=float32 shape=[2]"),
            beside("y = Gather w x", "v"),
        ],
    );
    assert!(divided(&other, &[with_memory(200)], &["y"]).unwrap().is_none());
}

#[test]
fn what_is_in_use_changes_no_part() {
    let graph = with_constant("x = Placeholder dtype=float32 shape=[3,6]\ny = MatMul x w", [6, 12]);
    let of = |total: u64, free: u64| {
        let mut device = with_memory(total);
        device.capacity.memory = Some(DeviceMemory { total, free });
        let parts = divided(&graph, &[device], &["y"]).unwrap()?;
        Some(parts.nodes().map(|(_, node)| node.name.clone()).collect::<Vec<_>>())
    };
    // A task that has the weight already has less free: the weight stays whole, and parts are the same parts.
    assert_eq!((of(384, 384), of(384, 90)), (None, None));
    assert!(of(200, 200).is_some());
    assert_eq!(of(200, 200), of(200, 1));
}

#[test]
fn uses_that_the_nodes_of_a_division_cannot_take_keep_a_constant_whole() {
    let stays =
        |nodes: Vec<NodeDef>| divided(&beside_constant(12, nodes), &[with_memory(200)], &["y"]).unwrap().is_none();
    let look_up = |indices: &str| vec![node(indices), node("y = Gather w x")];
    assert!(!stays(look_up("x = Placeholder dtype=int64 shape=[3]")));
    assert!(stays(vec![
        node("x = Placeholder dtype=int16 shape=[3]"),
        NodeDef::constant("axis".into(), String::new(), Attr::Tensor(Tensor::scalar(0i32))),
        node("y = GatherV2 w x axis"),
    ]));
    // A reference is read after the control inputs, which the parts of a look-up have not.
    assert!(stays(look_up("x = VariableV2 dtype=int32 shape=[3]")));
    let product = |left: &str| vec![node(left), node("y = MatMul x w transpose_b=true")];
    assert!(!stays(product("x = Placeholder dtype=float32 shape=[3,6]")));
    assert!(stays(product("x = VariableV2 dtype=float32 shape=[3,6]")));
    // Strings have no size that is known: 12 rows of them, of 40 bytes each.
    let words = Tensor::from_vec(vec![12, 1], vec![vec![b'a'; 40]; 12]);
    let nodes = vec![
        NodeDef::constant("words".into(), String::new(), Attr::Tensor(words)),
        node("x = Placeholder dtype=int32 shape=[3]"),
        node("y = Gather words x"),
    ];
    assert!(divided(&Graph::new(nodes).unwrap(), &[with_memory(200)], &["y"]).unwrap().is_none());
}
