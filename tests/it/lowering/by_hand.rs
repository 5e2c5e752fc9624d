//! Operations without a recording: their answers were calculated by hand, or they are refused.

use burn_ir::{
    BaseOperationIr, CastOpIr, CustomOpIr, DequantizeOpIr, FloatOperationIr, GatherNdOpIr, InterpolateBackwardOpIr,
    InterpolateModeIr, InterpolateOpIr, InterpolateOptionsIr, ModuleOperationIr, OperationIr, QuantizationParametersIr,
    QuantizeOpIr, ScalarIr, ScatterNdOpIr, TensorId, TensorIr,
};
use burn_std::quantization::QuantScheme;
use burn_std::{BoolStore, DType as Burn, IndexingUpdateOp as Update, Shape};
use meshtf::LocalCluster;
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::GraphBuilder;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Code;
use meshtf_tensor::{DType, Tensor};

use super::{REFUSED, run};
use meshtf_lowering::{Lowering, Scalars, name};

const BOOL: Burn = Burn::Bool(BoolStore::Native);

fn ir(id: u64, dtype: Burn, dims: &[usize]) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), Shape::from(dims.to_vec()), dtype)
}

#[tokio::test]
async fn what_is_not_recorded_answers_as_calculated() {
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    let cast = CastOpIr { input: ir(0, BOOL, &[3]), out: ir(9, Burn::I64, &[3]) };
    let scatter = |dtype: Burn, reduction: Update| ScatterNdOpIr {
        data: ir(0, dtype, &[3, 2]),
        indices: ir(1, Burn::I32, &[2, 1]),
        values: ir(2, dtype, &[2, 2]),
        reduction,
        out: ir(9, dtype, &[3, 2]),
    };
    let gather =
        GatherNdOpIr { data: ir(0, BOOL, &[3, 2]), indices: ir(1, Burn::I32, &[2, 2]), out: ir(9, BOOL, &[2]) };
    let bools = || Tensor::from([[true, false], [false, false], [true, true]]);
    let rows = || Tensor::from([[2], [1]]);
    let updates = || Tensor::from([[false, true], [true, true]]);
    let cases: Vec<(OperationIr, Vec<Tensor>, Tensor)> = vec![
        (
            OperationIr::BaseBool(BaseOperationIr::Cast(cast)),
            vec![Tensor::from([true, false, true])],
            Tensor::from([1i64, 0, 1]),
        ),
        (
            OperationIr::BaseBool(BaseOperationIr::GatherNd(gather)),
            vec![bools(), Tensor::from([[0, 1], [2, 1]])],
            Tensor::from([false, true]),
        ),
        (
            OperationIr::BaseBool(BaseOperationIr::ScatterNd(scatter(BOOL, Update::Assign))),
            vec![bools(), rows(), updates()],
            Tensor::from([[true, false], [true, true], [false, true]]),
        ),
        (
            OperationIr::BaseBool(BaseOperationIr::ScatterNd(scatter(BOOL, Update::Add))),
            vec![bools(), rows(), updates()],
            Tensor::from([[true, false], [true, true], [true, true]]),
        ),
    ];
    for (operation, inputs, wanted) in cases {
        let inputs: Vec<(TensorId, Tensor)> = (0..).map(TensorId::new).zip(inputs).collect();
        let got = run(&cluster, std::slice::from_ref(&operation), &inputs, &[TensorId::new(9)], false).await;
        assert_eq!(got.unwrap(), [wanted], "{}", name(&operation));
    }
    // An index beyond its dim fails even where a product is scattered, for which positions are linearized.
    let product = OperationIr::BaseFloat(BaseOperationIr::ScatterNd(scatter(Burn::F32, Update::Mul)));
    let data = [Tensor::from([[1f32; 2]; 3]), Tensor::from([[0], [3]]), Tensor::from([[2f32; 2]; 2])];
    let inputs: Vec<(TensorId, Tensor)> = (0..).map(TensorId::new).zip(data).collect();
    let failure = run(&cluster, &[product], &inputs, &[TensorId::new(9)], false).await.unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
}

/// For any number of elements that a product is scattered into.
#[test]
fn products_are_scattered_into_large_tensors() {
    let dims = &[1 << 25];
    let (data, indices, values) = (ir(0, Burn::F32, dims), ir(1, Burn::I32, &[2, 1]), ir(2, Burn::F32, &[2]));
    let scatter = ScatterNdOpIr { data, indices, values, reduction: Update::Mul, out: ir(9, Burn::F32, dims) };
    let mut graph = GraphBuilder::new();
    let mut lowering = Lowering::new(&mut graph, Scalars::Constant);
    for (id, dtype, dims) in [(0, DType::F32, &dims[..]), (1, DType::I32, &[2, 1]), (2, DType::F32, &[2])] {
        let input = lowering.graph().placeholder("input", dtype, &dims.to_vec().into()).unwrap();
        lowering.bind(TensorId::new(id), input);
    }
    lowering.operation(&OperationIr::BaseFloat(BaseOperationIr::ScatterNd(scatter))).unwrap();
}

