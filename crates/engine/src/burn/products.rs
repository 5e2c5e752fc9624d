//! Sums and slices that compute the products among their inputs (`meshtf_exec::program::products`): each product is added to
//! the sum in place, and only the sliced part of a product is computed.

use meshtf_kernels::{self as kernel, HostKernel, KernelNode};
use meshtf_loops::chunks;
use meshtf_loops::vector::{self, MatrixView};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::dense::{floats, made, over};
use super::gemm::{SHARED, is_better_in_order, matrix, multiply};
use super::layout::sliced;
use super::matmul::MOST_ALONE;
use super::memory::Backing;
use super::{BurnEngine, SMALL, at_home, guarded};
use crate::{Engine, EngineKernel, EngineOutcome, Value, Values};

/// Most multiplications of a product that is added to the sum in place. A larger one has work for all cores by itself, and
/// the saving is small compared with it.
const MOST: usize = 1 << 25;

/// Fewest columns of a product that is computed row by row.
const LEAST_COLUMNS: usize = 16;

/// The rows of a chunk are a multiple of this, so that they fill the registers of gemm's kernels.
const ROWS: usize = 12;

/// Compiles a sum or a slice. `products` has the node of each input that is a product.
pub(super) fn kernel<B: Backing>(
    engine: &BurnEngine<B>,
    node: &KernelNode,
    products: &[Option<KernelNode>],
) -> Result<Option<EngineKernel>> {
    let mut terms = Terms { products: Vec::new(), values: Vec::new(), broadcasts: node.op != "AddN" };
    let mut kernels = Vec::with_capacity(products.len());
    let (mut place, mut forms) = (0, 0);
    for product in products {
        let Some(node) = product else {
            terms.values.push(place);
            kernels.push(None);
            place += 1;
            continue;
        };
        terms.products.push((place, [node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?]));
        let Some(kernel) = engine.compile(node)? else { return Ok(None) };
        forms |= kernel.forms.checked_shl(place as u32).unwrap_or(0);
        kernels.push(Some(kernel));
        place += 2;
    }
    let (Some(on_engine), Some(on_host)) = (engine.compile(node)?, kernel::compile(node)?) else { return Ok(None) };
    let mut apart = Apart { products: kernels, on_engine, on_host };
    let name = engine.name().to_owned();
    let is_slice = node.op == "Slice";
    // A constant factor is kept in the order in which products read it.
    let is_apart = !is_slice && products.iter().flatten().any(|product| product.is_constant(1));
    let run = move |mut inputs: Values| {
        let together = match is_apart {
            true => None,
            false => guarded(&name, || if is_slice { terms.part(&inputs) } else { terms.together(&mut inputs) })?,
        };
        match together {
            Some(answer) => Ok(EngineOutcome::Done(Values::from_iter([at_home(answer)?]))),
            None => apart.run(inputs),
        }
    };
    let forms = if is_apart { forms } else { 0 };
    Ok(Some(EngineKernel { run: Box::new(run), host_up_to: 0, forms }))
}

/// A product that this module computes faster than the backend: of a column and a row, or a small one whose transposed factor
/// is put in order; `None` for other products.
pub(super) fn faster_here([x, y]: [&Value; 2], transposed: [bool; 2]) -> Result<Option<Value>> {
    let (Some(x), Some(y)) = (matrix(x, transposed[0]), matrix(y, transposed[1])) else { return Ok(None) };
    let has_gaps = x.steps[0] != 1 || y.steps[1] != 1;
    match (x.dims, y.dims) {
        ([rows, 1], [1, columns]) if rows > 1 && columns >= LEAST_COLUMNS && !has_gaps => outer(&x, &y).map(Some),
        _ if is_better_in_order(x.dims[0], &y) => alone([x, y]),
        _ => Ok(None),
    }
}

/// The product of a column and a row without gaps: each element takes one multiplication, for which packing is of no use.
fn outer(x: &MatrixView, y: &MatrixView) -> Result<Value> {
    let (rows, columns) = (x.dims[0], y.dims[1]);
    let shape = Shape::from([rows, columns]);
    shape.checked_elements(DType::F32)?;
    Ok(answer(shape, vector::outer(&x.elements[..rows], &y.elements[..columns])))
}

