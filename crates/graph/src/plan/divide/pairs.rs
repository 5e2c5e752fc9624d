//! Matrix products by columns, functions of single elements, and a product by rows, as the layers of a perceptron are: each part
//! is computed from end to end by itself, and only the sums of the last products cross.

use std::collections::{HashMap, HashSet};

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use super::super::group::colocated_with;
use super::{Divider, Kind, part_of};
use crate::op::Role;
use crate::{NodeDef, NodeId, Output};

/// Ops of which each element of the result depends on one element of each input.
#[rustfmt::skip]
const OF_ELEMENTS: [&str; 41] = [
    "Abs", "Add", "AddV2", "BiasAdd", "Cast", "Ceil", "Cos", "Div", "DivNoNan", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor",
    "Identity", "LeakyRelu", "Log", "Log1p", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6",
    "Rsqrt", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan", "Tanh",
    "Xlogy",
];
/// Most nodes between the products.
const MAX_BETWEEN: usize = 64;
/// The last product may have this many times the columns of the first ones: its sums cross, and theirs do not.
const WIDER: usize = 2;

/// The nodes that are computed part by part before a product by rows.
#[derive(Default)]
struct Before {
    /// Each after its inputs.
    order: Vec<NodeId>,
    /// The constants of the products by columns among them, with the axis of the columns.
    matrices: HashMap<NodeId, (NodeId, usize)>,
    /// The nodes that pass these constants on, the constants too.
    passing: HashSet<NodeId>,
}

/// An input of a node between the products that each part has its own of, or all have alike.
enum Side {
    /// A value of the nodes before.
    Computed,
    /// A constant, whose last axis is divided.
    Divided(Tensor),
    /// A constant of one element.
    Shared,
}

