//! Cases: one operation, its inputs drawn from a fixed seed, and the answers of the interpreter.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::ops::IntTensorOps;
use burn_backend::{DType, Shape, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{BaseOperationIr, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::{CustomOpRegistry, TensorInterpreter};
use half::{bf16, f16};

/// The seed of every case, so that a new case changes no other.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The builder of a case, which makes tensors with data, and ids.
pub struct Case {
    inputs: RefCell<Vec<(TensorIr, TensorData)>>,
    next: Cell<u64>,
    state: Cell<u64>,
}

impl Case {
    fn new() -> Case {
        Case { inputs: RefCell::default(), next: Cell::new(1), state: Cell::new(SEED) }
    }

    /// Gives an id to each output of an operation.
    pub fn id(&self) -> impl FnMut() -> TensorId + '_ {
        || {
            self.next.set(self.next.get() + 1);
            TensorId::new(self.next.get() - 1)
        }
    }

    /// An output of `shape` for the operations that are written out field by field.
    pub fn out(&self, dtype: DType, shape: &[usize]) -> TensorIr {
        TensorIr::uninit(self.id()(), Shape::from(shape.to_vec()), dtype)
    }

    /// An input with these values, whose last use is the operation.
    pub fn of(&self, dtype: DType, shape: &[usize], values: &[f64]) -> TensorIr {
        let mut ir = self.out(dtype, shape);
        ir.status = TensorStatus::ReadWrite;
        self.inputs.borrow_mut().push((ir.clone(), data(dtype, shape, values)));
        ir
    }

    /// An input with numbers from `low` to `high`, floats in steps of an eighth (exact in every type).
    pub fn within(&self, dtype: DType, shape: &[usize], low: f64, high: f64) -> TensorIr {
        let count = shape.iter().product();
        let values: Vec<f64> = (0..count)
            .map(|_| {
                let x = low + (high - low) * self.unit();
                if dtype.is_float() { (x * 8.0).round() / 8.0 } else { x.round() }
            })
            .collect();
        self.of(dtype, shape, &values)
    }

    /// An input of any kind: floats and ints from -4 to 4 (unsigned ones from 0 to 8), booleans half of them true.
    pub fn any(&self, dtype: DType, shape: &[usize]) -> TensorIr {
        if dtype.is_bool() {
            self.within(dtype, shape, 0.0, 1.0)
        } else if dtype.is_uint() {
            self.within(dtype, shape, 0.0, 8.0)
        } else {
            self.within(dtype, shape, -4.0, 4.0)
        }
    }

    /// An input with numbers that all differ, in an order drawn from the seed.
    pub fn distinct(&self, dtype: DType, shape: &[usize]) -> TensorIr {
        let count: usize = shape.iter().product();
        let mut values: Vec<f64> = (0..count).map(|i| i as f64 - (count / 2) as f64).collect();
        for i in (1..count).rev() {
            values.swap(i, (self.unit() * (i + 1) as f64) as usize);
        }
        if dtype.is_float() {
            values.iter_mut().for_each(|x| *x /= 4.0);
        }
        self.of(dtype, shape, &values)
    }

    /// float32 from -4 to 4.
    pub fn f32(&self, shape: &[usize]) -> TensorIr {
        self.any(DType::F32, shape)
    }

    /// int32 with these values.
    pub fn i32(&self, shape: &[usize], values: &[i32]) -> TensorIr {
        self.of(DType::I32, shape, &values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>())
    }

    /// int32 from 0 to `below` (exclusive).
    pub fn indices(&self, shape: &[usize], below: usize) -> TensorIr {
        self.within(DType::I32, shape, 0.0, below as f64 - 1.0)
    }

    /// From 0 to 1 (exclusive): splitmix64.
    pub fn unit(&self) -> f64 {
        self.state.set(self.state.get().wrapping_add(SEED));
        let mut z = self.state.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One operation with its inputs and outputs.
pub struct Recorded {
    pub name: String,
    pub operation: OperationIr,
    pub inputs: Vec<(TensorIr, TensorData)>,
    pub outputs: Vec<(TensorIr, TensorData)>,
}

/// The cases of one file, and the number of cases per operation that the backend does not support.
#[derive(Default)]
pub struct Cases {
    pub recorded: Vec<Recorded>,
    pub refused: BTreeMap<String, usize>,
}

impl Cases {
    /// Builds a case, runs it, and keeps it if the backend supports it.
    pub fn add(&mut self, build: impl FnOnce(&Case) -> OperationIr) {
        let case = Case::new();
        let Ok(operation) = catch_unwind(AssertUnwindSafe(|| build(&case))) else {
            let before = self.recorded.last().map_or("the first", |r| &r.name);
            *self.refused.entry(format!("a case after {before}, which cannot be built")).or_default() += 1;
            return;
        };
        let plain = name(&operation);
        let inputs = case.inputs.into_inner();
        let Some(outputs) = catch_unwind(AssertUnwindSafe(|| run(&operation, &inputs))).ok().flatten() else {
            *self.refused.entry(plain).or_default() += 1;
            return;
        };
        let same = self.recorded.iter().filter(|r| r.name.split(' ').next() == Some(&plain)).count();
        let name = if same == 0 { plain } else { format!("{plain} {}", same + 1) };
        self.recorded.push(Recorded { name, operation, inputs, outputs });
    }
}

/// `None` if an output cannot be read.
fn run(operation: &OperationIr, inputs: &[(TensorIr, TensorData)]) -> Option<Vec<(TensorIr, TensorData)>> {
    // burn's interpreter has no cast of ints, though its clients request it and its backends have it.
    if let (OperationIr::BaseInt(BaseOperationIr::Cast(cast)), [(_, data)]) = (operation, inputs) {
        let answer = Flex::int_cast(Flex::int_from_data(data.clone(), &FlexDevice), cast.out.dtype.into());
        return Some(vec![(cast.out.clone(), burn_backend::read_sync(Flex::int_into_data(answer)).ok()?)]);
    }
    let mut custom = CustomOpRegistry::new();
    burn_signal::register_fft_ops::<Flex>(&mut custom);
    let mut interpreter = TensorInterpreter::<Flex>::with_custom_ops(FlexDevice, custom);
    for (ir, data) in inputs {
        interpreter.register_tensor_data_id(ir.id, data.clone());
    }
    interpreter.register_op(operation.clone());
    operation
        .outputs()
        .map(|out| {
            let ir = TensorIr { status: TensorStatus::ReadWrite, ..out.clone() };
            let read = burn_backend::read_sync(interpreter.read_tensor_async(ir)).ok()?;
            assert_eq!(read.shape(), &out.shape, "{operation:?}");
            Some((out.clone(), read))
        })
        .collect()
}

/// `float/exp`, `base_int/swap_dims`: the two variants; `custom/signal::rfft`: the name of a custom operation.
fn name(operation: &OperationIr) -> String {
    if let OperationIr::Custom(custom) = operation {
        return format!("custom/{}", custom.id);
    }
    let value = serde_json::to_value(operation).expect("an operation is JSON");
    let (family, inner) = value.as_object().and_then(|o| o.iter().next()).expect("an enum with data");
    let inner = inner.get(1).unwrap_or(inner);
    let variant = inner.as_object().and_then(|o| o.keys().next()).expect("an enum with data");
    format!("{}/{}", snake(family), snake(variant))
}

fn snake(camel: &str) -> String {
    let mut out = String::new();
    for (i, c) in camel.char_indices() {
        if c.is_uppercase() && i > 0 {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn data(dtype: DType, shape: &[usize], values: &[f64]) -> TensorData {
    macro_rules! of {
        ($convert:expr) => {
            TensorData::new(values.iter().map(|&x| $convert(x)).collect::<Vec<_>>(), Shape::from(shape.to_vec()))
        };
    }
    match dtype {
        DType::F64 => of!(|x: f64| x),
        DType::F32 => of!(|x: f64| x as f32),
        DType::F16 => of!(f16::from_f64),
        DType::BF16 => of!(bf16::from_f64),
        DType::I64 => of!(|x: f64| x as i64),
        DType::I32 => of!(|x: f64| x as i32),
        DType::I16 => of!(|x: f64| x as i16),
        DType::I8 => of!(|x: f64| x as i8),
        DType::U64 => of!(|x: f64| x as u64),
        DType::U32 => of!(|x: f64| x as u32),
        DType::U16 => of!(|x: f64| x as u16),
        DType::U8 => of!(|x: f64| x as u8),
        DType::Bool(_) => of!(|x: f64| x != 0.0),
        other => panic!("no case has {other:?}"),
    }
}