/// A small product.
fn alone([x, y]: [MatrixView; 2]) -> Result<Option<Value>> {
    if x.dims[1] != y.dims[0] || !is_small(&x, &y) {
        return Ok(None);
    }
    let shape = Shape::from([x.dims[0], y.dims[1]]);
    let mut product = vec![0f32; shape.checked_elements(DType::F32)?];
    add(&[[x, y]], &[], false, &mut product);
    Ok(Some(answer(shape, product)))
}

fn answer(shape: Shape, elements: Vec<f32>) -> Value {
    if elements.len() <= SMALL { Value::Host(Tensor::from_vec(shape, elements)) } else { made(&shape, elements) }
}

/// Whether this module computes a product. Those for which `matmul` has other methods are left to that.
fn is_small(x: &MatrixView, y: &MatrixView) -> bool {
    let most = if y.steps[1] == 1 || is_better_in_order(x.dims[0], y) { MOST } else { MOST_ALONE };
    let multiplications = x.dims[0].checked_mul(x.dims[1]).and_then(|of_column| of_column.checked_mul(y.dims[1]));
    multiplications.is_some_and(|multiplications| multiplications <= most)
}

/// Adds products and values, of which each is a row or as large as the sum, to `sum` if it `is_begun`; else overwrites `sum`
/// with their total.
fn add(products: &[[MatrixView; 2]], values: &[&[f32]], is_begun: bool, sum: &mut [f32]) {
    let Some([x, y]) = products.first() else { return };
    let (rows, columns) = (x.dims[0], y.dims[1]);
    let multiplications: usize = products.iter().map(|[x, _]| sum.len() * x.dims[1]).sum();
    let chunk = match multiplications {
        ..SHARED => rows,
        _ => rows.div_ceil(2 * chunks::threads()).next_multiple_of(ROWS),
    };
    chunks::in_chunks(sum.chunks_mut(chunk * columns).enumerate(), |(i, sum)| {
        let mut is_begun = is_begun;
        for &value in values {
            let value = if value.len() == columns { value } else { &value[i * chunk * columns..] };
            for (row, sum) in sum.chunks_mut(columns).enumerate() {
                let value = if value.len() == columns { value } else { &value[row * columns..][..columns] };
                match is_begun {
                    true => sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += value),
                    false => sum.copy_from_slice(value),
                }
            }
            is_begun = true;
        }
        for [x, y] in products {
            // Decided by the whole product: no bit of the result depends on the number of threads that share it.
            let in_order = is_better_in_order(rows, y);
            let x = x.part([i * chunk, 0], [sum.len() / columns, x.dims[1]]);
            multiply(x, *y, in_order, is_begun, sum);
            is_begun = true;
        }
    });
}

/// The kernels of the products and that of the node that consumes them, run one after the other.
struct Apart {
    products: Vec<Option<EngineKernel>>,
    on_engine: EngineKernel,
    on_host: HostKernel,
}

impl Apart {
    fn run(&mut self, inputs: Values) -> Result<EngineOutcome> {
        let mut computed = Values::new();
        let mut rest = inputs.as_slice();
        for product in &mut self.products {
            let (own, others) = rest.split_at(if product.is_some() { 2 } else { 1 });
            rest = others;
            let Some(multiply) = product else { continue };
            match (multiply.run)(own.iter().cloned().collect())? {
                EngineOutcome::Done(product) => computed.extend(product),
                EngineOutcome::Declined(_) => return Ok(EngineOutcome::Declined(inputs)),
            }
        }
        // The inputs that are not factors are moved, so that the sum may overwrite one.
        let (mut inputs, mut computed) = (inputs.into_iter(), computed.into_iter());
        let term = |product: &Option<EngineKernel>| match product {
            None => inputs.next(),
            Some(_) => {
                inputs.nth(1);
                computed.next()
            }
        };
        let terms = self.products.iter().filter_map(term).collect();
        match (self.on_engine.run)(terms)? {
            EngineOutcome::Done(answer) => Ok(EngineOutcome::Done(answer)),
            EngineOutcome::Declined(terms) => {
                let terms = terms.into_iter().map(Value::into_host).collect::<Result<_>>()?;
                Ok(EngineOutcome::Done((self.on_host)(terms)?.into_iter().map(Value::Host).collect()))
            }
        }
    }
}

