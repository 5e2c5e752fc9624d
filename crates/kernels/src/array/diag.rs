//! Diag, DiagPart, MatrixDiagV3, MatrixDiagPartV3, MatrixSetDiagV3 and MatrixBandPart: diagonals and bands of matrices.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Data, Moved, Shape, Tensor, with_moved};

use super::super::call::{self, kernel as call};
use super::super::{KernelNode, Registry};
use super::view::{View, not_held};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Diag", |_| Ok(Some(call(diag))));
    ops.insert("DiagPart", |_| Ok(Some(call(diag_part))));
    ops.insert("MatrixBandPart", |_| {
        Ok(Some(call(|[x, lower, upper]: [Tensor; 3]| {
            let dtype = x.dtype();
            with_moved!(dtype, T => band_part::<T>(x, &lower, &upper)).unwrap_or_else(|| not_held(dtype))
        })))
    });
    ops.insert("MatrixDiagV3", |node| {
        let align = Align::of(node)?;
        Ok(Some(call(move |[diagonal, k, rows, columns, padding]: [Tensor; 5]| {
            with_moved!(diagonal.dtype(), T => matrix_diag::<T>(&diagonal, &k, &rows, &columns, &padding, align))
                .unwrap_or_else(|| not_held(diagonal.dtype()))
        })))
    });
    ops.insert("MatrixDiagPartV3", |node| {
        let align = Align::of(node)?;
        Ok(Some(call(move |[x, k, padding]: [Tensor; 3]| {
            with_moved!(x.dtype(), T => matrix_diag_part::<T>(&x, &k, &padding, align))
                .unwrap_or_else(|| not_held(x.dtype()))
        })))
    });
    ops.insert("MatrixSetDiagV3", |node| {
        let align = Align::of(node)?;
        Ok(Some(call(move |[x, diagonal, k]: [Tensor; 3]| {
            let dtype = x.dtype();
            with_moved!(dtype, T => matrix_set_diag::<T>(x, &diagonal, &k, align)).unwrap_or_else(|| not_held(dtype))
        })))
    });
}

/// A tensor with `x` on its diagonal (the dimensions of `x`, twice) and zero elsewhere.
fn diag([x]: [Tensor; 1]) -> Result<Tensor> {
    if x.rank() == 0 {
        return Err(Failure::invalid("Input must be at least rank 1, got 0"));
    }
    let shape: Shape = [x.dims(), x.dims()].concat().into();
    let mut data = Data::zeros(x.dtype(), shape.checked_elements(x.dtype())?);
    View { offset: 0, dims: vec![(x.len(), x.len() as isize + 1)] }.write(&mut data, &x)?;
    Tensor::new(shape, data)
}

fn diag_part([x]: [Tensor; 1]) -> Result<Tensor> {
    if x.rank() == 0 || x.rank() % 2 == 1 {
        let why = format!("The rank of the tensor should be even and positive, got shape {}", x.shape());
        return Err(Failure::invalid(why));
    }
    let half = x.rank() / 2;
    let (first, second) = x.dims().split_at(half);
    if let Some(i) = (0..half).find(|&i| first[i] != second[i]) {
        let why = format!("Invalid shape {}: dimensions {i} and {} do not match.", x.shape(), i + half);
        return Err(Failure::invalid(why));
    }
    let n = call::product(first);
    View { offset: 0, dims: vec![(n, n as isize + 1)] }.read(&x, first.into())
}

/// The rows and columns of the matrices in a tensor's last two dimensions.
fn matrix_size(x: &Tensor) -> Result<(usize, usize)> {
    match x.dims() {
        [.., rows, columns] => Ok((*rows, *columns)),
        _ => Err(Failure::invalid(format!("input must be at least 2-dim, received shape: {}", x.shape()))),
    }
}

/// Zeroes the elements outside the band of `lower` subdiagonals and `upper` superdiagonals; a negative number keeps all
/// of them.
fn band_part<T: Moved>(mut x: Tensor, lower: &Tensor, upper: &Tensor) -> Result<Tensor> {
    let (rows, columns) = matrix_size(&x)?;
    let width = |tensor: &Tensor, what: &str, most: usize, of: &str| -> Result<i64> {
        let width = tensor.to_i64()?;
        if width > most as i64 {
            return Err(Failure::invalid(format!(
                "{what} must be negative or less or equal to number of {of} ({most}) got: {width}"
            )));
        }
        Ok(if width < 0 { most as i64 } else { width })
    };
    let lower = width(lower, "num_lower", rows, "rows")?;
    let upper = width(upper, "num_upper", columns, "columns")?;
    if x.is_empty() {
        return Ok(x);
    }
    for (i, row) in x.moved_mut::<T>()?.chunks_exact_mut(columns).enumerate() {
        let i = (i % rows) as i64;
        let clamp = |column: i64| column.clamp(0, columns as i64) as usize;
        let (from, to) = (clamp(i - lower), clamp(i + upper + 1));
        row[..from].fill(T::default());
        row[to.max(from)..].fill(T::default());
    }
    Ok(x)
}

