//! Lists of values, of one dtype each: loops keep values for their gradients in them, and write and read them by element.

use meshtf_engine::Value;
use meshtf_tensor::failure::{Failure, Held, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::super::rows::{self, row, stack};
use super::super::step_memory::Tally;
use super::super::token::{List, Token, depth_over};

/// Most elements of one list.
pub(crate) const MAX_LIST: usize = 1 << 24;

/// The number of elements that an op asks for.
///
/// # Errors
/// InvalidArgument if it exceeds the limit of a list.
pub(crate) fn in_limit(size: i64) -> Result<usize> {
    usize::try_from(size).ok().filter(|&size| size <= MAX_LIST).ok_or_else(|| {
        Failure::invalid(match size < 0 {
            true => format!("The num_elements to reserve must be a non negative number, but got {size}"),
            false => format!("The num_elements to reserve must be {MAX_LIST} at most, but got {size}"),
        })
    })
}

impl List {
    pub fn new(dtype: DType, shape: PartialShape, size: usize) -> Result<List> {
        memory::admit(size * size_of::<Option<Token>>())?;
        Ok(List { dtype, shape, limit: MAX_LIST, items: vec![None; size], depth: depth_over([].into_iter())? })
    }

    /// The memory that it holds, recursively.
    pub fn held(&self) -> Held {
        let mut tally = Tally::default();
        self.items.iter().flatten().for_each(|token| tally.token(token));
        tally.most(&format!("a list of {} elements", self.items.len()))
    }

    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        let name = |dtype: DType| dtype.proto_name().to_lowercase();
        let why = format!("Invalid data types; op elements {} but list elements {}", name(dtype), name(self.dtype));
        Err(Failure::invalid(why))
    }

    /// Refuses an element that does not fit the list.
    pub fn check(&self, item: &Token, what: &str) -> Result<()> {
        let Token::Value(value) = item else { return Ok(()) };
        if self.shape.admits(value.shape()) {
            return Ok(());
        }
        Err(Failure::invalid(format!("{what}: {} list shape: {}", value.shape(), self.shape)))
    }

    pub fn set(&mut self, index: i64, item: Token, may_grow: bool) -> Result<()> {
        let size = self.items.len();
        let at = match usize::try_from(index) {
            Ok(at) if at < size => at,
            Ok(at) if may_grow && at < MAX_LIST => {
                memory::admit((at + 1) * size_of::<Option<Token>>())?;
                self.items.resize(at + 1, None);
                at
            }
            _ => {
                let why = format!("Trying to modify element {index} in a list with {size} elements.");
                return Err(Failure::invalid(why));
            }
        };
        self.check(&item, "Tried to set a tensor with incompatible shape at a list index. Item element shape")?;
        memory::grow().map_err(|failure| failure.held_by(|| self.held()))?;
        self.depth = self.depth.max(depth_over([&item].into_iter())?);
        self.items[at] = Some(item);
        Ok(())
    }

    /// Refuses the rows of a tensor that do not fit the list.
    pub fn check_rows(&self, whole: &Tensor) -> Result<()> {
        let Some((_, rest)) = whole.dims().split_first() else {
            return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
        };
        let rest = Shape::from(rest);
        if self.shape.admits(&rest) {
            return Ok(());
        }
        Err(Failure::invalid(format!("Specified a list with shape {} from a tensor with shape {rest}", self.shape)))
    }

    /// Sets elements to the rows of a tensor, whose shape is not checked.
    pub fn scatter(&mut self, whole: &Tensor, indices: &[i64], may_grow: bool) -> Result<()> {
        let Some(&rows) = whole.dims().first() else {
            return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
        };
        if rows != indices.len() {
            let why = format!("Invalid number of rows in input tensor. Expected: {} Actual: {rows}", indices.len());
            return Err(Failure::invalid(why));
        }
        if indices.iter().any(|&index| index < 0) {
            return Err(Failure::invalid("Indices in TensorListScatter must all be non-negative."));
        }
        let least = indices.iter().max().map_or(0, |&greatest| greatest.saturating_add(1));
        let size = self.items.len();
        if least > size as i64 {
            if !may_grow {
                let index = least - 1;
                let why = format!("TensorListScatter: Trying to scatter at index {index} in list with size {size}");
                return Err(Failure::invalid(why));
            }
            let least = in_limit(least)?;
            memory::admit(least * size_of::<Option<Token>>())?;
            self.items.resize(least, None);
        }
        for (i, &index) in indices.iter().enumerate() {
            memory::grow().map_err(|failure| failure.held_by(|| self.held()))?;
            self.items[index as usize] = Some(row(whole, i)?.into());
        }
        Ok(())
    }

    /// The value of an element that was never set: zeros, of the stated shape, the known one, or that of other elements.
    pub fn unset(&self, stated: &PartialShape) -> Result<Token> {
        if self.dtype == DType::Variant {
            return Err(Failure::invalid("Trying to read an element of a list of variants that was never set."));
        }
        let shape = self.shape_of_elements(stated)?.known().ok_or_else(|| {
            Failure::invalid(format!(
                "Trying to read an uninitialized tensor but element_shape is not fully defined: {stated} and no list \
                 element is set."
            ))
        })?;
        Ok(Tensor::zeros(self.dtype, shape)?.into())
    }

    /// The shape of the elements, from everything known.
    fn shape_of_elements(&self, stated: &PartialShape) -> Result<PartialShape> {
        let mut shape = merged(stated, &self.shape)?;
        if shape.known().is_none() {
            for item in self.items.iter().flatten() {
                if let Token::Value(value) = item {
                    shape = merged(&shape, &value.shape().into())?;
                }
            }
        }
        Ok(shape)
    }

    /// The elements at some indices as the rows of one tensor.
    pub fn gather(&self, places: &[usize], stated: &PartialShape) -> Result<Tensor> {
        let of = match places {
            [] => "Tried to gather 0-elements from a list with non-fully-defined shape",
            _ => "Tried to gather uninitialized tensors from a list with non-fully-defined element_shape",
        };
        self.rows(places, stated, of)
    }

    /// All elements as the rows of one tensor.
    pub fn stack(&self, stated: &PartialShape) -> Result<Tensor> {
        let of = match self.items.is_empty() {
            true => "Tried to stack elements of an empty list with non-fully-defined element_shape",
            false => {
                "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape"
            }
        };
        self.rows(&(0..self.items.len()).collect::<Vec<_>>(), stated, of)
    }

    /// The elements at some indices as the rows of one tensor; `unknown` is the failure if their shape is not known.
    fn rows(&self, places: &[usize], stated: &PartialShape, unknown: &str) -> Result<Tensor> {
        let shape = self.shape_of_elements(stated)?;
        let shape = shape.known().ok_or_else(|| Failure::invalid(format!("{unknown}: {shape}")))?;
        let mut zeros = None;
        let mut rows = Vec::with_capacity(places.len());
        for &place in places {
            rows.push(match &self.items[place] {
                Some(item) => item.clone().host()?,
                None if zeros.is_none() => zeros.insert(Tensor::zeros(self.dtype, shape.clone())?).clone(),
                None => zeros.clone().expect("just asked"),
            });
        }
        stack(self.dtype, &shape, &rows.iter().collect::<Vec<_>>())
    }

    /// All elements concatenated along their first dimension, and the length of each. `leading` are the lengths of the elements
    /// that were never set; those that it does not state have the length that the shapes state, or that all others have.
    pub fn concat(&self, stated: &PartialShape, leading: &[i64]) -> Result<(Tensor, Tensor)> {
        let whole = merged(&self.shape, stated)?;
        let (first, mut rest) = match &whole.0 {
            None => (None, PartialShape::UNKNOWN),
            Some(dims) => match dims.split_first() {
                Some((first, rest)) => (*first, PartialShape(Some(rest.to_vec()))),
                None => {
                    let why = "Concat requires elements to be at least vectors, found scalars instead.";
                    return Err(Failure::invalid(why));
                }
            },
        };
        let mut own = Vec::with_capacity(self.items.len());
        for (i, item) in self.items.iter().enumerate() {
            let Some(Token::Value(value)) = item else { continue };
            let Some((&length, after)) = value.shape().dims().split_first() else {
                let why = format!("Concat saw a scalar shape at index {i} but requires at least vectors.");
                return Err(Failure::invalid(why));
            };
            rest = merged(&rest, &PartialShape(Some(after.iter().map(|&size| Some(size)).collect())))?;
            if let Some(first) = first.filter(|&first| first != length) {
                return Err(Failure::invalid(format!(
                    "First entry of element_shape input does not match the first dim of list element at index: {i} \
                     Expected: {first} Actual: {length}"
                )));
            }
            own.push(length);
        }
        let same = own.first().copied().filter(|same| own.iter().all(|length| length == same));
        let usual = first.or(same);
        let rest = rest.known().ok_or_else(|| {
            let whose = if self.items.is_empty() { "an empty tensor list" } else { "a list of uninitialized tensors" };
            Failure::invalid(format!(
                "All except the first dimension must be fully defined when concating {whose}. element_shape: {rest}"
            ))
        })?;
        let mut parts: Vec<Tensor> = Vec::with_capacity(self.items.len());
        let mut lengths = Vec::with_capacity(self.items.len());
        for (i, item) in self.items.iter().enumerate() {
            let length = leading.get(i).map_or(usual, |&length| usize::try_from(length).ok());
            let part = match (item, length) {
                (Some(item), _) => item.clone().host()?,
                (None, Some(length)) => {
                    let shape: Shape = std::iter::once(length).chain(rest.dims().iter().copied()).collect();
                    Tensor::zeros(self.dtype, shape)?
                }
                (None, None) => {
                    let why = format!(
                        "List contains uninitialized tensor at index {i} but leading_dims has only {} elements.",
                        leading.len()
                    );
                    return Err(Failure::invalid(why));
                }
            };
            lengths.push(part.dims()[0]);
            parts.push(part);
        }
        let whole: Shape = std::iter::once(lengths.iter().sum()).chain(rest.dims().iter().copied()).collect();
        let whole = rows::joined(self.dtype, whole, &parts.iter().collect::<Vec<_>>())?;
        Ok((whole, Tensor::vector(lengths.into_iter().map(|length| length as i64).collect())))
    }

    /// Every element mapped by `f`.
    pub fn map(mut self, f: impl Fn(Token) -> Result<Token>) -> Result<List> {
        for item in &mut self.items {
            *item = item.take().map(&f).transpose()?;
        }
        Ok(self)
    }

    /// The sum with another list, element by element, each pair of which `sum` adds.
    pub fn plus(mut self, other: List, sum: impl Fn(Token, Token) -> Result<Token>) -> Result<List> {
        self.check_dtype(other.dtype)?;
        if self.items.len() != other.items.len() {
            let why = format!(
                "Trying to add two lists of tensors with different lengths. One is {} and the other is {}",
                self.items.len(),
                other.items.len()
            );
            return Err(Failure::invalid(why));
        }
        self.shape = merged(&self.shape, &other.shape).map_err(|_| {
            Failure::invalid(format!(
                "Trying to add two lists of tensors with incompatible element shapes. One is {} and the other is {}",
                self.shape, other.shape
            ))
        })?;
        for (a, b) in self.items.iter_mut().zip(other.items) {
            // An element that was never set counts as zeros.
            *a = match (a.take(), b) {
                (Some(a), Some(b)) => Some(sum(a, b)?),
                (a, b) => a.or(b),
            };
        }
        Ok(self)
    }
}

