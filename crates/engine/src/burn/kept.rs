//! An input that is the same in every step, in the form in which a kernel reads it. The kernels of all plans of a process share
//! the form of one constant: plans of a model for several signatures, or of several sessions, pack its weights once.
//!
//! The elements of a large constant are released once they have a form (`meshtf_tensor::constant`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use meshtf_loops::vector::{PackedFilter, Panels};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Data, Tensor, WeakTensor, constant, memory as budget};

use crate::Value;

/// Entries of forms that are gone are removed whenever the number of entries has doubled, from this number on.
const SWEEP_FROM: usize = 64;

/// The form of such an input.
pub(super) struct Kept<T: Form> {
    is_constant: bool,
    form: Option<Arc<Held<T>>>,
}

/// A form that kernels share.
pub(super) trait Form: Send + Sync + 'static {
    /// Those of this kind that exist.
    fn all() -> &'static Forms<Self>
    where
        Self: Sized;

    /// The elements of which it was made, which were read in that way.
    fn elements(&self, source: &Source) -> Vec<f32>;
}

impl Form for Panels<'static> {
    fn elements(&self, source: &Source) -> Vec<f32> {
        let [_, _, down, along] = source.layout;
        self.unpacked([down, along])
    }

    fn all() -> &'static Forms<Self> {
        static ALL: Forms<Panels<'static>> = Forms::new();
        &ALL
    }
}

impl Form for PackedFilter {
    fn elements(&self, _source: &Source) -> Vec<f32> {
        self.unpacked()
    }

    fn all() -> &'static Forms<Self> {
        static ALL: Forms<PackedFilter> = Forms::new();
        &ALL
    }
}

/// The elements of which a form is made: where they lie in memory, and the sizes and steps by which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source {
    address: usize,
    layout: [usize; 4],
}

impl Source {
    pub fn of(elements: &[f32], layout: [usize; 4]) -> Source {
        Source { address: elements.as_ptr() as usize, layout }
    }

    /// Those of a constant whose elements may be released.
    fn of_constant(tensor: &Tensor, layout: [usize; 4]) -> Source {
        Source { address: constant::place(tensor), layout }
    }
}

/// A form, and the constant of which it was made: as long as the form exists, no other tensor gets the constant's address.
struct Held<T> {
    form: T,
    origin: Origin,
}

