//! Tests of convolutions that compute the nodes after them. A traced step computes each node by itself: its numbers are expected,
//! to the last bit.

use meshtf_engine::adapters;
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::NodeDef;

use super::super::program;
use super::*;

fn flex() -> Cluster {
    Cluster::with(&[Task::new("local", 0)], || adapters::cpu(BackendChoice::Flex).open().unwrap())
}

/// Numbers between -4 and 4.
fn numbers(dims: &[usize], seed: usize) -> Tensor {
    let number = |i: usize| ((i * 7919 + seed * 131) % 2003) as f32 / 250.0 - 4.0;
    Tensor::from_vec(dims, (0..dims.iter().product()).map(number).collect::<Vec<f32>>())
}

/// A convolution `c` of `x` and `f`.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    op: &'static str,
    /// Batch, height, width, channels.
    image: [usize; 4],
    filter: [usize; 4],
    stride: usize,
}

impl Convolution {
    fn made(&self) -> usize {
        if self.op == "Conv2D" { self.filter[3] } else { self.filter[2] * self.filter[3] }
    }

    fn dims(&self, format: &str, [n, h, w, c]: [usize; 4]) -> [usize; 4] {
        if format == "NCHW" { [n, c, h, w] } else { [n, h, w, c] }
    }

    /// The shape of the output, with padding SAME.
    fn answer(&self, format: &str) -> [usize; 4] {
        let [n, h, w, _] = self.image;
        self.dims(format, [n, h.div_ceil(self.stride), w.div_ceil(self.stride), self.made()])
    }

    /// The graph of the convolution and of the nodes of a text, in which FORMAT stands for the format of the image.
    fn graph(&self, format: &str, more: &str) -> Graph {
        let text = format!(
            "x = Placeholder dtype=float32\n f = Placeholder dtype=float32\n b = Placeholder dtype=float32
             v = Placeholder dtype=float32\n s = Placeholder dtype=float32\n {}
             c = {} x f data_format=\"{format}\" padding=\"SAME\"\n {}",
            // Before the convolution.
            if more.contains(" q") { "q = Square b" } else { "" },
            self.op,
            more.replace("FORMAT", &format!("\"{format}\""))
        );
        let strides = self.dims(format, [1, self.stride, self.stride, 1]).map(|size| size as i64).to_vec();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let nodes = lines.map(|line| {
            let mut def: NodeDef = node(line);
            if def.name == "c" {
                def.attrs.set("strides", Attr::Ints(strides.clone()));
            }
            def
        });
        Graph::new(nodes.collect()).unwrap()
    }

    /// The inputs that a graph takes: image, filter, a vector of the channels, the same as an image, and another image of the
    /// output's shape.
    fn feeds(&self, format: &str, graph: &Graph) -> Vec<(&'static str, Tensor)> {
        let along = self.dims(format, [1, 1, 1, self.made()]);
        let mut feeds = vec![
            ("x", numbers(&self.dims(format, self.image), 1)),
            ("f", numbers(&self.filter, 2)),
            ("b", numbers(&[self.made()], 3)),
            ("v", numbers(&along, 4)),
            ("s", numbers(&self.answer(format), 5)),
        ];
        let is_taken = |name: &str| {
            graph.nodes().any(|(_, node)| node.inputs.iter().any(|&input| graph.tensor_name(input) == name))
        };
        feeds.retain(|(name, _)| is_taken(name));
        feeds
    }
}

/// How many nodes of an op a graph has when it is compiled.
fn count(graph: &Graph, fetches: &[&str], op: &str) -> usize {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let signature = Signature {
        feeds: ["x", "f", "b", "v", "s"].map(str::to_owned).to_vec(),
        fetches: fetches.iter().map(|&name| name.to_owned()).collect(),
        ..Signature::default()
    };
    let device = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let options = PlanOptions { default_device: device.clone(), soft_placement: false, by_cost: None };
    let plan = plan(graph, &[DeviceFacts::unknown(device)], &signature, &options).unwrap();
    let compiled = program::compile(&plan.pieces[0], &site(Arc::default()), &*engine).unwrap();
    compiled.code.nodes.iter().filter(|node| node.op == op).count()
}

