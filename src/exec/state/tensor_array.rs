//! Tensor arrays: what a loop writes and reads element by element. They live as long as a handle to them flows
//! through their step.

use std::sync::{Arc, Mutex};

use super::super::engine::{Engine, Value};
use super::super::kernel::KernelNode;
use super::super::resource::{Resource, lock};
use super::super::token::Token;
use super::queue::{row, stack};
use super::{Site, StateOp, one, simple};
use crate::failure::{Code, Failure, Result};
use crate::tensor::{DType, PartialShape, Tensor};

/// Most elements of one tensor array.
const MAX_TENSOR_ARRAY: usize = 1 << 24;

pub(in crate::exec) struct TensorArray {
    name: String,
    dtype: DType,
    /// It may grow.
    is_dynamic: bool,
    clears_after_read: bool,
    /// All elements have one shape, which the first one sets.
    is_uniform: bool,
    state: Mutex<State>,
}

struct State {
    shape: PartialShape,
    elements: Vec<Element>,
}

#[derive(Clone)]
enum Element {
    Unwritten,
    Written(Value),
    /// Read, and cleared by that.
    Read,
}

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    match node.op {
        "TensorArrayV3" => make(node),
        "TensorArrayWriteV3" => simple(|mut inputs, _| {
            let array = inputs.tensor_array(0)?;
            let index = inputs.host(1)?.to_i64()?;
            array.write(index, inputs.value(2)?)?;
            Ok(one(inputs.token(3)?))
        }),
        "TensorArrayReadV3" => {
            let dtype = node.attrs.dtype("dtype")?;
            simple(move |mut inputs, _| {
                let array = inputs.tensor_array(0)?;
                array.check_dtype(dtype)?;
                Ok(one(array.read(inputs.host(1)?.to_i64()?)?))
            })
        }
        "TensorArrayGatherV3" => {
            let dtype = node.attrs.dtype("dtype")?;
            let shape = node.attrs.shape("element_shape")?.clone();
            simple(move |mut inputs, _| {
                let array = inputs.tensor_array(0)?;
                array.check_dtype(dtype)?;
                Ok(one(array.gather(&inputs.host(1)?, &shape)?))
            })
        }
        "TensorArrayScatterV3" => simple(|mut inputs, _| {
            let array = inputs.tensor_array(0)?;
            let indices = inputs.host(1)?;
            array.scatter(&indices, &inputs.host(2)?)?;
            Ok(one(inputs.token(3)?))
        }),
        _ => Ok(None),
    }
}

fn make(node: &KernelNode) -> Result<Option<StateOp>> {
    let given = node.attrs.str("tensor_array_name")?;
    let name = if given.is_empty() { node.name } else { given }.to_owned();
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("element_shape")?.clone();
    let is_dynamic = node.attrs.bool("dynamic_size")?;
    let clears_after_read = node.attrs.bool("clear_after_read")?;
    let is_uniform = node.attrs.bool("identical_element_shapes")?;
    simple(move |mut inputs, _| {
        let size = inputs.host(0)?.to_i64()?;
        let size = usize::try_from(size).ok().filter(|&size| size <= MAX_TENSOR_ARRAY).ok_or_else(|| {
            let why = format!("TensorArray {name}: size {size} is not between 0 and {MAX_TENSOR_ARRAY}");
            Failure::invalid(why)
        })?;
        let state = State { shape: shape.clone(), elements: vec![Element::Unwritten; size] };
        let name = name.clone();
        let array = TensorArray { name, dtype, is_dynamic, clears_after_read, is_uniform, state: Mutex::new(state) };
        let handle = Token::Resource(Resource::TensorArray(Arc::new(array)));
        Ok(super::Tokens::from_iter([Some(handle), Some(Tensor::scalar(0f32).into())]))
    })
}

impl TensorArray {
    fn wrong<T>(&self, why: String) -> Result<T> {
        Err(Failure::invalid(format!("TensorArray {}: {why}", self.name)))
    }

