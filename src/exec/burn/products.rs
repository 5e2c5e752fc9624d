//! Sums that compute the products they add up (`exec::program::products`): each product is added where the sum lies.

use super::dense::{floats, made, over};
use super::gemm::{Factor, multiply};
use super::matmul::MOST_ALONE;
use super::memory::Backing;
use super::{BurnEngine, SMALL, at_home, guarded};
use crate::exec::engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use crate::exec::kernel::{self, HostKernel, KernelNode};
use crate::exec::lots;
use crate::failure::Result;
use crate::tensor::{DType, Shape, Tensor};

/// Most multiplications of a product that is added where the sum lies. A larger one has work for all cores by itself, and what is
/// saved is little beside it.
const MOST: usize = 1 << 25;

/// So many multiplications are worth the way to another thread.
const SHARED: usize = 1 << 22;

/// The rows of a lot are a multiple of this, so that they fill the registers of gemm's kernels.
const ROWS: usize = 12;

/// Compiles a sum. `products` has the node of each term that is a product.
pub(super) fn kernel<B: Backing>(
    engine: &BurnEngine<B>,
    sum: &KernelNode,
    products: &[Option<KernelNode>],
) -> Result<Option<EngineKernel>> {
    let mut terms = Terms { products: Vec::new(), values: Vec::new(), broadcasts: sum.op != "AddN" };
    let mut kernels = Vec::with_capacity(products.len());
    let mut place = 0;
    for product in products {
        let Some(node) = product else {
            terms.values.push(place);
            kernels.push(None);
            place += 1;
            continue;
        };
        terms.products.push((place, [node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?]));
        let Some(kernel) = engine.compile(node)? else { return Ok(None) };
        kernels.push(Some(kernel));
        place += 2;
    }
    let (Some(on_engine), Some(on_host)) = (engine.compile(sum)?, kernel::compile(sum)?) else { return Ok(None) };
    let mut apart = Apart { products: kernels, on_engine, on_host };
    let name = engine.name().to_owned();
    let run = move |mut inputs: Values| match guarded(&name, || terms.together(&mut inputs))? {
        Some(sum) => Ok(EngineOutcome::Done(Values::from_iter([at_home(sum)?]))),
        None => apart.run(inputs),
    };
    Ok(Some(EngineKernel { run: Box::new(run), host_up_to: 0 }))
}

/// The kernels of the products and that of the sum, one after the other.
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
        // What is not a factor is handed over, so that the sum may lie there.
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
            EngineOutcome::Done(sum) => Ok(EngineOutcome::Done(sum)),
            EngineOutcome::Declined(terms) => {
                let terms = terms.into_iter().map(Value::into_host).collect::<Result<_>>()?;
                Ok(EngineOutcome::Done((self.on_host)(terms)?.into_iter().map(Value::Host).collect()))
            }
        }
    }
}

/// Where the terms of a sum are among its inputs.
struct Terms {
    /// The first factor of each product, and which factors are transposed.
    products: Vec<(usize, [bool; 2])>,
    values: Vec<usize>,
    /// A value may be a row that is added to all.
    broadcasts: bool,
}

impl Terms {
    /// Computes the sum if all of it lies in this process's memory, fits together, and is of small products: over one of its
    /// values, if nothing else holds that.
    fn together(&self, inputs: &mut Values) -> Result<Option<Value>> {
        let Some(shape) = self.shape(inputs) else { return Ok(None) };
        if let Some(&place) = self.values.iter().find(|&&place| *inputs[place].shape() == shape) {
            let mut sum = std::mem::replace(&mut inputs[place], Value::Host(Tensor::scalar(0f32)));
            let others = |&other: &usize| (other != place).then(|| floats(&inputs[other])).flatten();
            let others: Vec<&[f32]> = self.values.iter().filter_map(others).collect();
            if over(&mut sum, |sum| self.add(inputs, &others, true, sum)) {
                return Ok(Some(sum));
            }
            inputs[place] = sum;
        }
        let values: Vec<&[f32]> = self.values.iter().filter_map(|&place| floats(&inputs[place])).collect();
        let mut sum = vec![0f32; shape.checked_elements(DType::F32)?];
        self.add(inputs, &values, false, &mut sum);
        Ok(Some(if sum.len() <= SMALL { Value::Host(Tensor::from_vec(shape, sum)) } else { made(&shape, sum) }))
    }

    /// The shape of the sum; `None` if it is not computed here.
    fn shape(&self, inputs: &Values) -> Option<Shape> {
        let mut dims: Option<[usize; 2]> = None;
        for product in &self.products {
            let [x, y] = factors(inputs, product)?;
            let ([rows, inner], [same, columns]) = (x.dims, y.dims);
            // What `matmul` has other ways for is left to that.
            let most = if y.steps[1] == 1 { MOST } else { MOST_ALONE };
            let multiplications = rows.checked_mul(inner)?.checked_mul(columns)?;
            if inner != same || *dims.get_or_insert([rows, columns]) != [rows, columns] || multiplications > most {
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

    /// Adds the products and these values, of which each is a row or as large as the sum, to `sum` if it `is_begun`; else
    /// they are all of it.
    fn add(&self, inputs: &Values, values: &[&[f32]], is_begun: bool, sum: &mut [f32]) {
        let products: Vec<[Factor; 2]> = self.products.iter().filter_map(|product| factors(inputs, product)).collect();
        let Some([x, y]) = products.first() else { return };
        let (rows, columns) = (x.dims[0], y.dims[1]);
        let multiplications: usize = products.iter().map(|[x, _]| sum.len() * x.dims[1]).sum();
        let lot = match multiplications {
            ..SHARED => rows,
            _ => rows.div_ceil(2 * lots::threads()).next_multiple_of(ROWS),
        };
        lots::in_lots(sum.chunks_mut(lot * columns).enumerate(), |(i, sum)| {
            let mut is_begun = is_begun;
            for &value in values {
                let value = if value.len() == columns { value } else { &value[i * lot * columns..] };
                for (row, sum) in sum.chunks_mut(columns).enumerate() {
                    let value = if value.len() == columns { value } else { &value[row * columns..][..columns] };
                    match is_begun {
                        true => sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += value),
                        false => sum.copy_from_slice(value),
                    }
                }
                is_begun = true;
            }
            for [x, y] in &products {
                multiply(x.below(i * lot), *y, is_begun, sum);
                is_begun = true;
            }
        });
    }
}

fn factors<'a>(inputs: &'a Values, &(place, transposed): &(usize, [bool; 2])) -> Option<[Factor<'a>; 2]> {
    Some([Factor::of(&inputs[place], transposed[0])?, Factor::of(&inputs[place + 1], transposed[1])?])
}
