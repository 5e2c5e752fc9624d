//! The tensors, scalars and dtypes of a burn program, as inputs of nodes.

use std::fmt;

use burn_ir::{OperationIr, ScalarIr, TensorIr};
use burn_std::{BoolStore, TensorData};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_float, with_integer};

use super::{Fed, FedValue, Lowering, Scalar, Scalars};

impl Lowering<'_> {
    /// The output that holds a tensor which an operation reads.
    pub fn read(&self, tensor: &TensorIr) -> Result<Output> {
        let missing = || {
            let why = format!("tensor {} of shape {:?} does not exist", tensor.id.value(), &tensor.shape[..]);
            Failure::invalid(why)
        };
        self.value(tensor.id).ok_or_else(missing)
    }

    /// Sets the output that holds an operation's result.
    pub fn write(&mut self, tensor: &TensorIr, value: Output) -> Result<()> {
        self.bind(tensor.id, value);
        Ok(())
    }

    /// A scalar of an operation, if its value is known.
    pub fn scalar(&self, scalar: ScalarIr) -> Result<Scalar> {
        match (self.scalars, scalar) {
            (Scalars::Constant, scalar) => Ok(Scalar::Known(scalar)),
            (Scalars::Listed(list), ScalarIr::UInt(place)) => match list.get(place as usize) {
                Some(Some(scalar)) => Ok(Scalar::Known(*scalar)),
                Some(None) => Ok(Scalar::Fed(place as usize)),
                None => Err(Failure::invalid(format!("there is no scalar {place}, only {}", list.len()))),
            },
            (Scalars::Listed(_), other) => Err(Failure::invalid(format!("the scalar {other:?} is not in the list"))),
        }
    }

    /// A scalar of an operation as an input: a constant of this dtype, or a placeholder for one. Shape [].
    pub fn scalar_input(&mut self, scalar: ScalarIr, dtype: DType) -> Result<Input> {
        match self.scalar(scalar)? {
            Scalar::Known(scalar) => Ok(Input::Value(scalar_tensor(scalar, dtype)?)),
            Scalar::Fed(place) => self.fed_input(FedValue::Scalar(place), dtype, &[]),
        }
    }

    /// The seed of the operation that is being lowered, which draws random numbers: a placeholder of int64, shape \[2\].
    pub fn seed_input(&mut self) -> Result<Input> {
        self.fed_input(FedValue::Seed(self.random.saturating_sub(1)), DType::I64, &[2])
    }

    /// The placeholder for a value; there is one for each dtype.
    fn fed_input(&mut self, what: FedValue, dtype: DType, shape: &[usize]) -> Result<Input> {
        if let Some(at) = self.fed.iter().position(|fed| fed.what == what && fed.dtype == dtype) {
            return Ok(Input::Output(self.placeholders[at]));
        }
        let wanted = match what {
            FedValue::Scalar(place) => format!("scalar_{place}"),
            FedValue::Seed(number) => format!("seed_{number}"),
        };
        let placeholder = self.graph.placeholder(&wanted, dtype, &Shape::from(shape))?;
        self.fed.push(Fed { name: self.graph.tensor_name(placeholder), dtype, what });
        self.placeholders.push(placeholder);
        Ok(Input::Output(placeholder))
    }
}

/// A scalar as a tensor of shape [], converted as by Rust's `as`; a bool becomes 0 or 1, and a number is true if it is not 0.
///
/// # Errors
/// InvalidArgument if the dtype is not of numbers or bools.
pub fn scalar_tensor(scalar: ScalarIr, dtype: DType) -> Result<Tensor> {
    let (float, int) = match scalar {
        ScalarIr::Float(x) => (x, x as i64),
        ScalarIr::Int(x) => (x as f64, x),
        ScalarIr::UInt(x) => (x as f64, x as i64),
        ScalarIr::Bool(x) => (f64::from(u8::from(x)), i64::from(x)),
    };
    if dtype == DType::Bool {
        return Ok(Tensor::scalar(float != 0.0));
    }
    let of_float = with_float!(dtype, T => Tensor::scalar(T::from_f64(float)));
    of_float
        .or_else(|| with_integer!(dtype, T => Tensor::scalar(T::from_i64(int))))
        .ok_or_else(|| Failure::invalid(format!("{scalar:?} cannot be of type {dtype}")))
}

