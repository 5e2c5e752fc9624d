//! Einsum of two operands as one batched matrix product of views. An equation that sums over an axis of one operand alone,
//! repeats one or broadcasts is left to the host.

use meshtf_kernels::{KernelNode, call};
use meshtf_tensor::Shape;
use meshtf_tensor::failure::Result;

use super::array::{Array, done};
use super::elementwise::arrays;
use super::matmul;
use super::memory::Backing;
use super::{Body, fits};
use crate::{EngineOutcome, Values};

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if node.op != "Einsum" || node.inputs.len() != 2 {
        return Ok(None);
    }
    let Some(contraction) = Contraction::of(node.attrs.str("equation")?) else { return Ok(None) };
    Ok(Some(Box::new(move |site, inputs| {
        let Some(sizes) = contraction.sizes(&inputs) else { return Ok(EngineOutcome::Declined(inputs)) };
        let shape = sizes.product();
        if !fits::<B>(&shape, inputs[0].dtype()) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [x, y] = arrays(site, inputs)?;
        let (x, y) = (contraction.left.matrices(x, &sizes.batch)?, contraction.right.matrices(y, &sizes.batch)?);
        let product = matmul::product_of(site, x, y, shape)?;
        done(product.reshape(sizes.made.as_slice().into())?.permute(&contraction.output))
    })))
}

/// The axes of two operands that are multiplied, and the positions of the product's axes.
struct Contraction {
    left: Operand,
    right: Operand,
    /// For each axis of the output, the axis of the product: those of batches, then of rows, then of columns.
    output: Vec<usize>,
}

/// The mapping of an operand's axes to those of matrices.
struct Operand {
    /// The axes of batches; then those of rows, and of columns, or the other way around.
    order: Vec<usize>,
    batches: usize,
    /// The number of axes before the last group.
    split: usize,
    /// Whether the matrices are transposed after that.
    is_turned: bool,
}

/// The sizes of a contraction's axes.
struct Sizes {
    batch: Vec<usize>,
    rows: usize,
    columns: usize,
    /// The sizes of the product, before its axes are put in order.
    made: Vec<usize>,
}

impl Sizes {
    fn product(&self) -> Shape {
        self.batch.iter().copied().chain([self.rows, self.columns]).collect()
    }
}

impl Contraction {
    /// The contraction of an equation that is a product of matrices; `None` if it is more than that, or no equation.
    fn of(equation: &str) -> Option<Contraction> {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = text.split_once("->")?;
        let (left, right) = inputs.split_once(',')?;
        let is_plain = |labels: &str| {
            let once = |(i, label): (usize, char)| label.is_ascii_alphabetic() && !labels[..i].contains(label);
            labels.char_indices().all(once)
        };
        let is_used = |label: char| [left, right, output].iter().filter(|labels| labels.contains(label)).count() >= 2;
        if ![left, right, output].into_iter().all(|labels| is_plain(labels) && labels.chars().all(is_used)) {
            return None;
        }
        let of_output = |in_left: bool, in_right: bool| -> Vec<char> {
            output
                .chars()
                .filter(|label| left.contains(*label) == in_left && right.contains(*label) == in_right)
                .collect()
        };
        let (batch, rows, columns) = (of_output(true, true), of_output(true, false), of_output(false, true));
        let contracted: Vec<char> = left.chars().filter(|label| !output.contains(*label)).collect();
        let made: Vec<char> = [&batch[..], &rows, &columns].concat();
        Some(Contraction {
            left: Operand::new(left, &batch, &rows, &contracted),
            right: Operand::new(right, &batch, &contracted, &columns),
            output: output.chars().filter_map(|label| made.iter().position(|own| *own == label)).collect(),
        })
    }

    /// The sizes, if the inputs have those that the equation requires.
    fn sizes(&self, inputs: &Values) -> Option<Sizes> {
        let [x, y] = inputs.as_slice() else { return None };
        let (left, right) = (self.left.groups(x.shape().dims())?, self.right.groups(y.shape().dims())?);
        if left[0] != right[0] || left[2] != right[1] {
            return None;
        }
        let [batch, rows, _] = left;
        let [_, _, columns] = right;
        let made = [&batch[..], &rows, &columns].concat();
        Some(Sizes { rows: call::product(&rows), columns: call::product(&columns), batch, made })
    }
}

impl Operand {
    fn new(labels: &str, batch: &[char], rows: &[char], columns: &[char]) -> Operand {
        let place = |label: &char| labels.chars().position(|own| own == *label).unwrap_or_default();
        // In the order of the operand's axes, so that several axes merge into one without a copy.
        let is_turned = match (rows.first(), columns.first()) {
            (Some(row), Some(column)) => place(column) < place(row),
            _ => false,
        };
        let (first, last) = if is_turned { (columns, rows) } else { (rows, columns) };
        let order = batch.iter().chain(first).chain(last).map(place).collect();
        Operand { order, batches: batch.len(), split: batch.len() + first.len(), is_turned }
    }

    /// The sizes of batches, rows and columns; `None` for another rank.
    fn groups(&self, dims: &[usize]) -> Option<[Vec<usize>; 3]> {
        if dims.len() != self.order.len() {
            return None;
        }
        let sizes: Vec<usize> = self.order.iter().map(|&axis| dims[axis]).collect();
        let (batch, first, last) = (&sizes[..self.batches], &sizes[self.batches..self.split], &sizes[self.split..]);
        let (rows, columns) = if self.is_turned { (last, first) } else { (first, last) };
        Some([batch.to_vec(), rows.to_vec(), columns.to_vec()])
    }

    /// The operand as a batch of matrices.
    fn matrices<B: Backing>(&self, array: Array<B>, batch: &[usize]) -> Result<Array<B>> {
        let ordered = array.permute(&self.order);
        let (first, last) = ordered.shape.dims()[self.batches..].split_at(self.split - self.batches);
        let shape: Shape = batch.iter().copied().chain([call::product(first), call::product(last)]).collect();
        let matrices = ordered.reshape(shape)?;
        Ok(matmul::transposed(matrices, self.is_turned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_matrices_are_told_from_other_equations() {
        for equation in [
            "ij,jk->ik",
            "bqhd,bkhd->bhqk",
            "bhqk, bkhd -> bqhd",
            "abcd,cde->abe",
            "abe,cde->abcd",
            "i,j->ij",
            "ij,ij->",
        ] {
            assert!(Contraction::of(equation).is_some(), "{equation}");
        }
        for equation in
            ["ij->ji", "ij,jk->i", "iij,jk->ik", "...ij,jk->...ik", "ij,jk->ikk", "ij,jk", "i1,1k->ik", "ij,jk->ikl"]
        {
            assert!(Contraction::of(equation).is_none(), "{equation}");
        }
    }

    #[test]
    fn axes_stay_as_they_lie() {
        let of = |equation: &str| Contraction::of(equation).map(|c| [c.left.order, c.right.order, c.output]).unwrap();
        assert_eq!(of("abe,cde->abcd"), [vec![0, 1, 2], vec![0, 1, 2], vec![0, 1, 2, 3]]);
        assert_eq!(of("bhqk,bkhd->bqhd"), [vec![0, 1, 2, 3], vec![0, 2, 1, 3], vec![0, 2, 1, 3]]);
    }
}
