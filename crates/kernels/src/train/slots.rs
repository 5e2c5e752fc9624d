//! A rule applied to whole slices, those of a variable and its slots: vectorised and multithreaded.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::Float;

use super::rules::Rule;

/// The work per element of an update, in the unit of [`chunk`].
pub const WORK: usize = 4;

/// The elements of a variable and its slots, as many of each as of the gradient.
pub trait Slots<T, const V: usize> {
    /// Changes the elements one after the other. To be inlined always.
    fn change(self, grad: &[T], rule: impl Rule<T, V>);
}

macro_rules! slots {
    ($($count:literal: $($slot:ident)+;)+) => {
        $(impl<T: Float> Slots<T, $count> for [&mut [T]; $count] {
            #[inline(always)]
            fn change(self, grad: &[T], rule: impl Rule<T, $count>) {
                // One parameter per slice: only for parameters does the compiler know that they do not overlap.
                #[inline(always)]
                fn change<T: Float>($($slot: &mut [T],)+ grad: &[T], rule: impl Rule<T, $count>) {
                    $(let $slot = &mut $slot[..grad.len()];)+
                    for (i, &g) in grad.iter().enumerate() {
                        [$($slot[i]),+] = rule([$($slot[i]),+], g);
                    }
                }
                let [$($slot),+] = self;
                change($($slot,)+ grad, rule);
            }
        })+
    };
}

slots! {
    1: a;
    2: a b;
    3: a b c;
    4: a b c d;
}

/// Changes all elements.
pub fn change_all<'a, T: Float, const V: usize>(mut slots: [&'a mut [T]; V], grad: &'a [T], rule: impl Rule<T, V>)
where
    [&'a mut [T]; V]: Slots<T, V>,
{
    let parts = grad.chunks(chunk(WORK)).map(|grad| {
        let slots = slots.each_mut().map(|slot| slot.split_off_mut(..grad.len()).unwrap_or_default());
        Part { slots, grad, rule }
    });
    in_chunks(parts, widest);
}

struct Part<'a, T, R, const V: usize> {
    slots: [&'a mut [T]; V],
    grad: &'a [T],
    rule: R,
}

impl<'a, T: Float, R: Rule<T, V>, const V: usize> Work for Part<'a, T, R, V>
where
    [&'a mut [T]; V]: Slots<T, V>,
{
    #[inline(always)]
    fn run(self) {
        self.slots.change(self.grad, self.rule);
    }
}
