//! Constants whose elements may lie in another form alone: in that of the kernel that reads them. A matrix of weights that is
//! packed for its products would otherwise be in memory twice, for the original has many holders, as the graph, the plan and the
//! session.
//!
//! All clones of such a constant share one place. Whoever makes the other form releases the elements, for all holders at once;
//! the form then has to answer with the same elements when somebody asks. Elements that were borrowed from the tensor
//! ([`Tensor::data`] and all that is built on it) stay for as long as the tensor does, since a borrow has no end that the place
//! could see; [`at_hand`] reads them without that.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::lock::lock;
use crate::{DType, Data, Tensor};

/// Fewest bytes of elements for which it pays.
pub const LEAST_BYTES: usize = 64 << 10;

/// Another form of a constant's elements.
pub trait Form: Send + Sync {
    /// The elements, bit by bit those of which it was made.
    fn elements(&self) -> Data;
}

/// The elements of a tensor.
pub(crate) enum Storage {
    /// As they are.
    Here(Data),
    /// Those of a constant.
    Constant(Box<Constant>),
}

/// The elements of a constant, in one form or the other.
pub(crate) struct Constant {
    dtype: DType,
    len: usize,
    place: Mutex<Place>,
    /// Set once the elements were borrowed.
    borrowed: OnceLock<Arc<Storage>>,
}

enum Place {
    /// Always [`Storage::Here`].
    Here(Arc<Storage>),
    Released(Arc<dyn Form>),
}

impl Constant {
    fn of(elements: Arc<Storage>) -> Constant {
        let (dtype, len) = (elements.dtype(), elements.len());
        Constant { dtype, len, place: Mutex::new(Place::Here(elements)), borrowed: OnceLock::new() }
    }

    /// The elements, which are made of the other form if they were released. They are not kept.
    fn elements(&self) -> Arc<Storage> {
        self.borrowed.get().map_or_else(|| self.placed(), Arc::clone)
    }

    fn placed(&self) -> Arc<Storage> {
        let form = match &*lock(&self.place) {
            Place::Here(elements) => return Arc::clone(elements),
            Place::Released(form) => Arc::clone(form),
        };
        let elements = form.elements();
        debug_assert_eq!((elements.dtype(), elements.len()), (self.dtype, self.len), "a form has its elements");
        Arc::new(Storage::Here(elements))
    }

    /// The elements of a constant that nobody else has.
    fn into_elements(self) -> Arc<Storage> {
        let Constant { place, borrowed, .. } = self;
        match (borrowed.into_inner(), place.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            (Some(elements), _) | (None, Place::Here(elements)) => elements,
            (None, Place::Released(form)) => Arc::new(Storage::Here(form.elements())),
        }
    }
}

impl Storage {
    /// Reads the elements, without keeping those of a constant.
    fn read<R>(&self, read: impl FnOnce(&Data) -> R) -> R {
        match self {
            Storage::Here(data) => read(data),
            Storage::Constant(constant) => read(constant.elements().data()),
        }
    }

    #[inline]
    pub fn dtype(&self) -> DType {
        match self {
            Storage::Here(data) => data.dtype(),
            Storage::Constant(constant) => constant.dtype,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Storage::Here(data) => data.len(),
            Storage::Constant(constant) => constant.len,
        }
    }

    /// Whether the elements are in memory as they are.
    #[inline]
    pub fn is_at_hand(&self) -> bool {
        match self {
            Storage::Here(_) => true,
            Storage::Constant(constant) => {
                constant.borrowed.get().is_some() || matches!(&*lock(&constant.place), Place::Here(_))
            }
        }
    }

    /// The elements; those of a constant stay from now on.
    #[inline]
    pub fn data(&self) -> &Data {
        match self {
            Storage::Here(data) => data,
            Storage::Constant(constant) => constant.borrowed.get_or_init(|| constant.placed()).data(),
        }
    }

    /// The elements, taken from `storage`: copied if others share them.
    pub fn taken(storage: Arc<Storage>) -> Data {
        let shared = match Arc::try_unwrap(storage) {
            Ok(Storage::Here(data)) => return data,
            Ok(Storage::Constant(constant)) => constant.into_elements(),
            Err(shared) => Storage::at_hand(&shared),
        };
        match Arc::try_unwrap(shared) {
            Ok(Storage::Here(data)) => data,
            Ok(other) => other.data().clone(),
            Err(shared) => shared.data().clone(),
        }
    }

    /// The elements as they are: the same for what is no constant.
    pub fn at_hand(storage: &Arc<Storage>) -> Arc<Storage> {
        match &**storage {
            Storage::Here(_) => Arc::clone(storage),
            Storage::Constant(constant) => constant.elements(),
        }
    }

