//! Tests of training steps on a GPU: their values stay in its memory.

use meshtf_engine::adapters::{self, BackendChoice};
use meshtf_engine::{EngineKernel, EngineOutcome, Value, Values};
use meshtf_kernels::KernelNode;
use meshtf_testing::means::{Means, missing};

use super::*;

/// An engine that records the ops that it leaves to the host although an input is in the engine's memory.
struct Watched {
    engine: Box<dyn Engine>,
    left: Arc<Mutex<Vec<String>>>,
}

impl Engine for Watched {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn compile(&self, node: &KernelNode) -> meshtf_tensor::failure::Result<Option<EngineKernel>> {
        let mut kernel = self.engine.compile(node)?;
        let (op, left) = (node.op.to_owned(), Arc::clone(&self.left));
        let host_up_to = kernel.as_ref().map_or(0, |kernel| kernel.host_up_to);
        let run = move |values: Values| {
            let is_here = values.iter().any(|value| matches!(value, Value::Device(_)));
            let outcome = match &mut kernel {
                Some(kernel) => (kernel.run)(values)?,
                None => EngineOutcome::Declined(values),
            };
            if is_here && matches!(outcome, EngineOutcome::Declined(_)) {
                left.lock().unwrap().push(op.clone());
            }
            Ok(outcome)
        };
        Ok(Some(EngineKernel { run: Box::new(run), host_up_to, forms: 0 }))
    }

    fn upload(&self, tensor: Tensor) -> meshtf_tensor::failure::Result<Value> {
        self.engine.upload(tensor)
    }

    fn small(&self) -> usize {
        self.engine.small()
    }

    fn computes_here(&self) -> bool {
        self.engine.computes_here()
    }
}

/// The first GPU, for a test that may be skipped on some machines.
fn gpu(test: &str) -> Option<Box<dyn Engine>> {
    let first = adapters::gpus(BackendChoice::Wgpu).into_iter().next();
    if first.is_none() {
        missing(Means::Gpu, test);
    }
    first.map(|offer| offer.open().expect("it was offered"))
}

/// Runs the steps on a GPU and on a CPU, and checks that the answers are close and that the GPU left no op to the host whose
/// inputs it had.
fn check(graph: &Graph, init: &[(&str, Tensor)], feeds: &[(&str, Tensor)], wanted: &[&str], steps: usize) {
    let Some(gpu) = gpu("steps on a GPU") else { return };
    let left = Arc::default();
    let gpu: Mutex<Option<Box<dyn Engine>>> =
        Mutex::new(Some(Box::new(Watched { engine: gpu, left: Arc::clone(&left) })));
    let on = |engine: &dyn Fn() -> Box<dyn Engine>| {
        let mut cluster = Cluster::with(&[Task::new("local", 0)], engine);
        if !init.is_empty() {
            cluster.run(graph, init, &["^init"]).unwrap();
        }
        (0..steps).flat_map(|_| cluster.run(graph, feeds, wanted).unwrap()).collect::<Vec<_>>()
    };
    let got = on(&|| gpu.lock().unwrap().take().expect("one task"));
    let want = on(&|| adapters::cpu(BackendChoice::Flex).open().unwrap());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let (name, pairs) = (wanted[i % wanted.len()], got.slice::<f32>().unwrap().iter().zip(want.slice().unwrap()));
        assert_eq!(got.shape(), want.shape(), "{name}");
        for (got, want) in pairs {
            let want: &f32 = want;
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{name} in step {i}: {got}, on a CPU {want}");
        }
    }
    assert_eq!(*left.lock().unwrap(), Vec::<String>::new(), "left to the host");
}

fn numbers<const N: usize>(dims: [usize; N]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect::<Vec<_>>())
}

#[test]
fn a_network_is_trained_without_its_values_leaving_the_gpu() {
    let graph = graph(
        "x = Placeholder dtype=float32
         w0 = Placeholder dtype=float32
         zeros = Placeholder dtype=float32
         w = VariableV2 dtype=float32 shape=[6,5]
         m = VariableV2 dtype=float32 shape=[6,5]
         v = VariableV2 dtype=float32 shape=[6,5]
         p1 = VariableV2 dtype=float32 shape=[]
         p2 = VariableV2 dtype=float32 shape=[]
         b1 = Const is=(0.9)
         b2 = Const is=(0.999)
         rate = Const is=(0.1)
         tiny = Const is=(0.001)
         init1 = Assign w w0
         init2 = Assign m zeros
         init3 = Assign v zeros
         init4 = Assign p1 b1
         init5 = Assign p2 b2
         init = NoOp ^init1 ^init2 ^init3 ^init4 ^init5
         labels = Const is=(0,1,2,3,4,0,1,2)
         h = MatMul x w transpose_a=false transpose_b=false
         images = Const is=(8,1,1,5)
         rows = Const is=(8,5)
         hs = Reshape h images
         scale = Const is=(1.0,2.0,0.5,1.5,1.0)
         offset = Const is=(0.1,0.2,0.3,0.4,0.5)
         none = Const is=(0.0,0.0,0.0,0.0,0.0)
         norm = FusedBatchNormV3 hs scale offset none none
         r = Relu norm
         logits = Reshape r rows
         losses = SparseSoftmaxCrossEntropyWithLogits logits labels
         axis = Const is=(0,) dtype=int32
         loss = Mean losses axis
         back = Reshape losses:1 images
         dr = ReluGrad back r
         dnorm = FusedBatchNormGradV3 dr hs scale norm:3 norm:4 norm:5
         dh = Reshape dnorm rows
         dw = MatMul x dh transpose_a=true transpose_b=false
         step = ApplyAdam w m v p1 p2 rate b1 b2 tiny dw
         n1 = Mul p1 b1 ^step
         n2 = Mul p2 b2 ^step
         next1 = Assign p1 n1
         next2 = Assign p2 n2",
    );
    let init = [("w0", numbers([6, 5])), ("zeros", Tensor::zeros(DType::F32, [6, 5]).unwrap())];
    check(&graph, &init, &[("x", numbers([8, 6]))], &["loss", "dw", "next1", "next2"], 4);
}

#[test]
fn an_embedding_is_trained_and_read_in_loops_without_its_values_leaving_the_gpu() {
    let graph = graph(
        "w0 = Placeholder dtype=float32
         w = VariableV2 dtype=float32 shape=[7,4]
         init1 = Assign w w0
         init = NoOp ^init1
         rows = Const is=(1,5,1)
         axis = Const is=(0)
         taken = GatherV2 w rows axis
         places = Const is=(0,1,0)
         two = Const is=(2)
         sums = UnsortedSegmentSum taken places two
         unique = Const is=(1,5)
         size = Const is=(2)
         array = TensorArrayV3 size dtype=float32
         both = Const is=(0,1)
         set = TensorArrayScatterV3 array both sums array:1
         turned = Const is=(1,0)
         all = TensorArrayGatherV3 array turned set dtype=float32
         less = Neg all
         new = ScatterAdd w unique less",
    );
    check(&graph, &[("w0", numbers([7, 4]))], &[], &["taken", "all", "new"], 3);
}
