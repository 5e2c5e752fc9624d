//! Tests of the ops that call functions of a program, with a program whose functions are written in Rust.

use meshtf_graph::{Function, FunctionBody, NodeDef};
use meshtf_tensor::failure::Result;

use super::super::Program;
use super::saved::nodes;
use super::*;

/// Doubles, counts up to three, or fails; notes the functions that were called.
#[derive(Default)]
struct Functions {
    called: Mutex<Vec<String>>,
}

impl Program for Functions {
    fn call(&self, token: &str, inputs: &[Tensor], look: &dyn Fn()) -> Result<Vec<Tensor>> {
        look();
        let mut called = self.called.lock().unwrap();
        called.push(token.to_owned());
        let number = |i: usize| inputs[i].item::<i64>();
        match token {
            "double" => Ok(vec![Tensor::scalar(2 * number(0)?)]),
            "state" => Ok(vec![Tensor::scalar(number(0)?)]),
            "next" => match called.iter().filter(|name| *name == "next").count() as i64 {
                count if count % 4 == 0 => Err(Failure::new(Code::OutOfRange, "StopIteration: ")),
                count => Ok(vec![Tensor::scalar(number(0)? + count)]),
            },
            "end" => Ok(vec![Tensor::scalar(0i64)]),
            "float" => Ok(vec![Tensor::scalar(1f64)]),
            "none" => Ok(Vec::new()),
            other => Err(Failure::new(Code::Unknown, format!("KeyError: {other:?}"))),
        }
    }
}

/// A function of one number that calls one of the program.
fn calling(op: &str, token: &str) -> Attr {
    let text = format!("x = Placeholder dtype=int64\ny = {op} x token=\"{token}\" Tin=<int64> Tout=<int64>");
    Attr::Func(Function::new(FunctionBody {
        name: token.to_owned(),
        nodes: nodes(&text),
        args: vec![("x".to_owned(), DType::I64)],
        results: vec![("y".to_owned(), DType::I64)],
        effects: Vec::new(),
    }))
}

fn calls() -> Vec<NodeDef> {
    let mut all = nodes(
        "x = Const is=(20l)
        twice = PyFunc x token=\"double\" Tin=<int64> Tout=<int64>
        more = PyFuncStateless twice token=\"double\" Tin=<int64> Tout=<int64>
        most = EagerPyFunc more token=\"double\" Tin=<int64> Tout=<int64>
        float = PyFunc x token=\"float\" Tin=<int64> Tout=<float32>
        none = PyFunc x token=\"none\" Tin=<int64> Tout=<int64>
        unknown = PyFunc x token=\"lost\" Tin=<int64> Tout=<int64>
        data = GeneratorDataset x output_types=<int64> output_shapes={[]} Tinit_func_args=<int64> Tnext_func_args=<> Tfinalize_func_args=<>
        twin = RepeatDataset data two output_types=<int64> output_shapes={[]}
        two = Const is=(2l)
        iterator = IteratorV2 output_types=<int64> output_shapes={[]} shared_name=\"i\" container=\"\"
        begin = MakeIterator twin iterator
        next = IteratorGetNext iterator output_types=<int64> output_shapes={[]}",
    );
    let data = all.iter_mut().find(|node| node.name == "data").unwrap();
    data.attrs.set("init_func", calling("PyFunc", "state"));
    data.attrs.set("next_func", calling("PyFunc", "next"));
    data.attrs.set("finalize_func", calling("PyFuncStateless", "end"));
    all
}

#[test]
fn functions_of_the_program_are_called_and_their_answers_checked() {
    let graph = Graph::new(calls()).unwrap();
    let mut cluster = Cluster::new(1);
    let program = Arc::new(Functions::default());
    cluster.resources[0].set_program(program.clone());
    cluster.check(&graph, &[], &[("twice", "40l"), ("more", "80l"), ("most", "160l")]);
    cluster.fails(
        &graph,
        &["float"],
        Code::InvalidArgument,
        "0-th value returned by float is double, but expects float",
        "float",
    );
    cluster.fails(
        &graph,
        &["none"],
        Code::InvalidArgument,
        "none returns 0 values, but expects to see 1 values.",
        "none",
    );
    cluster.fails(&graph, &["unknown"], Code::Unknown, "KeyError: \"lost\"", "unknown");

    // Two rounds of a generator: each begins with a state and is finished.
    program.called.lock().unwrap().clear();
    cluster.run(&graph, &[], &["^begin"]).unwrap();
    let mut seen = Vec::new();
    let end = loop {
        match cluster.run(&graph, &[], &["next"]) {
            Ok(values) => seen.push(values[0].item::<i64>().unwrap()),
            Err(failure) => break failure,
        }
    };
    assert_eq!((seen, end.code), (vec![21, 22, 23, 25, 26, 27], Code::OutOfRange));
    let round = ["state", "next", "next", "next", "next", "end"];
    assert_eq!(*program.called.lock().unwrap(), [round, round].concat());
}

#[test]
fn without_a_program_the_remedy_is_named() {
    let graph = Graph::new(calls()).unwrap();
    let mut cluster = Cluster::new(1);
    let failure = cluster.run(&graph, &[], &["twice"]).unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    assert!(
        failure.message.contains("Python does not run in a node") && failure.message.contains("TFRecord"),
        "{failure}"
    );
}