    fn check_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        self.wrong(format!("dtype is {} but op requested dtype {dtype}.", self.dtype))
    }

    fn write(&self, index: i64, value: Value) -> Result<()> {
        if value.dtype() != self.dtype {
            let why = format!(
                "Could not write to TensorArray index {index} because the value dtype is {} but TensorArray dtype is {}.",
                value.dtype(),
                self.dtype
            );
            return self.wrong(why);
        }
        let state = &mut *lock(&self.state);
        let at = self.place(state, index)?;
        if !state.shape.admits(value.shape()) {
            let why = format!(
                "Could not write to TensorArray index {index} because the value shape is {} which is incompatible with \
                 the TensorArray's inferred element shape: {} (consider setting infer_shape=False).",
                value.shape(),
                state.shape
            );
            return self.wrong(why);
        }
        match state.elements[at] {
            Element::Unwritten => {}
            Element::Written(_) => {
                return self.wrong(format!(
                    "Could not write to TensorArray index {index} because it has already been written to."
                ));
            }
            Element::Read => {
                return self
                    .wrong(format!("Could not write to TensorArray index {index} because it has already been read."));
            }
        }
        if self.is_uniform {
            state.shape = PartialShape::from(value.shape());
        }
        state.elements[at] = Element::Written(value);
        Ok(())
    }

    /// The place of an index; the array grows to hold it where it may.
    fn place(&self, state: &mut State, index: i64) -> Result<usize> {
        let size = state.elements.len();
        match usize::try_from(index) {
            Ok(at) if at < size => Ok(at),
            Ok(at) if self.is_dynamic && at < MAX_TENSOR_ARRAY => {
                state.elements.resize(at + 1, Element::Unwritten);
                Ok(at)
            }
            Ok(_) if self.is_dynamic => {
                let why = format!("TensorArray {}: index {index} passes the limit of {MAX_TENSOR_ARRAY}", self.name);
                Err(Failure::new(Code::ResourceExhausted, why))
            }
            _ => self.wrong(format!("Tried to write to index {index} but array is not resizeable and size is: {size}")),
        }
    }

    fn read(&self, index: i64) -> Result<Value> {
        let state = &mut *lock(&self.state);
        let size = state.elements.len();
        let Some(element) = usize::try_from(index).ok().and_then(|at| state.elements.get_mut(at)) else {
            return self.wrong(format!("Tried to read from index {index} but array size is: {size}"));
        };
        match element {
            Element::Written(value) => {
                let value = value.clone();
                if self.clears_after_read {
                    *element = Element::Read;
                }
                Ok(value)
            }
            Element::Read => self.wrong(format!(
                "Could not read index {index} twice because it was cleared after a previous read (perhaps try setting \
                 clear_after_read = false?)."
            )),
            Element::Unwritten => match state.shape.known() {
                Some(shape) => Ok(Tensor::zeros(self.dtype, shape)?.into()),
                None => self.wrong(format!(
                    "Could not read from TensorArray index {index}.  Furthermore, the element shape is not fully \
                     defined: {}.  It is possible you are working with a resizeable TensorArray and stop_gradients is \
                     not allowing the gradients to be written.",
                    state.shape
                )),
            },
        }
    }

    fn gather(&self, indices: &Tensor, stated: &PartialShape) -> Result<Tensor> {
        let indices = indices.to_i64s()?;
        let rows: Vec<Tensor> = indices.iter().map(|&index| self.read(index)?.into_host()).collect::<Result<_>>()?;
        let Some(first) = rows.first() else {
            let own = lock(&self.state).shape.clone();
            return match stated.known().or_else(|| own.known()) {
                Some(shape) => stack(self.dtype, &shape, &[]),
                None => self.wrong(format!(
                    "has size zero, but element shape {stated} is not fully defined. Currently only static shapes are \
                     supported when packing zero-size TensorArrays."
                )),
            };
        };
        if let Some((i, other)) = rows.iter().enumerate().find(|(_, row)| row.shape() != first.shape()) {
            return self.wrong(format!(
                "has inconsistent shapes.  Index 0 has shape: {} but index {i} has shape: {}",
                first.shape(),
                other.shape()
            ));
        }
        stack(self.dtype, first.shape(), &rows.iter().collect::<Vec<_>>())
    }

    fn scatter(&self, indices: &Tensor, values: &Tensor) -> Result<()> {
        let indices = indices.to_i64s()?;
        let rows = values.dims().first().copied();
        if rows != Some(indices.len()) {
            let rows = rows.map_or_else(|| "a scalar".to_owned(), |rows| rows.to_string());
            return self
                .wrong(format!("Expected len(indices) == values.shape[0], but saw: {} vs. {rows}", indices.len()));
        }
        let size = lock(&self.state).elements.len();
        if let Some(greatest) = indices.iter().max().filter(|&&index| !self.is_dynamic && index >= size as i64) {
            return self.wrong(format!("Max scatter index must be < array size ({greatest} vs. {size})"));
        }
        for (i, &index) in indices.iter().enumerate() {
            self.write(index, row(values, i)?.into())?;
        }
        Ok(())
    }
}
