//! Tensor arrays, which a loop writes and reads element by element. They live as long as a handle to them flows through their
//! step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use meshtf_engine::Value;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::super::rows::{row, stack};
use super::super::sums::add;
use super::Resource;

/// Most elements of one tensor array.
pub(crate) const MAX_TENSOR_ARRAY: usize = 1 << 24;
/// Most arrays of gradients of one tensor array: each `tf.gradients` asks for one.
const MAX_GRADIENTS: usize = 1024;

pub(crate) struct TensorArray {
    name: String,
    /// The name with a number, as messages have it.
    label: String,
    dtype: DType,
    /// It may grow.
    is_dynamic: bool,
    clears_after_read: bool,
    /// All elements have one shape, which the first one sets.
    is_uniform: bool,
    /// It gathers the gradients of another array: repeated writes of an element are added up.
    adds_up: bool,
    state: Mutex<State>,
    /// The arrays that gather its gradients, by the source that asked for them.
    gradients: Mutex<BTreeMap<String, Arc<TensorArray>>>,
}

struct State {
    shape: PartialShape,
    elements: Vec<Element>,
    /// The shape of each element that has, or had, a value.
    shapes: Vec<Option<Shape>>,
    /// The number of elements that were written at once, by Split or Unpack: their gradient is that of so many.
    at_once: Option<usize>,
}

impl State {
    fn resize(&mut self, size: usize) {
        self.elements.resize(size, Element::Unwritten);
        self.shapes.resize(size, None);
    }
}

/// Bytes of an element without a value.
const ELEMENT_BYTES: usize = size_of::<Element>() + size_of::<Option<Shape>>();

#[derive(Clone)]
enum Element {
    Unwritten,
    Written(Value),
    /// Read, and cleared by the read.
    Read,
}

/// The description of an array in the node that makes it.
pub(crate) struct ArraySpec {
    pub name: String,
    /// The number of the array among those that the node makes.
    pub number: u64,
    pub dtype: DType,
    /// The known part of the shape of every element.
    pub shape: PartialShape,
    pub is_dynamic: bool,
    pub clears_after_read: bool,
    pub is_uniform: bool,
}