/// A tensor cut along its first dimension into a list.
pub(crate) fn split(dtype: DType, whole: &Tensor, shape: PartialShape, lengths: &Tensor) -> Result<List> {
    if lengths.rank() != 1 {
        let why = format!("Expected lengths to be a vector, received shape: {}", lengths.shape());
        return Err(Failure::invalid(why));
    }
    let Some(&rows) = whole.dims().first() else {
        return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
    };
    match shape.0.as_ref().map(|dims| dims.split_first()) {
        Some(None) => {
            return Err(Failure::invalid(
                "TensorListSplit requires element_shape to be at least of rank 1, but saw: []",
            ));
        }
        Some(Some((_, rest))) if !PartialShape(Some(rest.to_vec())).admits(&whole.dims()[1..].into()) => {
            let why = format!("tensor shape {} is not compatible with element_shape {shape}", whole.shape());
            return Err(Failure::invalid(why));
        }
        _ => {}
    }
    let lengths = parts(&lengths.to_i64s()?, rows)?;
    let mut list = List::new(dtype, shape, lengths.len())?;
    let mut first = 0;
    for (i, length) in lengths.into_iter().enumerate() {
        let part = rows::between(whole, first, first + length)?;
        // The length of a part is not checked against the shape of the elements.
        list.items[i] = Some(Value::from(part).into());
        first += length;
    }
    Ok(list)
}