/// Axes that would need a matrix of more than 2^22 elements.
#[tokio::test]
async fn long_axes_are_resized() {
    const LONG: usize = 6000;
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    let options = || InterpolateOptionsIr { mode: InterpolateModeIr::Bilinear, align_corners: false };
    let (long, short) = (&[1, 1, 1, LONG][..], &[1, 1, 1, LONG / 2][..]);
    let (forward, backward) = (
        InterpolateOpIr {
            x: ir(0, Burn::F32, long),
            output_size: [1, LONG / 2],
            options: options(),
            out: ir(9, Burn::F32, short),
        },
        InterpolateBackwardOpIr {
            x: ir(0, Burn::F32, long),
            grad: ir(1, Burn::F32, short),
            output_size: [1, LONG / 2],
            options: options(),
            out: ir(9, Burn::F32, long),
        },
    );
    // Each element of the shorter one is in the middle between two of the longer one.
    let counted = |dims: &[usize], value: fn(usize) -> f32| {
        Tensor::from_vec(dims.to_vec(), (0..dims.iter().product()).map(value).collect::<Vec<f32>>())
    };
    let x = counted(long, |i| i as f32);
    for (operation, inputs, wanted) in [
        (ModuleOperationIr::Interpolate(forward), vec![x.clone()], counted(short, |i| 2.0 * i as f32 + 0.5)),
        (
            ModuleOperationIr::InterpolateBackward(backward),
            vec![x, counted(short, |i| i as f32)],
            counted(long, |i| (i / 2) as f32 / 2.0),
        ),
    ] {
        let operation = [OperationIr::Module(operation)];
        let inputs: Vec<(TensorId, Tensor)> = (0..).map(TensorId::new).zip(inputs).collect();
        let got = run(&cluster, &operation, &inputs, &[TensorId::new(9)], false).await.unwrap();
        assert_eq!(got, [wanted]);
    }
}

#[test]
fn what_is_not_recorded_is_refused_by_name() {
    let float = |id| ir(id, Burn::F32, &[4]);
    let qparams = QuantizationParametersIr { scales: float(1), global: None };
    let scheme = QuantScheme::default();
    let quantize = QuantizeOpIr { tensor: float(0), qparams, scheme, out: ir(9, Burn::QFloat(scheme), &[4]) };
    let dequantize = DequantizeOpIr { input: ir(0, Burn::QFloat(scheme), &[4]), out: float(9) };
    for operation in [
        OperationIr::Float(Burn::F32, FloatOperationIr::Quantize(quantize)),
        OperationIr::Float(Burn::F32, FloatOperationIr::Dequantize(dequantize)),
    ] {
        let name = name(&operation);
        assert!(REFUSED.contains(&name.as_str()), "{name}");
        let mut graph = GraphBuilder::new();
        let failure = Lowering::new(&mut graph, Scalars::Constant).operation(&operation).unwrap_err();
        assert!(failure.code == Code::Unimplemented && failure.message.contains(&name), "{failure}");
    }
}

#[test]
fn a_transform_that_contradicts_itself_is_refused() {
    let scalars = |dim, length| vec![ScalarIr::UInt(dim), ScalarIr::Bool(true), ScalarIr::UInt(length)];
    let forward = |dims: &[usize]| [ir(2, Burn::F32, dims), ir(3, Burn::F32, dims)];
    for (scalars, out, why) in [
        (scalars(2, 4), forward(&[2, 3]), "signal::rfft along dim 2 of a tensor of rank 2"),
        (scalars(1, 4), forward(&[2, 4]), "an output of shape [2, 4] for 3 values along dim 1"),
        (
            scalars(1, u64::MAX),
            forward(&[2, 4]),
            "an output of shape [2, 4] for 9223372036854775808 values along dim 1",
        ),
        (vec![ScalarIr::UInt(1)], forward(&[2, 3]), "which are not those of burn-signal 0.22"),
    ] {
        let custom = CustomOpIr::with_scalars("signal::rfft", &[ir(0, Burn::F32, &[2, 4])], &out, scalars);
        let mut graph = GraphBuilder::new();
        let mut lowering = Lowering::new(&mut graph, Scalars::Constant);
        let signal = lowering.graph().constant("signal", Tensor::from([[1f32; 4]; 2])).unwrap();
        lowering.bind(TensorId::new(0), signal);
        let failure = lowering.operation(&OperationIr::Custom(custom)).unwrap_err();
        assert!(failure.code == Code::InvalidArgument && failure.message.contains(why), "{failure}");
    }
}