    /// The elements for writing; copied first if others share them.
    #[inline]
    pub fn written(storage: &mut Arc<Storage>) -> &mut Data {
        if let Storage::Constant(constant) = &**storage {
            *storage = constant.elements();
        }
        match Arc::make_mut(storage) {
            Storage::Here(data) => data,
            Storage::Constant(_) => unreachable!("its elements were put in its place"),
        }
    }
}

impl Clone for Storage {
    fn clone(&self) -> Storage {
        self.read(|data| Storage::Here(data.clone()))
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Storage) -> bool {
        let is_alike = || (self.dtype(), self.len()) == (other.dtype(), other.len());
        is_alike() && self.read(|own| other.read(|other| own == other))
    }
}

impl fmt::Debug for Storage {
    /// As the elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read(|data| data.fmt(f))
    }
}

/// The tensor as a constant, whose elements may be released from now on. Unchanged if it has few, if they are strings, or if
/// somebody else has the tensor.
pub fn kept(tensor: Tensor) -> Tensor {
    if Arc::strong_count(&tensor.data) > 1 || tensor.dtype().size().is_none() || tensor.byte_len() < LEAST_BYTES {
        return tensor;
    }
    let Tensor { shape, data } = tensor;
    let elements = match Arc::try_unwrap(data) {
        // Nobody borrows its elements any more.
        Ok(Storage::Constant(constant)) if constant.borrowed.get().is_some() => constant.into_elements(),
        Ok(Storage::Constant(constant)) => return Tensor { shape, data: Arc::new(Storage::Constant(constant)) },
        Ok(here) => Arc::new(here),
        Err(shared) => return Tensor { shape, data: shared },
    };
    Tensor { shape, data: Arc::new(Storage::Constant(Box::new(Constant::of(elements)))) }
}

/// Whether a tensor is such a constant.
#[inline]
pub fn is_kept(tensor: &Tensor) -> bool {
    matches!(&*tensor.data, Storage::Constant(_))
}

/// Whether the elements are in memory as they are, not in another form alone.
pub fn is_at_hand(tensor: &Tensor) -> bool {
    tensor.data.is_at_hand()
}

/// The same tensor, with its elements in memory for as long as it exists: to read those of a constant without keeping them for
/// longer. They are made, if they were released.
pub fn at_hand(tensor: &Tensor) -> Tensor {
    Tensor { shape: tensor.shape.clone(), data: Storage::at_hand(&tensor.data) }
}

/// The place that a constant and its clones share. A [`WeakTensor`](crate::WeakTensor) keeps it from becoming another's.
#[inline]
pub fn place(tensor: &Tensor) -> usize {
    Arc::as_ptr(&tensor.data).addr()
}

