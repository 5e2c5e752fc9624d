//! Max pools whose gradient is in the same graph: it is then computed without the indices.

use burn_ir::{
    MaxPool1dWithIndicesBackwardOpIr, MaxPool2dWithIndicesBackwardOpIr, ModuleOperationIr, OperationIr, TensorId,
    TensorIr, TensorStatus,
};
use meshtf::LocalCluster;
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::GraphBuilder;
use meshtf_tensor::device::Task;
use meshtf_tensor::{DType, Tensor};

use super::{Case, cases, run};
use meshtf_lowering::{Lowering, Scalars};

const GRADIENT: u64 = 1000;
const ANSWER: u64 = 1001;

/// The gradient of a pool, and the distance of the elements under its window.
fn gradient_of(operation: &OperationIr) -> Option<(OperationIr, usize)> {
    let like = |other: &TensorIr, id| TensorIr { id, status: TensorStatus::NotInit, ..other.clone() };
    let OperationIr::Module(operation) = operation else { return None };
    let (gradient, dilation) = match operation {
        ModuleOperationIr::MaxPool1dWithIndices(op) => {
            let gradient = MaxPool1dWithIndicesBackwardOpIr {
                x: op.x.clone(),
                grad: like(&op.out, TensorId::new(GRADIENT)),
                indices: op.out_indices.clone(),
                kernel_size: op.kernel_size,
                stride: op.stride,
                padding: op.padding,
                dilation: op.dilation,
                ceil_mode: op.ceil_mode,
                out: like(&op.x, TensorId::new(ANSWER)),
            };
            (ModuleOperationIr::MaxPool1dWithIndicesBackward(gradient), op.dilation)
        }
        ModuleOperationIr::MaxPool2dWithIndices(op) => {
            let gradient = MaxPool2dWithIndicesBackwardOpIr {
                x: op.x.clone(),
                grad: like(&op.out, TensorId::new(GRADIENT)),
                indices: op.out_indices.clone(),
                kernel_size: op.kernel_size,
                stride: op.stride,
                padding: op.padding,
                dilation: op.dilation,
                ceil_mode: op.ceil_mode,
                out: like(&op.x, TensorId::new(ANSWER)),
            };
            (ModuleOperationIr::MaxPool2dWithIndicesBackward(gradient), op.dilation[0] * op.dilation[1])
        }
        _ => return None,
    };
    Some((OperationIr::Module(gradient), dilation))
}

/// The recorded cases of pools with indices, each with its gradient, and the dilation. The greatest elements serve as the
/// gradient.
fn pools() -> Vec<(Case, usize)> {
    let mut pools = Vec::new();
    for mut case in cases() {
        let Some((gradient, dilation)) = case.operations.first().and_then(gradient_of) else { continue };
        let (values, indices) = (case.outputs[0].1.clone(), case.outputs[1].1.to_i64s().unwrap());
        let x = case.inputs[0].1.clone();
        if x.dtype() != DType::F32 || x.is_empty() {
            continue;
        }
        let (from, places) = (values.slice::<f32>().unwrap(), |tensor: &Tensor| tensor.dims()[2..].iter().product());
        let (plane, windows): (usize, usize) = (places(&x), places(&values));
        let mut back = vec![0f32; x.len()];
        for (at, (&index, &value)) in indices.iter().zip(from).enumerate() {
            back[at / windows * plane + usize::try_from(index).unwrap()] += value;
        }
        case.outputs = vec![(TensorId::new(ANSWER), Tensor::from_vec(x.shape().clone(), back))];
        case.inputs.push((TensorId::new(GRADIENT), values));
        case.operations.push(gradient);
        pools.push((case, dilation));
    }
    pools
}

#[tokio::test]
async fn a_pool_and_its_gradient_in_one_graph_need_no_indices() {
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    let pools = pools();
    assert!(pools.len() > 10, "only {} cases", pools.len());
    for (case, dilation) in pools {
        let got = run(&cluster, &case.operations, &case.inputs, &[TensorId::new(ANSWER)], false).await.unwrap();
        super::check(&case, &got).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        let has = |op: &str| ops(&case).contains(&op.to_owned());
        assert_eq!((has("MaxPoolGrad"), has("UnsortedSegmentSum")), (dilation == 1, dilation != 1), "{}", case.name);
    }
}

/// The ops that a case is lowered to.
fn ops(case: &Case) -> Vec<String> {
    let mut graph = GraphBuilder::new();
    let mut lowering = Lowering::new(&mut graph, Scalars::Constant);
    for (id, value) in &case.inputs {
        let input = lowering.graph().placeholder("input", value.dtype(), value.shape()).unwrap();
        lowering.bind(*id, input);
    }
    case.operations.iter().for_each(|operation| lowering.operation(operation).unwrap());
    graph.nodes().iter().map(|node| node.op.clone()).collect()
}
