//! Random tensors, whose numbers differ from burn's: their distributions, and that they depend on the seed alone.

use burn_ir::{FloatOperationIr, NumericOperationIr, OperationIr, RandomOpIr, TensorId, TensorIr};
use burn_std::{DType as Burn, Distribution, Shape};
use meshtf::LocalCluster;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Result};
use meshtf_tensor::{DType, Numeric, Tensor, with_float, with_integer};

use super::run;

const COUNT: usize = 20_000;

fn draw(id: u64, dtype: Burn, distribution: Distribution) -> OperationIr {
    let out = TensorIr::uninit(TensorId::new(id), Shape::from(vec![COUNT / 2, 2]), dtype);
    let op = RandomOpIr { out, distribution };
    if dtype.is_float() {
        return OperationIr::Float(dtype, FloatOperationIr::Random(op));
    }
    OperationIr::NumericInt(dtype, NumericOperationIr::IntRandom(op))
}

async fn drawn(cluster: &LocalCluster, operations: &[OperationIr]) -> Result<Vec<Tensor>> {
    let ids: Vec<TensorId> = operations.iter().flat_map(|op| op.outputs()).map(|out| out.id).collect();
    run(cluster, operations, &[], &ids, false).await
}

fn cluster() -> LocalCluster {
    LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    with_float!(tensor.dtype(), T => tensor.slice::<T>().unwrap().iter().map(|x| Numeric::to_f64(*x)).collect())
        .or_else(|| {
            with_integer!(tensor.dtype(), T => {
                tensor.slice::<T>().unwrap().iter().map(|x| Numeric::to_f64(*x)).collect()
            })
        })
        .unwrap()
}

#[tokio::test]
async fn distributions_have_their_range_mean_and_deviation() {
    let cluster = cluster();
    let full = 2f64.powi(31);
    // Range, mean, deviation.
    for (dtype, distribution, low, high, mean, deviation) in [
        (Burn::F32, Distribution::Default, 0.0, 1.0, 0.5, 0.2887),
        (Burn::F64, Distribution::Uniform(-3.0, 5.0), -3.0, 5.0, 1.0, 2.3094),
        (Burn::F32, Distribution::Normal(2.0, 0.5), -1.0, 5.0, 2.0, 0.5),
        (Burn::F32, Distribution::Bernoulli(0.3), 0.0, 1.0, 0.3, 0.4583),
        (Burn::I32, Distribution::Default, -full, full, 0.0, full / 3f64.sqrt()),
        (Burn::I32, Distribution::Uniform(-2.0, 3.0), -2.0, 2.0, 0.0, std::f64::consts::SQRT_2),
        (Burn::U8, Distribution::Uniform(10.0, 13.0), 10.0, 12.0, 11.0, 0.8165),
        (Burn::I64, Distribution::Normal(100.0, 10.0), 50.0, 150.0, 99.5, 10.0),
        (Burn::I32, Distribution::Bernoulli(1.0), 1.0, 1.0, 1.0, 0.0),
    ] {
        let drawn = drawn(&cluster, &[draw(1, dtype, distribution)]).await.unwrap();
        let what = format!("{dtype:?} {distribution:?}");
        assert_eq!(
            (drawn[0].dtype(), drawn[0].dims()),
            (meshtf_lowering::dtype(dtype).unwrap(), &[COUNT / 2, 2][..]),
            "{what}"
        );
        let values = floats(&drawn[0]);
        let is_inside = values.iter().all(|x| (low..=high).contains(x));
        let found = values.iter().sum::<f64>() / COUNT as f64;
        let spread = (values.iter().map(|x| (x - found).powi(2)).sum::<f64>() / COUNT as f64).sqrt();
        // Of 20 000 numbers, the mean is within 0.03 deviations of the distribution's in all but a few of 100 000 cases.
        let is_right = (found - mean).abs() <= 0.03 * deviation && (spread - deviation).abs() <= 0.03 * deviation;
        assert!(is_inside && is_right, "{what}: mean {found}, deviation {spread}, inside: {is_inside}");
    }
}

#[tokio::test]
async fn numbers_depend_on_the_seed_and_the_place_in_the_program() {
    let cluster = cluster();
    let two = [draw(1, Burn::F32, Distribution::Default), draw(2, Burn::F32, Distribution::Default)];
    let (first, again) = (drawn(&cluster, &two).await.unwrap(), drawn(&cluster, &two).await.unwrap());
    assert_eq!(first, again);
    assert_ne!(first[0], first[1]);
    assert_eq!(first[0].dtype(), DType::F32);
}

#[tokio::test]
async fn distributions_that_are_none_are_refused() {
    let cluster = cluster();
    for (dtype, distribution) in [
        (Burn::F32, Distribution::Bernoulli(1.5)),
        (Burn::F32, Distribution::Uniform(2.0, 2.0)),
        (Burn::I32, Distribution::Uniform(2.1, 2.9)),
        (Burn::F32, Distribution::Normal(0.0, -1.0)),
        (Burn::F32, Distribution::Normal(f64::NAN, 1.0)),
    ] {
        let failure = drawn(&cluster, &[draw(1, dtype, distribution)]).await.unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{distribution:?}: {failure}");
    }
}