/// Releases the elements of a constant, which `form` has from now on; false if they stay, because somebody borrowed them, they
/// are released already, or the tensor is no such constant. `form` must not keep the tensor itself.
pub fn release(tensor: &Tensor, form: Arc<dyn Form>) -> bool {
    let Storage::Constant(constant) = &*tensor.data else { return false };
    let mut place = lock(&constant.place);
    if constant.borrowed.get().is_some() || matches!(&*place, Place::Released(_)) {
        return false;
    }
    let released = std::mem::replace(&mut *place, Place::Released(form));
    // Nobody waits for the place while their memory is freed.
    drop(place);
    drop(released);
    true
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const COUNT: usize = LEAST_BYTES / 4;

    fn numbers() -> Vec<f32> {
        (0..COUNT).map(|i| i as f32).collect()
    }

    /// The numbers, and how often they were asked for.
    #[derive(Default)]
    struct Numbers(AtomicUsize);

    impl Form for Numbers {
        fn elements(&self) -> Data {
            self.0.fetch_add(1, Ordering::Relaxed);
            Data::F32(numbers())
        }
    }

    fn released() -> (Tensor, Arc<Numbers>) {
        let (constant, form) = (kept(Tensor::vector(numbers())), Arc::new(Numbers::default()));
        assert!(release(&constant.clone(), form.clone()));
        (constant, form)
    }

    #[test]
    fn a_question_about_the_dtype_makes_no_elements() {
        let (constant, form) = released();
        assert!(constant.slice::<i32>().is_err() && constant.to_i64s().is_err());
        assert_eq!(form.0.load(Ordering::Relaxed), 0);
        assert_eq!(constant.element(3).item::<f32>(), Ok(3.0));
        assert_eq!(form.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn large_tensors_that_nobody_shares_become_constants() {
        let shared = Tensor::vector(numbers());
        for (case, tensor, is_constant) in [
            ("large", Tensor::vector(numbers()), true),
            ("one that is one", kept(Tensor::vector(numbers())), true),
            ("shared", shared.clone(), false),
            ("small", Tensor::vector(vec![0f32; COUNT - 1]), false),
            ("strings", Tensor::vector(vec![vec![0u8; 2]; LEAST_BYTES]), false),
        ] {
            let before = tensor.clone();
            drop(before);
            assert_eq!(is_kept(&kept(tensor)), is_constant, "{case}");
        }
        assert!(!release(&shared, Arc::new(Numbers::default())));
    }

    #[test]
    fn elements_that_were_released_are_those_of_the_form() {
        let (constant, form) = released();
        // Facts about it need none.
        let facts = (constant.dtype(), constant.len(), constant.byte_len(), constant.is_unique());
        assert_eq!((facts, form.0.load(Ordering::Relaxed)), ((DType::F32, COUNT, LEAST_BYTES, false), 0));
        assert!(constant.heap_bytes() >= LEAST_BYTES);
        // Elements that are read at hand are made each time, and equality is that of the elements.
        assert_eq!(at_hand(&constant), Tensor::vector(numbers()));
        assert_eq!((at_hand(&constant).slice::<f32>().unwrap(), form.0.load(Ordering::Relaxed)), (&numbers()[..], 2));
        assert_eq!(Tensor::vector(numbers()), constant);
        assert_ne!(constant, Tensor::vector(vec![1f32; COUNT]));
        assert_ne!(constant, Tensor::vector(vec![1i32; COUNT]));
        // Those that are borrowed are made once.
        let before = form.0.load(Ordering::Relaxed);
        let other = constant.clone();
        let address = constant.slice::<f32>().unwrap().as_ptr();
        assert_eq!(
            (other.slice::<f32>().unwrap().as_ptr(), at_hand(&other).slice().unwrap()),
            (address, &numbers()[..])
        );
        assert_eq!(form.0.load(Ordering::Relaxed), before + 1);
        // Nobody else has it: it is a constant anew, and its elements may be released again.
        drop(other);
        assert!(release(&kept(constant), form));
    }

    #[test]
    fn elements_that_were_borrowed_are_not_released() {
        let (constant, form) = (kept(Tensor::vector(numbers())), Arc::new(Numbers::default()));
        let read = at_hand(&constant);
        assert!(release(&constant, form.clone()), "what is read at hand is no borrow");
        assert!(!release(&constant, form.clone()), "they are gone already");
        assert_eq!(read.slice::<f32>().unwrap(), numbers());
        let constant = kept(Tensor::vector(numbers()));
        let borrowed = constant.slice::<f32>().unwrap();
        assert!(!release(&constant.clone(), form.clone()));
        assert_eq!((borrowed, form.0.load(Ordering::Relaxed)), (&numbers()[..], 0));
    }

    #[test]
    fn a_constant_that_is_written_or_taken_is_an_ordinary_tensor() {
        type Case = (&'static str, fn(Tensor) -> Vec<f32>);
        let cases: [Case; 4] = [
            ("taken", |tensor| tensor.into_vec().unwrap()),
            ("parts", |tensor| Tensor::new([COUNT], tensor.into_parts().1).unwrap().into_vec().unwrap()),
            ("written", |mut tensor| {
                tensor.slice_mut::<f32>().unwrap()[0] = 0.0;
                assert!(tensor.is_unique() && !is_kept(&tensor));
                tensor.into_vec().unwrap()
            }),
            ("sent", |tensor| {
                postcard::from_bytes::<Tensor>(&postcard::to_allocvec(&tensor).unwrap()).unwrap().into_vec().unwrap()
            }),
        ];
        for (case, take) in cases {
            let (alone, _) = released();
            assert_eq!(take(alone), numbers(), "{case}");
            let (shared, _) = released();
            assert_eq!(
                (take(shared.clone()), shared),
                (numbers(), Tensor::vector(numbers())),
                "{case} of one that is shared"
            );
            let here = kept(Tensor::vector(numbers()));
            assert_eq!((take(here.clone()), take(here)), (numbers(), numbers()), "{case} of one that is here");
        }
        let constant = kept(Tensor::vector(numbers()));
        let address = at_hand(&constant).slice::<f32>().unwrap().as_ptr();
        let taken = constant.into_vec::<f32>().unwrap();
        assert_eq!(taken.as_ptr(), address, "without a copy");
    }

    #[test]
    fn a_constant_is_known_without_being_kept() {
        let (constant, _) = released();
        let weak = constant.downgrade();
        let again = weak.upgrade().unwrap();
        assert_eq!((place(&again), &again), (place(&constant), &constant));
        drop((constant, again));
        assert!(weak.is_gone() && weak.upgrade().is_none());
    }
}
