//! The features requested of each example (sparse, dense and ragged), and their conversion to tensors.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, PartialShape, Shape, Tensor, with_type};

use super::proto::Kind;

/// A feature with any number of values.
pub(super) struct Sparse {
    pub key: String,
    pub dtype: DType,
}

/// A feature with a fixed number of values, that of its shape. If the first size is unknown: any number of rows of the
/// other sizes.
pub(super) struct Dense {
    pub key: String,
    pub dtype: DType,
    shape: PartialShape,
    /// The shape of a row, if the number of rows is unknown.
    row: Option<Shape>,
    default: Tensor,
}

impl Dense {
    /// # Errors
    /// InvalidArgument if a size other than the first is unknown, or the default does not fit the shape.
    pub fn new(key: String, dtype: DType, shape: PartialShape, default: Tensor) -> Result<Dense> {
        let is_open = matches!(shape.0.as_deref(), Some([None, ..]));
        let row = is_open.then(|| PartialShape(shape.0.as_ref().map(|dims| dims[1..].to_vec())));
        let defined = row.as_ref().unwrap_or(&shape).known();
        let Some(defined) = defined else {
            let why = format!("dense_shapes of feature {key} is {shape}: only its first size may be unknown");
            return Err(Failure::invalid(why));
        };
        if default.dtype() != dtype {
            let why = format!("dense_defaults of feature {key} is {}, not {dtype}", default.dtype());
            return Err(Failure::invalid(why));
        }
        if is_open && default.len() != 1 {
            let why = format!(
                "the dense shape of feature {key} is a variable length shape: {shape}, therefore its default must contain a single \
                 element (the padding element).  But its shape is: {}",
                default.shape()
            );
            return Err(Failure::invalid(why));
        }
        if !is_open && !default.is_empty() && default.shape() != &defined {
            let why = format!(
                "dense_defaults of feature {key}: shape {} is not compatible with dense_shapes: {defined}",
                default.shape()
            );
            return Err(Failure::invalid(why));
        }
        if is_open && defined.elements() == Some(0) {
            return Err(Failure::invalid(format!("dense_shapes of feature {key} has rows without elements: {shape}")));
        }
        Ok(Dense { key, dtype, shape, row: is_open.then_some(defined), default })
    }

    /// The number of values that an example must have; `None` for any number of rows.
    #[inline]
    fn count(&self) -> Option<usize> {
        self.shape.known().and_then(|shape| shape.elements())
    }

    #[inline]
    fn row_size(&self) -> usize {
        self.row.as_ref().and_then(Shape::elements).unwrap_or(1)
    }
}

/// A feature with any number of values, kept as rows of different lengths.
pub(super) struct Ragged {
    pub key: String,
    pub dtype: DType,
    pub splits: DType,
}

/// The position of an error.
pub(super) struct At<'a> {
    /// The example's name, if it has one.
    pub name: Option<String>,
    /// The kind of feature in messages: `Key`, `Context feature`.
    pub what: &'a str,
    pub index: usize,
}

impl At<'_> {
    pub fn fail(&self, key: &str, why: impl std::fmt::Display) -> Failure {
        let name = self.name.as_deref().unwrap_or("<unknown>");
        Failure::invalid(format!("Name: {name}, {}: {key}, Index: {}.  {why}", self.what, self.index))
    }

    /// # Errors
    /// InvalidArgument if the values have another dtype.
    pub fn check(&self, key: &str, kind: &Kind, wanted: DType) -> Result<()> {
        if kind.dtype() == wanted {
            return Ok(());
        }
        let why = format!("Data types don't match. Data type: {} but expected type: {wanted}", kind.dtype());
        Err(self.fail(key, why))
    }

    /// # Errors
    /// InvalidArgument if the number of values is not that of the shape.
    pub fn check_count(&self, key: &str, kind: &Kind, shape: &Shape) -> Result<()> {
        if shape.elements() == Some(kind.len()) {
            return Ok(());
        }
        let (list, got) = (list_of(kind.dtype()), kind.len());
        let why = format!("Number of {list} values != expected.  Values size: {got} but output shape: {shape}");
        Err(self.fail(key, why))
    }
}

/// The name of the list in an example that holds values of a dtype.
#[inline]
fn list_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::String => "bytes",
        other => other.name(),
    }
}

/// The values of one sparse or ragged feature, example by example.
pub(super) struct FeatureValues {
    pub data: Data,
    /// The number of values of each example.
    pub counts: Vec<usize>,
}

impl FeatureValues {
    #[inline]
    pub fn new(dtype: DType) -> FeatureValues {
        FeatureValues { data: Data::zeros(dtype, 0), counts: Vec::new() }
    }

    /// # Errors
    /// ResourceExhausted if all values together exceed the limit of a tensor, or the memory budget.
    pub fn push(&mut self, kind: Option<Kind>) -> Result<()> {
        self.reserve(kind.as_ref().map_or(0, Kind::len))?;
        self.counts.push(kind.as_ref().map_or(0, Kind::len));
        if let Some(kind) = kind {
            kind.append_to(&mut self.data);
        }
        Ok(())
    }

    /// Requests memory for more values, including the copy that growing makes.
    fn reserve(&mut self, more: usize) -> Result<()> {
        memory::grow()?;
        let dtype = self.data.dtype();
        Shape::from([self.data.len().saturating_add(more)]).limited_elements(dtype)?;
        let taken = with_type!(dtype, T => T::vec_mut(&mut self.data).map_or(0, |all| {
            let (length, capacity) = (all.len() + more, all.capacity());
            if length > capacity { length.max(2 * capacity) * size_of::<T>() } else { 0 }
        }));
        memory::admit(taken.unwrap_or(0))
    }