/// A constant, as its form keeps it.
enum Origin {
    Unknown,
    /// With its elements, which lie at the address.
    Whole(#[allow(dead_code, reason = "it is kept, not read")] Value),
    /// Without them: the form may be all that there is of them. How they were read.
    Place(#[allow(dead_code, reason = "it is kept, not read")] WeakTensor, Source),
}

impl<T: Form> constant::Form for Held<T> {
    fn elements(&self) -> Data {
        let Origin::Place(_, source) = &self.origin else { unreachable!("only such a constant is released") };
        Data::F32(self.form.elements(source))
    }
}

/// The forms of one kind, each for as long as a kernel has it.
pub(super) struct Forms<T>(Mutex<Known<T>>);

struct Known<T> {
    forms: BTreeMap<Source, Weak<Held<T>>>,
    sweep_at: usize,
}

impl<T> Forms<T> {
    const fn new() -> Forms<T> {
        Forms(Mutex::new(Known { forms: BTreeMap::new(), sweep_at: SWEEP_FROM }))
    }

    fn find(&self, source: &Source) -> Option<Arc<Held<T>>> {
        lock(&self.0).forms.get(source).and_then(Weak::upgrade)
    }

    /// Adds one. Of two that were made at the same time, both stay with their kernels.
    fn add(&self, source: Source, held: &Arc<Held<T>>) {
        let known = &mut *lock(&self.0);
        if known.forms.len() >= known.sweep_at {
            known.forms.retain(|_, held| held.strong_count() > 0);
            known.sweep_at = SWEEP_FROM.max(2 * known.forms.len());
        }
        known.forms.insert(source, Arc::downgrade(held));
    }
}

impl<T: Form> Kept<T> {
    pub fn new(is_constant: bool) -> Kept<T> {
        Kept { is_constant, form: None }
    }

    /// Whether the input is constant and may have a form.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// Whether it has its form.
    #[cfg(test)]
    pub fn is_formed(&self) -> bool {
        self.form.is_some()
    }

    /// The form, if the input is constant. At the first call it is that of another kernel, or it is made, if there is memory for
    /// its bytes; a form that is not made then never is. `source`: the constant's elements, if they lie in its own memory.
    pub fn form(
        &mut self,
        constant: &Value,
        source: Option<Source>,
        bytes: usize,
        make: impl FnOnce() -> Option<T>,
    ) -> Option<&T> {
        if self.is_constant && self.form.is_none() {
            // One that nobody else has is an intermediate result of this step, which need not stay.
            let source = source.filter(|_| !constant.is_unshared());
            self.form = source.and_then(|source| T::all().find(&source)).or_else(|| {
                let form = budget::admit(bytes).is_ok().then(make).flatten()?;
                let origin = source.map_or(Origin::Unknown, |_| Origin::Whole(constant.clone()));
                let held = Arc::new(Held { form, origin });
                if let Some(source) = source {
                    T::all().add(source, &held);
                }
                Some(held)
            });
            self.is_constant = self.form.is_some();
        }
        self.form.as_ref().map(|held| &held.form)
    }

    /// As [`Kept::form`], of a constant of float32 whose elements are released once they have the form.
    pub fn form_alone(
        &mut self,
        tensor: &Tensor,
        layout: [usize; 4],
        bytes: usize,
        make: impl FnOnce(&[f32]) -> Option<T>,
    ) -> Option<&T> {
        if self.is_constant && self.form.is_none() {
            let source = Source::of_constant(tensor, layout);
            self.form = T::all().find(&source).or_else(|| {
                let form = budget::admit(bytes).is_ok().then(|| make(constant::at_hand(tensor).slice().ok()?));
                let held = Arc::new(Held { form: form.flatten()?, origin: Origin::Place(tensor.downgrade(), source) });
                T::all().add(source, &held);
                // If they were released for another form already, or somebody reads them in their place, they stay there.
                constant::release(tensor, held.clone());
                Some(held)
            });
            self.is_constant = self.form.is_some();
        }
        self.form.as_ref().map(|held| &held.form)
    }
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::Tensor;

    use super::*;

    struct Number(i32);

    impl Form for Number {
        fn all() -> &'static Forms<Self> {
            static ALL: Forms<Number> = Forms::new();
            &ALL
        }

        fn elements(&self, source: &Source) -> Vec<f32> {
            vec![self.0 as f32; source.layout[0]]
        }
    }

    fn constant() -> Tensor {
        Tensor::vector(vec![1f32; 8])
    }

    /// The form of a constant, as a new kernel gets it.
    fn formed(constant: &Tensor, layout: usize, make: impl FnOnce() -> Option<Number>) -> (Kept<Number>, Option<i32>) {
        let mut kept = Kept::new(true);
        let value = Value::Host(constant.clone());
        let source = Source::of(constant.slice().unwrap(), [layout, 0, 0, 0]);
        let number = kept.form(&value, Some(source), 4, make).map(|number| number.0);
        (kept, number)
    }

    #[test]
    fn what_is_constant_is_made_once() {
        let value = Value::Host(constant());
        let mut kept = Kept::new(true);
        assert_eq!(kept.form(&value, None, 4, || Some(Number(1))).map(|own| own.0), Some(1));
        assert_eq!(kept.form(&value, None, 4, || panic!("it is kept")).map(|own: &Number| own.0), Some(1));
        let mut none = Kept::new(true);
        assert!(none.form(&value, None, 4, || None::<Number>).is_none());
        assert!(none.form(&value, None, 4, || panic!("it is not asked for again")).is_none());
        assert!(Kept::<Number>::new(false).form(&value, None, 4, || panic!("it may change")).is_none());
    }

    #[test]
    fn kernels_share_the_form_of_a_constant_for_as_long_as_one_has_it() {
        let weights = constant();
        let (first, number) = formed(&weights, 0, || Some(Number(1)));
        assert_eq!(number, Some(1));
        let (second, number) = formed(&weights, 0, || panic!("another kernel has it"));
        assert_eq!(number, Some(1));
        // Read in another way, or other elements.
        let (_, number) = formed(&weights, 1, || Some(Number(2)));
        assert_eq!(number, Some(2));
        let (_, number) = formed(&constant(), 0, || Some(Number(3)));
        assert_eq!(number, Some(3));
        drop(first);
        let (_, number) = formed(&weights, 0, || panic!("the second kernel has it"));
        assert_eq!(number, Some(1));
        drop(second);
        let (_, number) = formed(&weights, 0, || Some(Number(4)));
        assert_eq!(number, Some(4));
        // The constant stays for as long as its form, so that its address belongs to no other.
        let (kept, _) = formed(&weights, 0, || Some(Number(5)));
        assert!(!weights.is_unique());
        drop(kept);
        assert!(weights.is_unique());
    }

    #[test]
    fn an_intermediate_result_is_not_kept() {
        let mut kept = Kept::new(true);
        let value = Value::Host(constant());
        let Value::Host(tensor) = &value else { unreachable!() };
        let source = Source::of(tensor.slice().unwrap(), [0; 4]);
        assert!(kept.form(&value, Some(source), 4, || Some(Number(1))).is_some());
        assert!(value.is_unshared());
    }

    #[test]
    fn the_elements_of_a_large_constant_are_in_its_form_alone() {
        const COUNT: usize = constant::LEAST_BYTES;
        let weights = constant::kept(Tensor::vector(vec![7f32; COUNT]));
        let make = |elements: &[f32]| Some(Number(elements.iter().sum::<f32>() as i32 / COUNT as i32));
        let formed = |layout: [usize; 4], make: &dyn Fn(&[f32]) -> Option<Number>| {
            let mut kept = Kept::new(true);
            let number = kept.form_alone(&weights, layout, 4, make).map(|number| number.0);
            (kept, number)
        };
        let (first, number) = formed([COUNT, 0, 0, 0], &make);
        assert_eq!((number, constant::is_at_hand(&weights)), (Some(7), false));
        let (second, number) = formed([COUNT, 0, 0, 0], &|_| panic!("another kernel has it"));
        assert_eq!(number, Some(7));
        // Read in another way, they are made of the first form.
        let (other, number) = formed([COUNT, 1, 0, 0], &make);
        assert_eq!((number, constant::is_at_hand(&weights)), (Some(7), false));
        // The constant has the form when no kernel has it any more.
        drop((first, second, other));
        let (again, number) = formed([COUNT, 0, 0, 0], &|_| panic!("the constant has it"));
        assert_eq!((number, &weights), (Some(7), &Tensor::vector(vec![7f32; COUNT])));
        // Nor does the form keep the constant.
        let weak = weights.downgrade();
        drop(weights);
        assert!(weak.is_gone() && again.is_formed());
        // One that somebody reads in its place stays there.
        let weights = constant::kept(Tensor::vector(vec![3f32; COUNT]));
        let elements = weights.slice::<f32>().unwrap();
        let mut kept = Kept::new(true);
        assert_eq!(kept.form_alone(&weights, [COUNT, 0, 0, 0], 4, make).map(|number| number.0), Some(3));
        assert_eq!((elements[0], constant::is_at_hand(&weights)), (3.0, true));
    }
}
