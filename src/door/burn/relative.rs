//! Operations that a client sends once and then runs by number: those of burn's feature `fusion`.
//!
//! In them, tensors have their own numbers, and shapes, scalars and ranges are indices into lists that come with each run.

use std::collections::HashMap;
use std::sync::Arc;

use burn_ir::{GraphBindings, GraphId, IrVisitorMut, OperationIr, ScalarIr, TensorId, TensorIr};
use burn_std::Slice;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::program::MAX_QUEUED;

/// Maximum number of a session's graphs.
const MAX_GRAPHS: usize = 4096;
/// Maximum number of operations of all of them.
const MAX_OPERATIONS: usize = 1 << 20;
/// Distinguishes the tensors that only such a graph knows: a client numbers its own from 0.
const INNER: u64 = 1 << 63;

/// The graphs of a session.
#[derive(Default)]
pub(super) struct Graphs {
    known: HashMap<GraphId, Arc<[OperationIr]>>,
    operations: usize,
    /// How many inner tensors there were.
    inner: u64,
}

impl Graphs {
    /// Remembers a graph.
    ///
    /// # Errors
    /// ResourceExhausted if it is too large, or there are too many.
    pub fn add(&mut self, id: GraphId, operations: Vec<OperationIr>) -> Result<()> {
        let all = self.operations + operations.len();
        if operations.len() > MAX_QUEUED || all > MAX_OPERATIONS || self.known.len() >= MAX_GRAPHS {
            let why = format!(
                "a session may have {MAX_GRAPHS} fused graphs of {MAX_QUEUED} operations, and {MAX_OPERATIONS} of them together"
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        self.operations = all;
        self.known.insert(id, operations.into());
        Ok(())
    }

    /// The operations of a graph with the bindings of one run.
    ///
    /// # Errors
    /// NotFound if there is no such graph.
    pub fn bound(&mut self, id: GraphId, bindings: &GraphBindings) -> Result<Vec<OperationIr>> {
        let absent = || Failure::new(Code::NotFound, format!("there is no fused graph {}", id.0));
        let graph = self.known.get(&id).ok_or_else(absent)?.clone();
        let mut ids: HashMap<TensorId, TensorId> = bindings.tensors.iter().copied().collect();
        let mut bind = Bind { ids: &mut ids, inner: &mut self.inner, bindings };
        let bound = |operation: &OperationIr| {
            let mut operation = operation.clone();
            operation.visit_mut(&mut bind);
            operation
        };
        Ok(graph.iter().map(bound).collect())
    }
}

struct Bind<'a> {
    ids: &'a mut HashMap<TensorId, TensorId>,
    inner: &'a mut u64,
    bindings: &'a GraphBindings,
}

impl IrVisitorMut for Bind<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        tensor.id = *self.ids.entry(tensor.id).or_insert_with(|| {
            *self.inner += 1;
            TensorId::new(INNER | *self.inner)
        });
        for dim in tensor.shape.iter_mut() {
            *dim = self.bindings.shapes.get(*dim).copied().unwrap_or(*dim);
        }
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        if let ScalarIr::UInt(place) = *scalar
            && let Some(bound) = self.bindings.scalars.get(place as usize)
        {
            *scalar = *bound;
        }
    }

    fn visit_range_mut(&mut self, range: &mut Slice) {
        if let Some(bound) = self.bindings.ranges.get(range.start as usize) {
            *range = *bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::{NumericOperationIr, ScalarOpIr, TensorStatus};
    use burn_std::{DType, Shape};

    use super::*;

    #[test]
    fn what_a_run_binds_takes_the_places() {
        let tensor = |id, dim| TensorIr {
            id: TensorId::new(id),
            shape: Shape::new([dim]),
            status: TensorStatus::ReadOnly,
            dtype: DType::F32,
        };
        let scaled = |from, scalar, to| {
            let operation = ScalarOpIr { lhs: tensor(from, 0), rhs: ScalarIr::UInt(scalar), out: tensor(to, 0) };
            OperationIr::NumericFloat(DType::F32, NumericOperationIr::MulScalar(operation))
        };
        let mut graphs = Graphs::default();
        graphs.add(GraphId(3), vec![scaled(0, 0, 1), scaled(1, 1, 2)]).unwrap();
        let bindings = GraphBindings {
            tensors: vec![(TensorId::new(0), TensorId::new(10)), (TensorId::new(2), TensorId::new(12))],
            shapes: vec![5],
            scalars: vec![ScalarIr::Float(0.5), ScalarIr::Float(2.0)],
            ranges: Vec::new(),
        };
        let bound = graphs.bound(GraphId(3), &bindings).unwrap();
        let of = |operation: &OperationIr| match operation {
            OperationIr::NumericFloat(_, NumericOperationIr::MulScalar(op)) => {
                (op.lhs.id.value(), op.lhs.shape[0], op.rhs, op.out.id.value())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(of(&bound[0]), (10, 5, ScalarIr::Float(0.5), INNER | 1));
        assert_eq!(of(&bound[1]), (INNER | 1, 5, ScalarIr::Float(2.0), 12));
        let again = graphs.bound(GraphId(3), &bindings).unwrap();
        assert_eq!(of(&again[0]).3, INNER | 2);
        assert_eq!(graphs.bound(GraphId(4), &bindings).unwrap_err().code, Code::NotFound);
    }
}
