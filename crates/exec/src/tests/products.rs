//! Tests of sums and slices that compute the products they take, compared with loops in float64.

use meshtf_engine::adapters;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::constant;

use super::super::program;
use super::*;

fn flex() -> Cluster {
    Cluster::with(&[Task::new("local", 0)], || adapters::cpu(BackendChoice::Flex).open().unwrap())
}

/// Numbers between -1 and 1.
fn matrix(rows: usize, columns: usize, seed: usize) -> Tensor {
    let number = |i: usize| ((i * 7919 + seed * 131) % 2003) as f32 / 1001.0 - 1.0;
    Tensor::from_vec([rows, columns], (0..rows * columns).map(number).collect())
}

/// The product; marked factors are transposed first.
fn product([x, y]: [&Tensor; 2], [transpose_x, transpose_y]: [bool; 2]) -> Vec<f64> {
    let (xs, ys) = (x.slice::<f32>().unwrap(), y.slice::<f32>().unwrap());
    let (&[x0, x1], &[y0, y1]) = (x.dims(), y.dims()) else { panic!("no matrices") };
    let (m, k) = if transpose_x { (x1, x0) } else { (x0, x1) };
    let n = if transpose_y { y0 } else { y1 };
    let x = |i: usize, p: usize| f64::from(if transpose_x { xs[p * m + i] } else { xs[i * k + p] });
    let y = |p: usize, j: usize| f64::from(if transpose_y { ys[j * k + p] } else { ys[p * n + j] });
    (0..m * n).map(|at| (0..k).map(|p| x(at / n, p) * y(p, at % n)).sum()).collect()
}

fn assert_near(got: &Tensor, want: &[f64], what: &str) {
    let got = got.slice::<f32>().unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0, |most: f64, want| most.max(want.abs()));
    let wrong = got.iter().zip(want).position(|(&got, want)| (f64::from(got) - want).abs() > 2e-6 * scale);
    assert_eq!(wrong.map(|at| (at, got[at], want[at])), None, "{what}");
}

/// Checks a sum of `products` products of `m` by `k` and `k` by `n`, and of named values: `a`, another matrix; `twice`, a
/// matrix with another consumer; `row`, which is added to each row.
fn check([m, k, n]: [usize; 3], transposed: [bool; 2], op: &str, products: usize, values: &[&str]) {
    let what = format!("{op} of {products} products {m} {k} {n} {transposed:?} and {values:?}");
    let mut text = "a = Placeholder dtype=float32\n b = Placeholder dtype=float32\n row = Placeholder dtype=float32
        twice = Neg b\n other = Neg twice"
        .to_owned();
    let mut names: Vec<String> = values.iter().map(|&name| name.to_owned()).collect();
    let by = |rows: usize, columns: usize, transpose: bool| if transpose { [columns, rows] } else { [rows, columns] };
    let (x, y) = (by(m, k, transposed[0]), by(k, n, transposed[1]));
    let factors: Vec<[Tensor; 2]> =
        (0..products).map(|i| [matrix(x[0], x[1], 2 * i), matrix(y[0], y[1], 2 * i + 1)]).collect();
    let mut feeds = Vec::new();
    for (i, [x, y]) in factors.iter().enumerate() {
        text += &format!("\n x{i} = Placeholder dtype=float32\n y{i} = Placeholder dtype=float32");
        text += &format!("\n p{i} = MatMul x{i} y{i} transpose_a={} transpose_b={}", transposed[0], transposed[1]);
        feeds.extend([(format!("x{i}"), x.clone()), (format!("y{i}"), y.clone())]);
        names.insert((3 * i).min(names.len()), format!("p{i}"));
    }
    if op == "BiasAdd" {
        names.reverse();
    }
    let count = if op == "AddN" { format!("N={}", names.len()) } else { String::new() };
    text += &format!("\n sum = {op} {} {count}", names.join(" "));
    let row = Tensor::from_vec([n], matrix(1, n, 77).slice::<f32>().unwrap().to_vec());
    let (a, b) = (matrix(m, n, 75), matrix(m, n, 76));
    let mut want = vec![0.0; m * n];
    let mut add = |term: &mut dyn Iterator<Item = f64>| want.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
    factors.iter().for_each(|[x, y]| add(&mut product([x, y], transposed).into_iter()));
    let numbers = |tensor: &Tensor| tensor.slice::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for &value in values {
        match value {
            "row" => add(&mut numbers(&row).into_iter().cycle()),
            "a" => add(&mut numbers(&a).into_iter()),
            _ => add(&mut numbers(&b).into_iter().map(|x| -x)),
        }
    }
    feeds.extend([("a".to_owned(), a), ("b".to_owned(), b.clone()), ("row".to_owned(), row)]);
    let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let mut cluster = flex();
    let got =
        cluster.run(&graph(&text), &feeds, &["sum", "other"]).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    assert_near(&got[0], &want, &what);
    assert_eq!(got[1], b, "{what}");
    cluster.is_empty();
}