/// The side on which diagonals shorter than the longest are padded.
#[derive(Clone, Copy)]
struct Align {
    left_above: bool,
    left_below: bool,
}

impl Align {
    fn of(node: &KernelNode) -> Result<Align> {
        let align = node.attrs.str("align")?;
        Ok(Align { left_above: align.starts_with("LEFT"), left_below: align.ends_with("LEFT") })
    }
}

/// The diagonals `lower` to `upper` of a matrix, and their layout in a table with a row of `longest` elements for each.
struct Diagonals {
    lower: i64,
    upper: i64,
    rows: usize,
    columns: usize,
    longest: usize,
    align: Align,
}

impl Diagonals {
    /// The range that `k` specifies: one number, or two.
    fn range(k: &Tensor) -> Result<(i64, i64)> {
        if k.rank() > 1 {
            let why = format!("diag_index must be a scalar or vector, received shape: {}", k.shape());
            return Err(Failure::invalid(why));
        }
        let (lower, upper) = match k.to_i64s()?.as_slice() {
            [] => return Err(Failure::invalid("Expected diag_index to have at least 1 element")),
            &[k] => (k, k),
            &[lower, upper] => (lower, upper),
            other => {
                return Err(Failure::invalid(format!(
                    "diag_index must have only one or two elements, received {} elements.",
                    other.len()
                )));
            }
        };
        if lower > upper {
            return Err(Failure::invalid(format!(
                "lower_diag_index must not be larger than upper_diag_index: {lower} > {upper}"
            )));
        }
        Ok((lower, upper))
    }

    #[inline]
    fn count(&self) -> usize {
        (self.upper - self.lower + 1) as usize
    }

    #[inline]
    fn length(rows: usize, columns: usize, d: i64) -> i64 {
        (rows as i64 + d.min(0)).min(columns as i64 - d.max(0)).max(0)
    }

    /// The diagonals `k` of matrices of that size.
    fn of(k: &Tensor, rows: usize, columns: usize, align: Align) -> Result<Diagonals> {
        let (lower, upper) = Diagonals::range(k)?;
        let inside = |d: i64| (-(rows as i64) < d && d < columns as i64) || d == 0;
        for (name, index) in [("lower", lower), ("upper", upper)] {
            if !inside(index) {
                let why = format!(
                    "{name}_diag_index is out of bound: {index}. It must be between {} and {columns}",
                    -(rows as i64)
                );
                return Err(Failure::invalid(why));
            }
        }
        let longest = (rows as i64 + upper.min(0)).min(columns as i64 - lower.max(0)).max(0) as usize;
        Ok(Diagonals { lower, upper, rows, columns, longest, align })
    }

    /// The dimensions of the tables, with one table for each matrix of a batch.
    fn table_dims(&self, batch: &[usize]) -> Vec<usize> {
        let mut dims = batch.to_vec();
        if self.lower != self.upper {
            dims.push(self.count());
        }
        dims.push(self.longest);
        dims
    }

    /// Calls `f` for each element on one of the diagonals, with its index in a matrix and its index in the table.
    fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        for (row, d) in (self.lower..=self.upper).rev().enumerate() {
            let length = Self::length(self.rows, self.columns, d) as usize;
            let Align { left_above, left_below } = self.align;
            let left = (d >= 0 && left_above) || (d <= 0 && left_below);
            let first = if left { 0 } else { self.longest.saturating_sub(length) };
            let (i, j) = ((-d).max(0) as usize, d.max(0) as usize);
            for n in 0..length {
                f((i + n) * self.columns + j + n, row * self.longest + first + n);
            }
        }
    }
}

/// Refuses a diagonal without dimensions.
fn check_is_diagonal(diagonal: &Tensor) -> Result<()> {
    if diagonal.rank() > 0 {
        return Ok(());
    }
    Err(Failure::invalid("diagonal must be at least 1-dim, received shape: []"))
}

