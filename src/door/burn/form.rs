//! The form of an operation: the operation without its tensors and scalars.
//!
//! A program's loop has operations of the same forms in each iteration, with other tensors. A form is made once; queued items
//! and steps refer to it, so that a recipe is hashed and compared without inspecting its operations.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use burn_ir::{IrVisitorMut, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use foldhash::fast::FixedState;
use meshtf_lowering as lowering;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Shape};
use smallvec::SmallVec;

/// A tensor of an operation: its id, and whether this is its last use.
pub(super) type Given = (u64, bool);

/// An operation as a program requests it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub form: Arc<Form>,
    /// The inputs and, after them, the outputs.
    pub tensors: SmallVec<[Given; 3]>,
    pub scalars: SmallVec<[ScalarIr; 1]>,
}

/// An operation without its tensors and scalars.
#[derive(Debug)]
pub(super) struct Form {
    /// The ids of its tensors are their indices in those of a call, and so are its scalars, if it computes with them.
    pub operation: OperationIr,
    /// The dtype and shape of each input; `None` if meshtf has no such dtype.
    pub inputs: SmallVec<[(Option<DType>, Shape); 2]>,
    /// Those of each output, if meshtf has the dtypes.
    pub outputs: Result<SmallVec<[(DType, Shape); 1]>, Arc<Failure>>,
    pub scalars: usize,
    pub draws_random: bool,
    hash: u64,
}

impl Call {
    /// An operation with its tensors and scalars taken out.
    pub fn new(mut operation: OperationIr) -> Call {
        let given = |tensor: &TensorIr| (tensor.id.value(), tensor.status == TensorStatus::ReadWrite);
        let tensors: SmallVec<[Given; 3]> = operation.inputs().chain(operation.outputs()).map(given).collect();
        let mut scalars = SmallVec::new();
        let taken = lowering::computes_with_scalars(&operation).then_some(&mut scalars);
        operation.visit_mut(&mut TakeOut { tensors: &tensors, next: 0, scalars: taken });
        Call { form: Arc::new(Form::new(operation, scalars.len())), tensors, scalars }
    }

    /// Its inputs, and its outputs.
    pub fn split(&self) -> (&[Given], &[Given]) {
        self.tensors.split_at(self.form.inputs.len())
    }
}

impl Form {
    fn new(operation: OperationIr, scalars: usize) -> Form {
        let shape = |tensor: &TensorIr| Shape::from(&tensor.shape[..]);
        let inputs = operation.inputs().map(|tensor| (lowering::dtype(tensor.dtype).ok(), shape(tensor))).collect();
        let outputs = operation.outputs().map(|tensor| Ok((lowering::dtype(tensor.dtype)?, shape(tensor))));
        let outputs = outputs.collect::<Result<_, Failure>>().map_err(Arc::new);
        let hash = FixedState::default().hash_one(&operation);
        let draws_random = lowering::draws_random(&operation);
        Form { operation, inputs, outputs, scalars, draws_random, hash }
    }

    /// The operation on tensors of these numbers, with the scalars at the indices of a list from `scalars_from` on.
    pub fn on(&self, numbers: &[u32], scalars_from: usize) -> OperationIr {
        let mut operation = self.operation.clone();
        let scalars_from = lowering::computes_with_scalars(&operation).then_some(scalars_from as u64);
        operation.visit_mut(&mut PutIn { numbers, scalars_from });
        operation
    }
}

impl PartialEq for Form {
    fn eq(&self, other: &Form) -> bool {
        std::ptr::eq(self, other) || self.hash == other.hash && self.operation == other.operation
    }
}

impl Hash for Form {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// Replaces tensors and scalars by their indices.
struct TakeOut<'t> {
    tensors: &'t [Given],
    next: usize,
    /// `None` if the scalars stay in the operation.
    scalars: Option<&'t mut SmallVec<[ScalarIr; 1]>>,
}

impl IrVisitorMut for TakeOut<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let is_it = |(id, _): &Given| *id == tensor.id.value();
        let place = match self.tensors.get(self.next) {
            Some(next) if is_it(next) => Some(self.next),
            _ => self.tensors.iter().position(is_it),
        };
        self.next += 1;
        tensor.id = TensorId::new(place.map_or(u64::MAX, |place| place as u64));
        // When a tensor ends depends on which thread drops it first, and does not change the result.
        tensor.status = TensorStatus::ReadOnly;
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        if let Some(scalars) = &mut self.scalars {
            scalars.push(*scalar);
            *scalar = ScalarIr::UInt(scalars.len() as u64 - 1);
        }
    }
}

/// Replaces indices by tensors and scalars.
struct PutIn<'n> {
    numbers: &'n [u32],
    /// `None` if the scalars are not indices.
    scalars_from: Option<u64>,
}

impl IrVisitorMut for PutIn<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let number = usize::try_from(tensor.id.value()).ok().and_then(|place| self.numbers.get(place));
        tensor.id = TensorId::new(number.map_or(u64::MAX, |number| u64::from(*number)));
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        if let (ScalarIr::UInt(place), Some(from)) = (scalar, self.scalars_from) {
            *place += from;
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_ir::CustomOpIr;
    use burn_std::{DType, Shape};

    use super::*;

    #[test]
    fn the_scalars_of_a_custom_operation_are_part_of_its_form() {
        let tensor = |id| TensorIr::uninit(TensorId::new(id), Shape::new([4, 4]), DType::F32);
        let call = |id, dim| {
            let (from, to) = ([tensor(id)], [tensor(id + 1)]);
            let custom = CustomOpIr::with_scalars("signal::rfft", &from, &to, vec![ScalarIr::UInt(dim)]);
            Call::new(OperationIr::Custom(custom))
        };
        let first = call(10, 1);
        assert!(first.scalars.is_empty() && first.form.scalars == 0);
        assert!(call(20, 1).form == first.form && call(10, 0).form != first.form);
        let OperationIr::Custom(on) = first.form.on(&[3, 4], 7) else { panic!("it is a custom operation") };
        assert_eq!((on.inputs[0].id.value(), on.outputs[0].id.value()), (3, 4));
        assert_eq!(on.scalars, [ScalarIr::UInt(1)]);
    }
}