    /// Indices, values and the dense shape; for a single example without the batch dimension.
    pub fn sparse(self, is_single: bool) -> Result<[Tensor; 3]> {
        let total = self.data.len();
        let rank = if is_single { 1 } else { 2 };
        let shape = Shape::from([total, rank]);
        shape.checked_elements(DType::I64)?;
        let most = self.counts.iter().copied().max().unwrap_or(0) as i64;
        let mut indices = Vec::with_capacity(total * rank);
        for (row, &count) in self.counts.iter().enumerate() {
            for column in 0..count as i64 {
                if !is_single {
                    indices.push(row as i64);
                }
                indices.push(column);
            }
        }
        let dense = if is_single { vec![most] } else { vec![self.counts.len() as i64, most] };
        Ok([Tensor::new(shape, Data::I64(indices))?, Tensor::new([total], self.data)?, Tensor::vector(dense)])
    }

    /// The values, and the splits of the rows.
    pub fn ragged(self, splits: DType) -> Result<[Tensor; 2]> {
        let mut ends = vec![0i64];
        let mut end = 0;
        for count in self.counts {
            end += count as i64;
            ends.push(end);
        }
        let values = Tensor::new([self.data.len()], self.data)?;
        Ok([values, super::super::cast(Tensor::vector(ends), splits)?])
    }
}

/// The values of one dense feature, example by example.
pub(super) struct DenseRows<'a> {
    of: &'a Dense,
    values: FeatureValues,
}

impl<'a> DenseRows<'a> {
    /// An empty column for `count` examples.
    ///
    /// # Errors
    /// ResourceExhausted if their values, of a known shape, exceed the limit of a tensor, or the memory budget.
    pub fn new(of: &'a Dense, count: usize) -> Result<DenseRows<'a>> {
        if let Some(one) = of.shape.known() {
            Shape::from([&[count], one.dims()].concat()).checked_elements(of.dtype)?;
            super::super::call::check_copies(&of.default, count.saturating_mul(of.default.len()))?;
        }
        Ok(DenseRows { of, values: FeatureValues::new(of.dtype) })
    }

    /// # Errors
    /// InvalidArgument if the values do not fit, or if there are no values and no default.
    pub fn push(&mut self, kind: Option<Kind>, at: &At) -> Result<()> {
        let Dense { key, dtype, default, .. } = self.of;
        let Some(kind) = kind else {
            if self.of.row.is_some() {
                return self.values.push(None);
            }
            if default.is_empty() && self.of.count() != Some(0) {
                let name = at.name.as_deref().unwrap_or("<unknown>");
                let what = if at.what == "Key" { "Feature" } else { at.what };
                let why = format!(
                    "Name: {name}, {what}: {key} (data type: {}) is required but could not be found.",
                    dtype.proto_name().to_lowercase()
                );
                return Err(Failure::invalid(why));
            }
            self.values.reserve(default.len())?;
            let _ = with_type!(*dtype, T => {
                if let (Some(all), Some(one)) = (T::vec_mut(&mut self.values.data), T::slice(default.data())) {
                    all.extend_from_slice(one);
                }
            });
            self.values.counts.push(default.len());
            return Ok(());
        };
        at.check(key, &kind, *dtype)?;
        match (self.of.count(), self.of.row_size()) {
            (Some(_), _) => at.check_count(key, &kind, &self.of.shape.known().unwrap_or_default())?,
            (None, size) if kind.len() % size != 0 => {
                let (got, shape) = (kind.len(), &self.of.shape);
                let why = format!(
                    "Number of {} values is not a multiple of stride length. Saw {got} values but output shape is: {shape}",
                    list_of(*dtype)
                );
                return Err(at.fail(key, why));
            }
            _ => {}
        }
        self.values.push(Some(kind))
    }

    /// The values of all examples, each padded to the longest; for a single example without the batch dimension.
    pub fn tensor(self, is_single: bool) -> Result<Tensor> {
        let FeatureValues { data, counts } = self.values;
        let batch = if is_single { Vec::new() } else { vec![counts.len()] };
        let Some(row) = &self.of.row else {
            let one = self.of.shape.known().unwrap_or_default();
            return Tensor::new([&batch[..], one.dims()].concat(), data);
        };
        let most = counts.iter().copied().max().unwrap_or(0);
        let shape = Shape::from([&batch[..], &[most / self.of.row_size()], row.dims()].concat());
        padded(data, &counts, most, shape, &self.of.default)
    }
}

/// Rows of different lengths as one tensor, padded with the one value of `filler`, or with zeros.
pub(super) fn padded(data: Data, counts: &[usize], most: usize, shape: Shape, filler: &Tensor) -> Result<Tensor> {
    let total = shape.checked_elements(data.dtype())?;
    super::super::call::check_copies(filler, total)?;
    let filled = with_type!(data.dtype(), T => {
        let filler: T = T::slice(filler.data()).and_then(|one| one.first().cloned()).unwrap_or_default();
        let mut values = T::from_data(data).unwrap_or_default().into_iter();
        let mut all: Vec<T> = Vec::with_capacity(total);
        for &count in counts {
            let end = all.len() + most;
            all.extend(values.by_ref().take(count));
            let missing = end - all.len();
            all.extend(std::iter::repeat_n(&filler, missing).cloned());
        }
        T::into_data(all)
    });
    Tensor::new(shape, filled.ok_or_else(|| Failure::invalid("a handle is not a tensor"))?)
}