/// The positions of the products and values among the inputs.
struct Terms {
    /// The first factor of each product, and which factors are transposed.
    products: Vec<(usize, [bool; 2])>,
    values: Vec<usize>,
    /// Whether a value may be a row that is added to all.
    broadcasts: bool,
}

impl Terms {
    /// Computes the sum if all of it is in this process's memory, fits together, and consists of small products: in place of
    /// one of its values, if that is not shared.
    fn together(&self, inputs: &mut Values) -> Result<Option<Value>> {
        let Some(shape) = self.shape(inputs) else { return Ok(None) };
        if let Some(&place) = self.values.iter().find(|&&place| *inputs[place].shape() == shape) {
            let mut sum = std::mem::replace(&mut inputs[place], Value::Host(Tensor::scalar(0f32)));
            let others = |&other: &usize| (other != place).then(|| floats(&inputs[other])).flatten();
            let others: Vec<&[f32]> = self.values.iter().filter_map(others).collect();
            let products = self.factors(inputs);
            if over(&mut sum, |sum| add(&products, &others, true, sum)) {
                return Ok(Some(sum));
            }
            inputs[place] = sum;
        }
        let values: Vec<&[f32]> = self.values.iter().filter_map(|&place| floats(&inputs[place])).collect();
        let mut sum = vec![0f32; shape.checked_elements(DType::F32)?];
        add(&self.factors(inputs), &values, false, &mut sum);
        Ok(Some(answer(shape, sum)))
    }

    /// Computes the sliced part of a small product in this process's memory; the other inputs are the begin of the slice, and
    /// its size.
    fn part(&self, inputs: &Values) -> Result<Option<Value>> {
        let (Some([x, y]), [begin, size]) = (self.factors(inputs).first().copied(), self.values.as_slice()) else {
            return Ok(None);
        };
        let whole = Shape::from([x.dims[0], y.dims[1]]);
        let places = |&place: &usize| match &inputs[place] {
            Value::Host(tensor) if tensor.rank() == 1 => tensor.to_i64s().ok(),
            _ => None,
        };
        let (Some(begin), Some(size)) = (places(begin), places(size)) else { return Ok(None) };
        let parts = sliced(&whole, &begin, &size);
        let Some([rows, columns]) = parts.as_deref() else { return Ok(None) };
        let x = x.part([rows.start, 0], [rows.count, x.dims[1]]);
        let y = y.part([0, columns.start], [y.dims[0], columns.count]);
        alone([x, y])
    }

    /// The factors of the products that are in this process's memory.
    fn factors<'a>(&self, inputs: &'a Values) -> Vec<[MatrixView<'a>; 2]> {
        self.products.iter().filter_map(|product| factors(inputs, product)).collect()
    }

    /// The shape of the sum; `None` if this module does not compute it.
    fn shape(&self, inputs: &Values) -> Option<Shape> {
        let mut dims: Option<[usize; 2]> = None;
        for product in &self.products {
            let [x, y] = factors(inputs, product)?;
            let own = [x.dims[0], y.dims[1]];
            if x.dims[1] != y.dims[0] || *dims.get_or_insert(own) != own || !is_small(&x, &y) {
                return None;
            }
        }
        let dims = dims?;
        let fits = |&place: &usize| {
            let value = &inputs[place];
            let is_row = || self.broadcasts && matches!(*value.shape().dims(), [n] | [1, n] if n == dims[1]);
            floats(value).is_some() && (*value.shape().dims() == dims || is_row())
        };
        self.values.iter().all(fits).then(|| dims.into())
    }
}

fn factors<'a>(inputs: &'a Values, &(place, transposed): &(usize, [bool; 2])) -> Option<[MatrixView<'a>; 2]> {
    Some([matrix(&inputs[place], transposed[0])?, matrix(&inputs[place + 1], transposed[1])?])
}