/// The lengths of the parts that a tensor with this number of rows is cut into.
fn parts(lengths: &[i64], rows: usize) -> Result<Vec<usize>> {
    let mut start = 0usize;
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let part =
            usize::try_from(length).map_err(|_| Failure::invalid(format!("Invalid value in lengths: {length}")))?;
        let end = start.saturating_add(part);
        if end > rows {
            let why = format!("Attempting to slice [{start}, {end}] from tensor with length {rows}");
            return Err(Failure::invalid(why));
        }
        parts.push(part);
        start = end;
    }
    if start < rows {
        let why = format!("Unused values in tensor. Length of tensor: {rows} Values used: {start}");
        return Err(Failure::invalid(why));
    }
    Ok(parts)
}

/// The shape that satisfies two statements of it.
fn merged(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (&a.0, &b.0) else { return Ok(if a.0.is_none() { b.clone() } else { a.clone() }) };
    if x.len() != y.len() {
        let why = format!("PartialTensorShape: Incompatible ranks during merge: {} vs. {}", x.len(), y.len());
        return Err(Failure::invalid(why));
    }
    let same = x.iter().zip(y).all(|(x, y)| x.is_none() || y.is_none() || x == y);
    if !same {
        return Err(Failure::invalid(format!("PartialTensorShape: Incompatible shapes during merge: {a} vs. {b}")));
    }
    Ok(PartialShape(Some(x.iter().zip(y).map(|(x, y)| x.or(*y)).collect())))
}