impl Divider<'_> {
    /// Divides the product that takes a constant by rows, and what comes before it by columns; `false` if that cannot be.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for the parts.
    pub(super) fn divide_pair(&mut self, constant: NodeId, count: usize, named: &HashSet<NodeId>) -> Result<bool> {
        let Some((passing, uses)) = self.uses(constant, named) else { return Ok(false) };
        let [of] = uses[..] else { return Ok(false) };
        let (Kind::Product { columns }, Ok(value)) = (of.kind, self.graph.node(constant).attrs.tensor("value")) else {
            return Ok(false);
        };
        let (rows, last) = (1 - columns, self.graph.node(of.node));
        let is_turned = ["transpose_a", "adj_x"].iter().any(|&name| last.attrs.bool(name).unwrap_or(false));
        let is_wide = value.rank() != 2 || value.dims()[columns] > WIDER * value.dims()[rows];
        if is_turned || is_wide || value.dims()[rows] < count {
            return Ok(false);
        }
        let width = value.dims()[rows];
        let Some(before) = self.before(of.node, last.inputs[0], width, named) else { return Ok(false) };
        let name = self.graph.node(constant).name.clone();
        let mut sums = Vec::with_capacity(count);
        let mut begin = 0;
        for part in 0..count {
            let size = width / count + usize::from(part < width % count);
            let left = self.computed(&before, last.inputs[0], (part, begin, size), width)?;
            let right = part_of(value, rows, begin, size)?;
            let right = self.constant(&format!("{name}/part{part}"), right);
            sums.push(self.same(last, &right, &[&left, &right]));
            begin += size;
        }
        self.replace(of.node, "AddN", sums);
        self.gone.extend(passing.into_iter().chain(before.passing).chain(before.order));
        Ok(true)
    }

    /// The nodes before a product whose left factor this is, down to products by columns; `None` if others take one of their
    /// values, or if they cannot be divided.
    fn before(&self, last: NodeId, left: Output, width: usize, named: &HashSet<NodeId>) -> Option<Before> {
        let mut before = Before::default();
        // A node is looked at once for its inputs, and once again when these are done.
        let (mut open, mut seen) = (vec![(left, false)], HashSet::new());
        while let Some((output, is_done)) = open.pop() {
            let (id, node) = (output.node, self.graph.node(output.node));
            if is_done {
                before.order.push(id);
                continue;
            }
            if !seen.insert(id) {
                continue;
            }
            let is_free = node.device.is_empty() && node.control.is_empty() && !named.contains(&id);
            let is_alone = colocated_with(node).is_empty() && !self.colocated.contains_key(&id);
            if !is_free || !is_alone || output.port > 0 || node.outputs.len() != 1 || seen.len() > MAX_BETWEEN {
                return None;
            }
            if node.attrs.str("data_format").is_ok_and(|format| format == "NCHW") {
                // A bias of the second axis.
                return None;
            }
            open.push((output, true));
            if OF_ELEMENTS.contains(&node.op.name) {
                for &input in &node.inputs {
                    if let Side::Computed = self.side(input, width)? {
                        open.push((input, false));
                    }
                }
                continue;
            }
            let (constant, _) = self.constant_of(*node.inputs.get(1)?)?;
            let (passing, uses) = self.uses(constant, named)?;
            let ([of], Ok(value)) = (&uses[..], self.graph.node(constant).attrs.tensor("value")) else { return None };
            let Kind::Product { columns } = of.kind else { return None };
            if of.node != id || value.rank() != 2 || value.dims()[columns] != width {
                return None;
            }
            before.matrices.insert(id, (constant, columns));
            before.passing.extend(passing);
        }
        let is_own = |consumer: &NodeId| seen.contains(consumer) || *consumer == last;
        let all_own = seen.iter().all(|id| self.consumers[id.index()].iter().all(is_own));
        let takes_once = self.graph.node(last).inputs.iter().filter(|input| seen.contains(&input.node)).count() == 1;
        (all_own && takes_once && !before.matrices.is_empty()).then_some(before)
    }

    /// An input of a function of elements; `None` if it is a constant of another shape.
    fn side(&self, input: Output, width: usize) -> Option<Side> {
        let Some((_, value)) = self.constant_of(input) else { return Some(Side::Computed) };
        let (last, outer) = value.dims().split_last().map_or((1, &[][..]), |(&last, outer)| (last, outer));
        match (last, outer.iter().all(|&size| size == 1)) {
            (1, true) => Some(Side::Shared),
            (last, true) if last == width && value.bytes().is_some() => Some(Side::Divided(value.clone())),
            _ => None,
        }
    }

    /// The constant that an input has, maybe through nodes that only pass it on.
    fn constant_of(&self, input: Output) -> Option<(NodeId, &Tensor)> {
        let mut id = input.node;
        for _ in 0..MAX_BETWEEN {
            let node = self.graph.node(id);
            match node.op.role {
                Role::Const => return node.attrs.tensor("value").ok().map(|value| (id, value)),
                Role::Forward if node.inputs.len() == 1 => id = node.inputs[0].node,
                _ => return None,
            }
        }
        None
    }

    /// The nodes before a product for one part of the columns; the tensor that stands for `left`.
    fn computed(
        &mut self,
        before: &Before,
        left: Output,
        (part, begin, size): (usize, usize, usize),
        width: usize,
    ) -> Result<String> {
        let mut names: HashMap<NodeId, String> = HashMap::new();
        for &id in &before.order {
            let node = self.graph.node(id);
            let name = format!("{}/part{part}", node.name);
            let mut inputs = Vec::with_capacity(node.inputs.len());
            if let Some(&(constant, columns)) = before.matrices.get(&id) {
                let constant = self.graph.node(constant);
                let value = part_of(constant.attrs.tensor("value")?, columns, begin, size)?;
                inputs.push(self.graph.tensor_name(node.inputs[0]));
                inputs.push(self.constant(&format!("{}/part{part}", constant.name), value));
            } else {
                for (place, &input) in node.inputs.iter().enumerate() {
                    inputs.push(match self.side(input, width) {
                        Some(Side::Divided(value)) => {
                            let own = part_of(&value, value.rank() - 1, begin, size)?;
                            self.constant(&format!("{name}/input{place}"), own)
                        }
                        Some(Side::Shared) => self.graph.tensor_name(input),
                        Some(Side::Computed) | None => names[&input.node].clone(),
                    });
                }
            }
            let own = self.names.unique(&name);
            self.added.push(NodeDef::on("", own.clone(), node.op.name, inputs, node.attrs.clone()));
            names.insert(id, own);
        }
        Ok(names[&left.node].clone())
    }
}