#[test]
fn a_sum_is_that_of_its_products_and_values() {
    let every_way = [[false, false], [true, false], [false, true], [true, true]];
    for transposed in every_way {
        for products in [1, 2, 8, 9, 20] {
            check([13, 5, 37], transposed, "AddN", products, &[]);
            check([13, 5, 37], transposed, "AddN", products, &["a", "twice"]);
            check([40, 3, 50], transposed, "AddN", products, &["twice", "a"]);
        }
        // Enough for several threads, with rows that fill no chunk.
        check([61, 40, 700], transposed, "AddN", 5, &["twice"]);
        check([61, 40, 700], transposed, "AddV2", 1, &["row"]);
        for op in ["Add", "AddV2"] {
            check([4, 6, 3], transposed, op, 2, &[]);
            for value in ["a", "twice", "row"] {
                check([4, 6, 3], transposed, op, 1, &[value]);
                check([30, 7, 60], transposed, op, 1, &[value]);
            }
        }
        check([30, 7, 60], transposed, "BiasAdd", 1, &["row"]);
        check([1, 6, 3], transposed, "BiasAdd", 1, &["row"]);
    }
    // Larger than the limit for products that are added in place.
    check([300, 400, 300], [true, false], "AddN", 2, &["a"]);
}

#[test]
fn a_loop_adds_a_product_to_the_sum_so_far() {
    let text = "
        x = Placeholder dtype=float32
        w = Placeholder dtype=float32
        start = Placeholder dtype=float32
        zero = Const is=(0)
        one = Const is=(1)
        times = Const is=(7)
        ei = Enter zero frame_name=\"w\"
        es = Enter start frame_name=\"w\"
        ex = Enter x frame_name=\"w\" is_constant=true
        ew = Enter w frame_name=\"w\" is_constant=true
        eo = Enter one frame_name=\"w\" is_constant=true
        et = Enter times frame_name=\"w\" is_constant=true
        mi = Merge ei ni N=2
        ms = Merge es ns N=2
        less = Less mi et
        go = LoopCond less
        si = Switch mi go
        ss = Switch ms go
        ai = Add si:1 eo
        p = MatMul ex ew
        as = Add ss:1 p
        ni = NextIteration ai
        ns = NextIteration as
        end = Exit ss";
    let ([m, k, n], mut cluster) = ([20, 30, 70], flex());
    let (x, w, start) = (matrix(m, k, 1), matrix(k, n, 2), matrix(m, n, 3));
    let product = product([&x, &w], [false; 2]);
    let want: Vec<f64> =
        start.slice::<f32>().unwrap().iter().zip(product).map(|(&start, p)| f64::from(start) + 7.0 * p).collect();
    let feeds = [("x", x), ("w", w), ("start", start.clone())];
    for _ in 0..3 {
        let got = cluster.run(&graph(text), &feeds, &["end"]).unwrap();
        assert_near(&got[0], &want, "the end of the loop");
    }
    assert_eq!(feeds[2].1, start);
    cluster.is_empty();
}