impl Resource for TensorArray {
    fn wanted() -> &'static str {
        "tensor array"
    }

    fn kind(&self) -> &'static str {
        "tensor array"
    }

    /// Bytes of its elements and of its gradients; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        let elements = self.state.try_lock().map_or(0, |state| {
            let written = state.elements.iter().map(|element| match element {
                Element::Written(value) => value.heap_bytes(),
                Element::Unwritten | Element::Read => 0,
            });
            written.sum::<usize>() + state.elements.len() * ELEMENT_BYTES
        });
        let gradients = self.gradients.try_lock().map_or(0, |all| all.values().map(|array| array.bytes()).sum());
        elements + gradients
    }

    fn name_in_step(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl TensorArray {
    /// # Errors
    /// ResourceExhausted if there is no memory for `size` elements.
    pub fn new(spec: ArraySpec, size: usize) -> Result<TensorArray> {
        let ArraySpec { name, number, dtype, shape, is_dynamic, clears_after_read, is_uniform } = spec;
        memory::admit(size * ELEMENT_BYTES)?;
        let mut state = State { shape, elements: Vec::new(), shapes: Vec::new(), at_once: None };
        state.resize(size);
        let (state, gradients) = (Mutex::new(state), Mutex::default());
        let label = format!("{name}_{number}");
        Ok(TensorArray {
            name,
            label,
            dtype,
            is_dynamic,
            clears_after_read,
            is_uniform,
            adds_up: false,
            state,
            gradients,
        })
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        lock(&self.state).elements.len()
    }

    /// The number of elements that Pack and Concat join. Among the gradients of an array that was written at once, and then
    /// grew, those are the gradients of the elements that were written at once.
    pub fn joined(&self) -> usize {
        let state = lock(&self.state);
        state.at_once.filter(|_| self.adds_up).unwrap_or(state.elements.len()).min(state.elements.len())
    }

    /// Forgets all elements and gradients.
    pub fn close(&self) {
        lock(&self.state).resize(0);
        lock(&self.gradients).clear();
    }

    fn wrong<T>(&self, why: String) -> Result<T> {
        Err(Failure::invalid(format!("TensorArray {}: {why}", self.label)))
    }

    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        let [own, other] = [self.dtype, dtype].map(|dtype| dtype.proto_name().to_lowercase());
        Err(Failure::invalid(format!("TensorArray dtype is {own} but Op requested dtype {other}.")))
    }

    pub fn write(&self, index: i64, value: Value) -> Result<()> {
        if value.dtype() != self.dtype {
            let [own, other] = [self.dtype, value.dtype()].map(|dtype| dtype.proto_name().to_lowercase());
            return Err(Failure::invalid(format!(
                "TensorArray dtype is {own} but Op is trying to write dtype {other}."
            )));
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
        match &mut state.elements[at] {
            Element::Unwritten => {}
            Element::Written(sum) if self.adds_up => {
                if sum.shape() != value.shape() {
                    let why = format!(
                        "Could not aggregate to TensorArray index {index} because the existing shape is {} but the new \
                         input shape is {}.",
                        sum.shape(),
                        value.shape()
                    );
                    return self.wrong(why);
                }
                let mut whole = sum.clone().into_host()?;
                add(&mut whole, &value.into_host()?)?;
                *sum = whole.into();
                return Ok(());
            }
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
        if let Some(shape) = state.shapes[at].as_ref().filter(|shape| self.adds_up && *shape != value.shape()) {
            return self.wrong(format!(
                "Could not write to TensorArray index {index} because the gradient has shape {} and its element {shape}",
                value.shape()
            ));
        }
        if self.is_uniform {
            state.shape = PartialShape::from(value.shape());
        }
        memory::grow()?;
        state.shapes[at] = Some(value.shape().clone());
        state.elements[at] = Element::Written(value);
        Ok(())
    }

    /// The position of an index; the array grows to contain it if it may.
    fn place(&self, state: &mut State, index: i64) -> Result<usize> {
        let size = state.elements.len();
        match usize::try_from(index) {
            Ok(at) if at < size => Ok(at),
            Ok(at) if self.is_dynamic && at < MAX_TENSOR_ARRAY => {
                memory::admit((at + 1) * ELEMENT_BYTES)?;
                state.resize(at + 1);
                Ok(at)
            }
            Ok(_) if self.is_dynamic => {
                let why = format!("TensorArray {}: index {index} exceeds the limit of {MAX_TENSOR_ARRAY}", self.label);
                Err(Failure::new(Code::ResourceExhausted, why))
            }
            _ => self.wrong(format!("Tried to write to index {index} but array is not resizeable and size is: {size}")),
        }
    }

    pub fn read(&self, index: i64) -> Result<Value> {
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
            Element::Unwritten => match state.shapes[index as usize].clone().or_else(|| state.shape.known()) {
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

    /// The array of the gradients that `source` asks for: as many elements as this array has now, of the same shapes with
    /// the dimensions of `before` in front.
    pub fn gradients_for(&self, source: &str, before: &Shape) -> Result<Arc<TensorArray>> {
        let gradients = &mut *lock(&self.gradients);
        if let Some(known) = gradients.get(source) {
            return Ok(known.clone());
        }
        if gradients.len() >= MAX_GRADIENTS {
            let why = format!("TensorArray {}: more than {MAX_GRADIENTS} arrays of gradients", self.label);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let own = lock(&self.state);
        memory::admit(own.elements.len() * ELEMENT_BYTES)?;
        let dims = own.shape.0.as_ref();
        let shape = dims.map(|dims| before.dims().iter().map(|&size| Some(size)).chain(dims.iter().copied()).collect());
        let longer = |shape: &Shape| before.dims().iter().chain(shape.dims()).copied().collect::<Shape>();
        let shapes = own.shapes.iter().map(|shape| shape.as_ref().map(longer)).collect();
        let mut state = State { shape: PartialShape(shape), elements: Vec::new(), shapes, at_once: own.at_once };
        state.resize(own.elements.len());
        let array = Arc::new(TensorArray {
            name: format!("{}@{source}", self.name),
            label: format!("{}@{source}", self.label),
            dtype: self.dtype,
            is_dynamic: false,
            // Each write that was added up reads the gradient of the sum.
            clears_after_read: !self.adds_up,
            is_uniform: self.is_uniform,
            adds_up: true,
            state: Mutex::new(state),
            gradients: Mutex::default(),
        });
        gradients.insert(source.to_owned(), array.clone());
        Ok(array)
    }

    /// All elements concatenated along their first dimension, and the length of each.
    pub fn concat(&self, stated: &PartialShape) -> Result<(Tensor, Tensor)> {
        let size = self.joined();
        let parts: Vec<Tensor> = (0..size as i64).map(|i| self.read(i)?.into_host()).collect::<Result<_>>()?;
        let Some(first) = parts.first() else {
            return match stated.known() {
                Some(shape) => Ok((stack(self.dtype, &shape, &[])?, Tensor::vector(Vec::<i64>::new()))),
                None => Err(Failure::new(
                    Code::Unimplemented,
                    format!(
                        "TensorArray has size zero, but element_shape_except0 {stated} is not fully defined. Currently only \
                         static shapes are supported when concatenating zero-size TensorArrays."
                    ),
                )),
            };
        };
        let (mut rows, mut lengths) = (Vec::new(), Vec::with_capacity(size));
        for (i, part) in parts.iter().enumerate() {
            let Some((&length, rest)) = part.dims().split_first() else {
                return Err(Failure::invalid(format!(
                    "Concat saw a scalar shape at index {i} but requires at least vectors.  Did you mean to call pack?"
                )));
            };
            if first.dims().get(1..) != Some(rest) {
                return Err(Failure::invalid(format!(
                    "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: {} but index {i} has: {}",
                    first.shape(),
                    part.shape()
                )));
            }
            lengths.push(length as i64);
            for row_of_part in 0..length {
                rows.push(row(part, row_of_part)?);
            }
        }
        let whole = stack(self.dtype, &first.dims()[1..].into(), &rows.iter().collect::<Vec<_>>())?;
        Ok((whole, Tensor::vector(lengths)))
    }

    /// Writes `lengths[i]` rows of `value` to element `i`.
    pub fn split(&self, value: &Tensor, lengths: &Tensor) -> Result<()> {
        let lengths = lengths.to_i64s()?;
        let Some(&rows) = value.dims().first() else {
            let why = format!("Expected value to be at least a vector, but received shape: {}", value.shape());
            return Err(Failure::invalid(why));
        };
        let sum = lengths.iter().try_fold(0i64, |sum, &length| sum.checked_add(length).filter(|_| length >= 0));
        if sum != Some(rows as i64) {
            let sum = sum.map_or("out of range".to_owned(), |sum| sum.to_string());
            return Err(Failure::invalid(format!(
                "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is {sum} and value's shape is: {}",
                value.shape()
            )));
        }
        let size = self.size();
        if size != lengths.len() && !(self.is_dynamic && size < lengths.len()) {
            return Err(Failure::invalid(format!(
                "TensorArray's size is not equal to the size of lengths ({size} vs. {}), and the TensorArray is not \
                 marked as dynamically resizeable",
                lengths.len()
            )));
        }
        let shape = Shape::from(&value.dims()[1..]);
        let mut from = 0;
        for (i, &length) in lengths.iter().enumerate() {
            let to = from + length as usize;
            let part: Vec<Tensor> = (from..to).map(|i| row(value, i)).collect::<Result<_>>()?;
            self.write(i as i64, stack(self.dtype, &shape, &part.iter().collect::<Vec<_>>())?.into())?;
            from = to;
        }
        self.was_written_at_once(lengths.len());
        Ok(())
    }

    /// Records that this many elements, the first ones, were written at once. Gradients keep the number of their array.
    pub fn was_written_at_once(&self, count: usize) {
        if !self.adds_up {
            lock(&self.state).at_once = Some(count);
        }
    }

    /// The elements at these indices, all of one shape.
    pub fn rows(&self, indices: &Tensor) -> Result<Vec<Value>> {
        let rows: Vec<Value> = indices.to_i64s()?.iter().map(|&index| self.read(index)).collect::<Result<_>>()?;
        let Some(first) = rows.first() else { return Ok(rows) };
        if let Some((i, other)) = rows.iter().enumerate().find(|(_, row)| row.shape() != first.shape()) {
            return Err(Failure::invalid(format!(
                "TensorArray has inconsistent shapes.  Index 0 has shape: {} but index {i} has shape: {}",
                first.shape(),
                other.shape()
            )));
        }
        Ok(rows)
    }

    /// One tensor of rows that [`TensorArray::rows`] returned; `stated` is their shape as the op states it.
    pub fn packed(&self, rows: Vec<Value>, stated: &PartialShape) -> Result<Tensor> {
        let rows: Vec<Tensor> = rows.into_iter().map(Value::into_host).collect::<Result<_>>()?;
        if let Some(first) = rows.first() {
            return stack(self.dtype, first.shape(), &rows.iter().collect::<Vec<_>>());
        }
        let own = lock(&self.state).shape.clone();
        match stated.known().or_else(|| own.known()) {
            Some(shape) => stack(self.dtype, &shape, &[]),
            None => Err(Failure::new(
                Code::Unimplemented,
                format!(
                    "TensorArray has size zero, but element shape {stated} is not fully defined. Currently only static shapes \
                     are supported when packing zero-size TensorArrays."
                ),
            )),
        }
    }

    /// Writes the rows of `values` to the elements at these indices. `cut` splits a value in an engine's memory into rows, if
    /// it can.
    pub fn scatter(
        &self,
        indices: &Tensor,
        values: Value,
        cut: impl FnOnce(Value) -> Result<std::result::Result<Vec<Value>, Value>>,
    ) -> Result<()> {
        let indices = indices.to_i64s()?;
        let rows = values.shape().dims().first().copied();
        if rows != Some(indices.len()) {
            let rows = rows.map_or_else(|| "a scalar".to_owned(), |rows| rows.to_string());
            return self
                .wrong(format!("Expected len(indices) == values.shape[0], but saw: {} vs. {rows}", indices.len()));
        }
        let size = self.size();
        if let Some(greatest) = indices.iter().max().filter(|&&index| !self.is_dynamic && index >= size as i64) {
            return self.wrong(format!("Max scatter index must be < array size ({greatest} vs. {size})"));
        }
        match cut(values)? {
            Ok(rows) => indices.iter().zip(rows).try_for_each(|(&index, row)| self.write(index, row)),
            Err(values) => {
                let values = values.into_host()?;
                let rows = (0..indices.len()).map(|i| row(&values, i));
                indices.iter().zip(rows).try_for_each(|(&index, row)| self.write(index, row?.into()))
            }
        }
    }
}