/// Checks that the last value is that of the nodes one by one; `s` has another value if one is given.
fn check_with(of: Convolution, format: &str, more: &str, s: Option<Tensor>) {
    let graph = of.graph(format, more);
    let mut feeds = of.feeds(format, &graph);
    if let Some(s) = s {
        feeds.retain(|(name, _)| *name != "s");
        feeds.push(("s", s));
    }
    let mut cluster = flex();
    let what = format!("{of:?} {format} {more}");
    let got = cluster.run(&graph, &feeds, &["y"]).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    let (want, trace) = cluster.trace(&graph, &feeds, "y");
    assert!(trace.nodes.iter().any(|node| node.op == of.op), "{what}");
    assert_eq!(got[0].shape(), want.shape(), "{what}");
    let bits = |tensor: &Tensor| tensor.slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let wrong = bits(&got[0]).into_iter().zip(bits(&want)).position(|(got, want)| got != want);
    assert_eq!(wrong, None, "{what}");
    cluster.is_empty();
}

fn check(of: Convolution, format: &str, more: &str) {
    check_with(of, format, more, None);
}

const ALL: [Convolution; 8] = [
    Convolution { op: "Conv2D", image: [2, 17, 20, 5], filter: [3, 3, 5, 18], stride: 1 },
    Convolution { op: "Conv2D", image: [2, 23, 21, 40], filter: [1, 1, 40, 33], stride: 2 },
    // Several chunks, and rows that are finished together.
    Convolution { op: "Conv2D", image: [1, 112, 90, 16], filter: [1, 1, 16, 64], stride: 1 },
    // By columns.
    Convolution { op: "Conv2D", image: [1, 4, 5, 40], filter: [3, 3, 40, 200], stride: 1 },
    // In groups of one channel.
    Convolution { op: "Conv2D", image: [1, 15, 20, 6], filter: [3, 3, 1, 12], stride: 1 },
    Convolution { op: "DepthwiseConv2dNative", image: [2, 20, 15, 40], filter: [3, 3, 40, 1], stride: 1 },
    Convolution { op: "DepthwiseConv2dNative", image: [1, 112, 112, 24], filter: [5, 5, 24, 1], stride: 2 },
    Convolution { op: "DepthwiseConv2dNative", image: [1, 30, 20, 3], filter: [3, 3, 3, 4], stride: 1 },
];

#[test]
fn followers_compute_the_numbers_of_their_nodes() {
    let activations = [
        // ONNX's hard swish, and the one that older exporters write.
        "t = BiasAdd c b data_format=FORMAT\n sixth = Const is=(0.16666667)\n half = Const is=(0.5)\n zero = Const is=(0.0)
         one = Const is=(1.0)\n m = Mul t sixth\n a = AddV2 m half\n l = Maximum a zero\n h = Minimum l one\n y = Mul t h",
        "n = FusedBatchNormV3 c b b b q data_format=FORMAT is_training=false epsilon=0.001\n three = Const is=(3.0)
         six = Const is=(6.0)\n a = AddV2 n three\n r = Relu6 a\n m = Mul r n\n y = RealDiv m six",
        "t = BiasAdd c b data_format=FORMAT\n g = Sigmoid t\n y = Mul t g",
        "t = BiasAdd c b data_format=FORMAT\n a = AddV2 s t\n y = Relu a",
        "t = AddV2 v c\n a = Sub s t\n l = LeakyRelu a alpha=0.1\n y = Square l",
    ];
    for of in ALL {
        for format in ["NHWC", "NCHW"] {
            for more in activations {
                check(of, format, more);
                assert_eq!(count(&of.graph(format, more), &["y"], of.op), 0, "{more}");
            }
        }
    }
}

#[test]
fn one_follower_is_enough() {
    for of in ALL {
        for format in ["NHWC", "NCHW"] {
            for more in
                ["y = BiasAdd c b data_format=FORMAT", "y = Relu c", "y = Add c v", "y = RealDiv c s", "y = Mul c c"]
            {
                check(of, format, more);
            }
        }
    }
}