#[test]
fn a_slice_is_that_of_its_product() {
    let text = |[a, b]: [bool; 2]| {
        format!(
            "x = Placeholder dtype=float32\n y = Placeholder dtype=float32
            begin = Placeholder dtype=int32\n size = Placeholder dtype=int32
            p = MatMul x y transpose_a={a} transpose_b={b}\n part = Slice p begin size"
        )
    };
    let sizes = [[13, 5, 37], [64, 80, 100], [2, 300, 40], [300, 400, 300]];
    for (transposed, [m, k, n]) in [[false, false], [true, false], [false, true], [true, true]]
        .into_iter()
        .flat_map(|of| sizes.map(|size| (of, size)))
    {
        let by = |rows: usize, columns: usize, is: bool| {
            if is { matrix(columns, rows, 1) } else { matrix(rows, columns, 2) }
        };
        let (x, y) = (by(m, k, transposed[0]), by(k, n, transposed[1]));
        let (graph, product) = (graph(&text(transposed)), product([&x, &y], transposed));
        let mut cluster = flex();
        for (begin, size) in
            [([0, 0], [-1, -1]), ([1, 3], [m as i32 - 1, -1]), ([0, n as i32 - 1], [-1, 1]), ([m as i32, 2], [0, 4])]
        {
            let what = format!("{m} {k} {n} {transposed:?} from {begin:?}, {size:?}");
            let ints = |of: [i32; 2]| Tensor::from_vec([2], of.to_vec());
            let feeds = [("x", x.clone()), ("y", y.clone()), ("begin", ints(begin)), ("size", ints(size))];
            let got = cluster.run(&graph, &feeds, &["part"]).unwrap_or_else(|failure| panic!("{what}: {failure}"));
            let end = |i: usize, all: usize| if size[i] == -1 { all } else { (begin[i] + size[i]) as usize };
            let (rows, columns) = (begin[0] as usize..end(0, m), begin[1] as usize..end(1, n));
            assert_eq!(got[0].dims(), [rows.len(), columns.len()], "{what}");
            let want: Vec<f64> =
                rows.flat_map(|i| columns.clone().map(move |j| i * n + j)).map(|at| product[at]).collect();
            assert_near(&got[0], &want, &what);
        }
        cluster.is_empty();
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_name_of_what_refuses() {
    let text = "
        x = Placeholder dtype=float32
        y = Placeholder dtype=float32
        z = Placeholder dtype=float32
        p = MatMul x y
        q = MatMul x x transpose_b=true
        sum = AddN p z N=2
        both = Add q p
        begin = Const is=(0,4)
        size = Const is=(1,2)
        r = MatMul x y
        part = Slice r begin size";
    let graph = graph(text);
    let mut cluster = flex();
    let mut fails = |shapes: [[usize; 2]; 3], wanted: &str, node: &str, message: &str| {
        let feeds: Vec<(&str, Tensor)> =
            ["x", "y", "z"].into_iter().zip(shapes.map(|[rows, columns]| matrix(rows, columns, 1))).collect();
        let failure = cluster.run(&graph, &feeds, &[wanted]).unwrap_err();
        assert_eq!(failure.node.as_deref(), Some(node), "{failure}");
        assert!(failure.message.contains(message), "{failure}");
        cluster.is_empty();
    };
    fails([[2, 3], [4, 5], [2, 5]], "sum", "p", "Matrix size-incompatible: In[0]: [2,3], In[1]: [4,5]");
    fails([[2, 3], [3, 5], [5, 2]], "sum", "sum", "must have the same size and shape");
    fails([[2, 3], [4, 5], [1, 1]], "both", "p", "Matrix size-incompatible");
    fails([[2, 3], [3, 5], [1, 1]], "both", "both", "Incompatible shapes: [2,2] vs. [2,5]");
    fails([[2, 3], [4, 5], [1, 1]], "part", "r", "Matrix size-incompatible");
    fails([[2, 3], [3, 5], [1, 1]], "part", "part", "Expected size[1] in [0, 1], but got 2");
}

#[test]
fn a_product_that_is_taken_elsewhere_too_is_there() {
    let text = "
        x = Placeholder dtype=float32
        p = MatMul x x
        q = MatMul p x
        r = MatMul q x
        done = NoOp ^r
        sum = AddN p q r N=3
        also = Identity sum ^done";
    let x = Tensor::from_vec([2, 2], vec![1f32, 1.0, 1.0, 0.0]);
    let mut cluster = flex();
    let got = cluster.run(&graph(text), &[("x", x)], &["p", "also"]).unwrap();
    assert_eq!(got[0], Tensor::from_vec([2, 2], vec![2f32, 1.0, 1.0, 1.0]));
    // Fibonacci's numbers.
    assert_eq!(got[1], Tensor::from_vec([2, 2], vec![10f32, 6.0, 6.0, 4.0]));
    cluster.is_empty();
}

#[test]
fn a_traced_step_tells_of_the_product_and_of_the_sum() {
    let graph = graph("x = Placeholder dtype=float32\n p = MatMul x x\n sum = AddN p x N=2");
    let mut cluster = flex();
    let (sum, trace) = cluster.trace(&graph, &[("x", Tensor::from_vec([1, 1], vec![3f32]))], "sum");
    assert_eq!(sum, Tensor::from_vec([1, 1], vec![12f32]));
    let ops: Vec<&str> = trace.nodes.iter().map(|node| node.op.as_str()).collect();
    assert!(ops.contains(&"MatMul") && ops.contains(&"AddN"), "{ops:?}");
    cluster.is_empty();
}

#[test]
fn sums_and_slices_take_the_products_that_nothing_else_takes() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let check = |text: &str, fetches: &[&str], want: &[(&str, usize)]| {
        let graph = graph(text);
        let is_fed = |line: &&str| line.contains("Placeholder");
        let fed = text.lines().filter(is_fed).filter_map(|line| line.trim().split(' ').next());
        let signature = Signature {
            feeds: fed.map(str::to_owned).collect(),
            fetches: fetches.iter().map(|&name| name.to_owned()).collect(),
            ..Signature::default()
        };
        let device = Task::new("local", 0).device(DeviceKind::Cpu, 0);
        let options = PlanOptions { default_device: device.clone(), soft_placement: false, by_cost: None };
        let plan = plan(&graph, &[DeviceFacts::unknown(device)], &signature, &options).unwrap();
        let compiled = program::compile(&plan.pieces[0], &site(Arc::default()), &*engine).unwrap();
        for &(op, count) in want {
            let found = compiled.code.nodes.iter().filter(|node| node.op == op).count();
            assert_eq!(found, count, "{op} in {text}");
        }
    };
    let products = |count: usize, last: &str| {
        let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
        let nodes: Vec<String> = names.iter().map(|name| format!("{name} = MatMul x x")).collect();
        let sum = names.join(" ");
        format!("x = Placeholder dtype=float32\n {}\n sum = AddN {sum} N={count}\n {last}", nodes.join("\n "))
    };
    check(&products(2, ""), &["sum"], &[("MatMul", 0), ("AddN", 1)]);
    // Eight, eight more, and the remainder.
    check(&products(20, ""), &["sum"], &[("MatMul", 0), ("AddN", 3)]);
    check(&products(16, ""), &["sum"], &[("MatMul", 0), ("AddN", 2)]);
    // A product that is fetched, taken twice, or waited for stays.
    check(&products(3, ""), &["sum", "p1"], &[("MatMul", 1), ("AddN", 1)]);
    check(&products(3, "y = Add sum p2"), &["y"], &[("MatMul", 1), ("AddN", 1)]);
    check(
        &products(3, "n = Const is=(1,1)\n y = RandomUniform n dtype=float32 ^p0"),
        &["sum", "y"],
        &[("MatMul", 1), ("AddN", 1)],
    );
    check(&products(3, "y = MatMul x x\n z = BiasAdd y v\n v = Placeholder dtype=float32"), &["z"], &[("MatMul", 0)]);
    check("x = Placeholder dtype=float64\n p = MatMul x x\n s = Add p x", &["s"], &[("MatMul", 1)]);
    let slice = |more: &str| {
        let first = "x = Placeholder dtype=float32\n p = MatMul x x\n at = Const is=(0,1)\n";
        if more.contains("before") {
            format!("{first} {more}\n s = Slice p at at")
        } else {
            format!("{first} s = Slice p at at{more}")
        }
    };
    check(&slice(""), &["s"], &[("MatMul", 0), ("Slice", 1)]);
    check(&slice(""), &["s", "p"], &[("MatMul", 1), ("Slice", 1)]);
    check(&slice("\n t = Slice p at at"), &["s", "t"], &[("MatMul", 1), ("Slice", 2)]);
    // A node that waits for the product waits for the slice, unless it comes before it.
    let waiting = "RandomUniform at dtype=float32 ^p";
    check(&slice(&format!("\n after = {waiting}")), &["s", "after"], &[("MatMul", 0), ("Slice", 1)]);
    check(&slice(&format!("before = {waiting}")), &["s", "before"], &[("MatMul", 1), ("Slice", 1)]);
}

#[test]
fn a_large_constant_of_products_is_in_memory_once() {
    let weights = matrix(130, 140, 3);
    // The nodes after the constant, and whether its elements stay as they are.
    for (nodes, stays) in [
        ("y = MatMul x w", false),
        ("y = MatMul x v transpose_b=true", false),
        ("p = MatMul x w\n y = AddV2 p row", false),
        ("p = MatMul x w\n q = MatMul x w\n y = Mul p q", false),
        ("p = MatMul x w\n q = MatMul p v\n y = Neg q", false),
        ("p = MatMul x w\n n = Neg w\n q = MatMul x n\n y = Mul p q", true),
        ("y = MatMul one w", true),
    ] {
        let lines = |constant: &str| {
            let given = ["x", "one", "row"].map(|name| format!("{name} = Placeholder dtype=float32"));
            let weights = ["w", "v"].map(|name| format!("{name} = {constant} dtype=float32"));
            given.into_iter().chain(weights).chain(nodes.lines().map(|line| line.trim().to_owned())).collect::<Vec<_>>()
        };
        let transposed = || {
            let from = weights.slice::<f32>().unwrap();
            Tensor::from_vec([140, 130], (0..140 * 130).map(|at| from[at % 130 * 140 + at / 130]).collect())
        };
        let values = || [("w", weights.clone()), ("v", transposed())];
        let mut defs: Vec<_> = lines("Const").iter().map(|line| node(line)).collect();
        for (name, value) in values() {
            // The graph alone has it.
            let own = Tensor::from_bytes(DType::F32, value.shape().clone(), value.bytes().unwrap()).unwrap();
            defs.iter_mut().find(|def| def.name == name).unwrap().attrs.set("value", Attr::Tensor(own));
        }
        let with_constants = Graph::new(defs).unwrap();
        let fed = Graph::new(lines("Placeholder").iter().map(|line| node(line)).collect()).unwrap();
        let feeds = [("x", matrix(20, 130, 1)), ("one", matrix(1, 130, 1)), ("row", matrix(1, 140, 5))];
        let all: Vec<(&str, Tensor)> = feeds.iter().cloned().chain(values()).collect();
        let mut cluster = flex();
        let want = cluster.run(&fed, &all, &["y"]).unwrap();
        let held = |name: &str| with_constants.node(with_constants.find(name).unwrap()).attrs.tensor("value").unwrap();
        for _ in 0..2 {
            let got = cluster.run(&with_constants, &feeds, &["y"]).unwrap();
            let want: Vec<f64> = want[0].slice::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect();
            assert_near(&got[0], &want, nodes);
        }
        for name in ["w", "v"].into_iter().filter(|name| nodes.contains(&format!(" {name}"))) {
            assert_eq!(constant::is_at_hand(held(name)), stays, "{name} of {nodes}");
        }
        let elements = [constant::at_hand(held("w")), constant::at_hand(held("v"))];
        assert_eq!(elements, values().map(|(_, value)| value), "{nodes}");
        cluster.is_empty();
    }
}