/// The dtype of a burn tensor. Bools are bool, however burn stores them.
///
/// # Errors
/// Unimplemented for quantized tensors.
pub fn dtype(dtype: burn_std::DType) -> Result<DType> {
    use burn_std::DType as Burn;
    Ok(match dtype {
        Burn::F64 => DType::F64,
        Burn::F32 | Burn::Flex32 => DType::F32,
        Burn::F16 => DType::F16,
        Burn::BF16 => DType::BF16,
        Burn::I64 => DType::I64,
        Burn::I32 => DType::I32,
        Burn::I16 => DType::I16,
        Burn::I8 => DType::I8,
        Burn::U64 => DType::U64,
        Burn::U32 => DType::U32,
        Burn::U16 => DType::U16,
        Burn::U8 => DType::U8,
        Burn::Bool(_) => DType::Bool,
        Burn::QFloat(_) => {
            let why = "quantized tensors do not run on the mesh; dequantize them before".to_owned();
            return Err(Failure::new(Code::Unimplemented, why));
        }
    })
}

/// The tensor that a burn program sends.
///
/// # Errors
/// Unimplemented for quantized tensors; InvalidArgument if a bool is neither 0 nor 1; ResourceExhausted if it exceeds the
/// memory budget.
pub fn tensor(data: &TensorData) -> Result<Tensor> {
    let shape = Shape::from(data.shape()[..].to_vec());
    let bytes = data.as_bytes();
    match data.dtype() {
        burn_std::DType::Bool(BoolStore::U32) => {
            let narrow: Vec<u8> = bytes.chunks_exact(4).map(|word| u8::from(word != [0; 4])).collect();
            Tensor::from_bytes(DType::Bool, shape, &narrow)
        }
        other => Tensor::from_bytes(dtype(other)?, shape, bytes),
    }
}

/// A tensor as the data of the burn tensor that a program reads; `wanted` has its dtype and shape.
///
/// # Errors
/// Internal if the value is of another dtype or another number of elements than burn's.
pub fn data(value: &Tensor, wanted: &TensorIr) -> Result<TensorData> {
    let elements: usize = wanted.shape[..].iter().product();
    let (true, Some(bytes)) = (dtype(wanted.dtype)? == value.dtype() && value.len() == elements, value.bytes()) else {
        let burn = format!("{:?} of shape {:?}", wanted.dtype, &wanted.shape[..]);
        let why = format!("burn's tensor is {burn}, and its value is {} of shape {}", value.dtype(), value.shape());
        return Err(Failure::new(Code::Internal, why));
    };
    let bytes = match wanted.dtype {
        burn_std::DType::Bool(BoolStore::U32) => bytes.iter().flat_map(|&bit| u32::from(bit).to_le_bytes()).collect(),
        _ => bytes.to_vec(),
    };
    Ok(TensorData::from_bytes_vec(bytes, wanted.shape.clone(), wanted.dtype))
}