#[test]
fn nodes_that_others_take_or_wait_for_stay() {
    let of = ALL[0];
    let chain = "t = BiasAdd c b data_format=FORMAT\n r = Relu t\n y = Relu6 r";
    let left = |more: &str, fetches: &[&str]| {
        let graph = of.graph("NHWC", more);
        ["Conv2D", "BiasAdd", "Relu", "Relu6"].map(|op| count(&graph, fetches, op))
    };
    assert_eq!(left(chain, &["y"]), [0, 0, 0, 1]);
    // Fetched, taken by a gradient, or waited for: those before are computed together.
    assert_eq!(left(chain, &["y", "c"]), [1, 1, 1, 1]);
    assert_eq!(left(chain, &["y", "t"]), [0, 1, 1, 1]);
    assert_eq!(left(chain, &["y", "r"]), [0, 0, 1, 1]);
    assert_eq!(left(&format!("{chain}\n g = ReluGrad y t"), &["y", "g"]), [0, 1, 1, 1]);
    let waits = format!("{chain}\n n = Const is=(1,1)\n z = RandomUniform n dtype=float32 ^t");
    assert_eq!(left(&waits, &["y", "z"]), [0, 1, 1, 1]);
    // Half of an activation is no end.
    let swish = "t = BiasAdd c b data_format=FORMAT\n r = Relu t\n m = Mul t r\n y = Relu6 m";
    assert_eq!(left(swish, &["y"]), [0, 0, 0, 1]);
    assert_eq!(left(swish, &["y", "r"]), [0, 1, 1, 1]);
    // Another op.
    assert_eq!(left("t = Cumsum c axis\n axis = Const is=(1)\n y = Relu t", &["y"]), [1, 0, 1, 0]);
    check(of, "NHWC", "t = BiasAdd c b data_format=FORMAT\n r = Relu t\n n = Neg t\n y = AddV2 r n");
}

#[test]
fn no_convolution_waits_for_what_comes_after_it() {
    let of = ALL[0];
    let left = |more: &str| ["BiasAdd", "AddV2", "Relu"].map(|op| count(&of.graph("NHWC", more), &["y"], op));
    let axis = "axis = Const is=(1)";
    assert_eq!(
        left(&format!("t = BiasAdd c b data_format=FORMAT\n {axis}\n u = Cumsum s axis\n a = AddV2 t u\n y = Relu a")),
        [1, 1, 1]
    );
    // Functions of parameters are there when the convolution is.
    assert_eq!(left("two = Const is=(2.0)\n four = Square two\n a = AddV2 c four\n y = Relu a"), [0, 0, 1]);
    assert_eq!(left("a = AddV2 c q\n y = Relu a"), [0, 0, 1]);
    assert_eq!(left("a = AddV2 s c\n y = Relu a"), [0, 0, 1]);
}

#[test]
fn shapes_that_the_loop_does_not_take_are_computed_apart() {
    let of = ALL[0];
    let gate = Convolution { op: "Conv2D", image: [2, 1, 1, 30], filter: [1, 1, 30, 18], stride: 1 };
    for format in ["NHWC", "NCHW"] {
        // A number for each image, as gates are.
        check_with(of, format, "t = Relu c\n y = Mul t s", Some(numbers(&of.dims(format, [2, 1, 1, 18]), 5)));
        check_with(of, format, "t = Relu c\n y = Mul s t", Some(numbers(&of.dims(format, [2, 17, 1, 1]), 5)));
        // A result that is larger than the convolution's.
        check_with(gate, format, "t = Sigmoid c\n y = Mul s t", Some(numbers(&of.dims(format, [2, 9, 8, 18]), 5)));
    }
}

#[test]
fn the_node_that_is_at_fault_is_named() {
    let of = ALL[0];
    let mut cluster = flex();
    let graph = of.graph("NHWC", "t = BiasAdd c b data_format=FORMAT\n y = Relu t");
    let mut feeds = of.feeds("NHWC", &graph);
    feeds[2].1 = numbers(&[17], 3);
    let failure = cluster.run(&graph, &feeds, &["y"]).unwrap_err();
    assert_eq!((failure.node.as_deref(), failure.op.as_deref()), (Some("t"), Some("BiasAdd")), "{failure}");
    let mut feeds = of.feeds("NHWC", &graph);
    feeds[1].1 = numbers(&[3, 3, 4, 18], 3);
    let failure = cluster.run(&graph, &feeds, &["y"]).unwrap_err();
    assert_eq!((failure.node.as_deref(), failure.op.as_deref()), (Some("c"), Some("Conv2D")), "{failure}");
    // An image is no bias, though it is of the same shape.
    for more in ["t = BiasAdd c c\n y = Relu t", "r = Relu c\n t = BiasAdd c r\n y = Relu t"] {
        let graph = of.graph("NHWC", more);
        let failure = cluster.run(&graph, &of.feeds("NHWC", &graph), &["y"]).unwrap_err();
        assert_eq!((failure.node.as_deref(), failure.op.as_deref()), (Some("t"), Some("BiasAdd")), "{failure}");
    }
    cluster.is_empty();
}