fn matrix_diag_part<T: Moved>(x: &Tensor, k: &Tensor, padding: &Tensor, align: Align) -> Result<Tensor> {
    let (rows, columns) = matrix_size(x)?;
    let diagonals = Diagonals::of(k, rows, columns, align)?;
    let batch = &x.dims()[..x.rank() - 2];
    let shape = Shape::from(diagonals.table_dims(batch));
    if padding.rank() > 0 {
        return Err(Failure::invalid("Padding must be scalar."));
    }
    let mut out = vec![padding.moved_item::<T>()?; shape.checked_elements(x.dtype())?];
    let (elements, table) = (x.moved::<T>()?, diagonals.count() * diagonals.longest);
    let batches = if table == 0 { 0 } else { call::product(batch) };
    for batch in paced(0..batches, table) {
        diagonals.for_each(|from, to| out[batch * table + to] = elements[batch * rows * columns + from].clone());
    }
    Ok(Tensor::from_moved(x.dtype(), shape, out))
}

/// `x` with some of its diagonals replaced.
fn matrix_set_diag<T: Moved>(mut x: Tensor, diagonal: &Tensor, k: &Tensor, align: Align) -> Result<Tensor> {
    let (rows, columns) = matrix_size(&x)?;
    check_is_diagonal(diagonal)?;
    let diagonals = Diagonals::of(k, rows, columns, align)?;
    let batch = x.dims()[..x.rank() - 2].to_vec();
    let wanted = diagonals.table_dims(&batch);
    if diagonal.dims() != wanted {
        let count = diagonal.dims().iter().rev().nth(1);
        if diagonals.lower != diagonals.upper && count != Some(&diagonals.count()) {
            return Err(Failure::invalid(
                "The number of diagonals provided in `diag` is not consistent with `lower_diag_index` and \
                 `upper_diag_index`",
            ));
        }
        return Err(Failure::invalid(format!(
            "Either first dimensions of diagonal don't match input.shape[:-2], or diagonal.shape[:-1] is not equal to the \
             longests diagonal in range [lower_diag_index:upper_diag_index].\nInput shape: {}\nDiagonal shape: {}\n\
             Expected diagonal shape: {}",
            x.shape(),
            diagonal.shape(),
            Shape::from(wanted)
        )));
    }
    let (from, table) = (diagonal.moved::<T>()?, diagonals.count() * diagonals.longest);
    x = call::owned(x)?;
    let to = x.moved_mut::<T>()?;
    let batches = if table == 0 { 0 } else { call::product(&batch) };
    for batch in paced(0..batches, table) {
        diagonals.for_each(|at, own| to[batch * rows * columns + at] = from[batch * table + own].clone());
    }
    Ok(x)
}

fn matrix_diag<T: Moved>(
    diagonal: &Tensor,
    k: &Tensor,
    rows: &Tensor,
    columns: &Tensor,
    padding: &Tensor,
    align: Align,
) -> Result<Tensor> {
    check_is_diagonal(diagonal)?;
    let (lower, upper) = Diagonals::range(k)?;
    for (name, one) in [("num_rows", rows), ("num_cols", columns), ("padding_value", padding)] {
        if one.rank() > 0 {
            return Err(Failure::invalid(format!("{name} must be a scalar")));
        }
    }
    let count = usize::try_from(upper - lower + 1).unwrap_or(usize::MAX);
    let (batch_dims, longest) = match diagonal.dims() {
        [batch @ .., longest] if lower == upper => (batch, *longest),
        [batch @ .., diagonals, longest] if *diagonals == count => (batch, *longest),
        _ => {
            return Err(Failure::invalid(
                "The number of diagonals provided in the input does not match the lower_diag_index and upper_diag_index \
                 range.",
            ));
        }
    };
    let least_rows = longest as i64 - upper.min(0);
    let least_columns = longest as i64 + lower.max(0);
    let (rows, columns) = match (rows.to_i64()?, columns.to_i64()?) {
        (-1, -1) => (least_rows.max(least_columns), least_rows.max(least_columns)),
        (-1, columns) => (least_rows, columns),
        (rows, -1) => (rows, least_columns),
        stated => stated,
    };
    if rows < least_rows {
        return Err(Failure::invalid("The number of rows is too small."));
    }
    if columns < least_columns {
        return Err(Failure::invalid("The number of columns is too small."));
    }
    if rows != least_rows && columns != least_columns {
        return Err(Failure::invalid(
            "The number of rows or columns is not consistent with the specified d_lower, d_upper, and diagonal.",
        ));
    }
    let (rows, columns) = (rows as usize, columns as usize);
    let shape: Shape = batch_dims.iter().copied().chain([rows, columns]).collect();
    let mut out = vec![padding.moved_item::<T>()?; shape.checked_elements(diagonal.dtype())?];
    let diagonals = Diagonals { lower, upper, rows, columns, longest, align };
    let elements = diagonal.moved::<T>()?;
    for batch in 0..call::product(batch_dims) {
        diagonals.for_each(|to, from| {
            out[batch * rows * columns + to] = elements[batch * count * longest + from].clone();
        });
    }
    Ok(Tensor::from_moved(diagonal.dtype(), shape, out))
}