/// The name of an operation, such as `Float::Exp`.
pub fn name(operation: &OperationIr) -> String {
    use OperationIr as Op;
    let inner = |kind: &str, op: &dyn fmt::Debug| {
        let text = format!("{op:?}");
        let variant = text.split(['(', ' ']).next().unwrap_or_default();
        format!("{kind}::{variant}")
    };
    match operation {
        Op::BaseFloat(op) => inner("BaseFloat", op),
        Op::BaseInt(op) => inner("BaseInt", op),
        Op::BaseBool(op) => inner("BaseBool", op),
        Op::NumericFloat(_, op) => inner("NumericFloat", op),
        Op::NumericInt(_, op) => inner("NumericInt", op),
        Op::Float(_, op) => inner("Float", op),
        Op::Int(op) => inner("Int", op),
        Op::Bool(op) => inner("Bool", op),
        Op::Activation(op) => inner("Activation", op),
        Op::Module(op) => inner("Module", op),
        Op::Distributed(op) => inner("Distributed", op),
        Op::Init(_) => "Init".to_owned(),
        Op::Drop(_) => "Drop".to_owned(),
        Op::Custom(custom) => format!("Custom::{}", custom.id),
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{BaseOperationIr, FloatOperationIr, InitOperationIr, ShapeOpIr, TensorId, UnaryOpIr};
    use burn_std::{DType as Burn, Shape as Dims};

    use super::*;

    fn ir(dims: &[usize], dtype: Burn) -> TensorIr {
        TensorIr::uninit(TensorId::new(1), Dims::from(dims.to_vec()), dtype)
    }

    #[test]
    fn operations_have_names() {
        let unary = UnaryOpIr { input: ir(&[2], Burn::F32), out: ir(&[2], Burn::F32) };
        let shape = ShapeOpIr { input: ir(&[2], Burn::F32), out: ir(&[2], Burn::F32) };
        for (operation, wanted) in [
            (OperationIr::Float(Burn::F32, FloatOperationIr::Exp(unary.clone())), "Float::Exp"),
            (OperationIr::Float(Burn::Bool(BoolStore::Native), FloatOperationIr::Exp(unary)), "Float::Exp"),
            (OperationIr::BaseInt(BaseOperationIr::Reshape(shape)), "BaseInt::Reshape"),
            (OperationIr::Init(InitOperationIr { out: ir(&[2], Burn::F32) }), "Init"),
            (OperationIr::Drop(ir(&[2], Burn::F32)), "Drop"),
        ] {
            assert_eq!(name(&operation), wanted);
        }
    }

    #[test]
    fn tensors_go_there_and_back() {
        for (data, text) in [
            (TensorData::new(vec![1.5f32, -2.0], [2, 1]), "[[ 1.5]\n [-2. ]]"),
            (TensorData::new(vec![7i64], [1]), "[7]"),
            (TensorData::new(vec![true, false], [2]), "[ True False]"),
            (
                TensorData::from_bytes_vec(vec![1, 0, 0, 0, 0, 0, 0, 0], [2], Burn::Bool(BoolStore::U32)),
                "[ True False]",
            ),
        ] {
            let value = tensor(&data).unwrap();
            assert_eq!(value.to_string(), text);
            let wanted = ir(&data.shape()[..], data.dtype());
            assert_eq!(super::data(&value, &wanted).unwrap(), data);
        }
        let wrong = super::data(&Tensor::from([1.0f32]), &ir(&[1], Burn::I32)).unwrap_err();
        assert_eq!(wrong.message, "burn's tensor is I32 of shape [1], and its value is float32 of shape [1]");
        let bools = TensorData::from_bytes_vec(vec![2], [1], Burn::Bool(BoolStore::Native));
        assert!(tensor(&bools).is_err());
    }

    #[test]
    fn scalars_take_the_dtype_of_their_use() {
        for (scalar, dtype, wanted) in [
            (ScalarIr::Float(0.1), DType::F32, Tensor::scalar(0.1f32)),
            (ScalarIr::Int(-3), DType::F64, Tensor::scalar(-3f64)),
            (ScalarIr::UInt(200), DType::U8, Tensor::scalar(200u8)),
            (ScalarIr::Bool(true), DType::I32, Tensor::scalar(1)),
            (ScalarIr::Int(2), DType::Bool, Tensor::scalar(true)),
        ] {
            assert_eq!(scalar_tensor(scalar, dtype).unwrap(), wanted);
        }
        assert!(scalar_tensor(ScalarIr::Int(2), DType::String).is_err());
    }
}
