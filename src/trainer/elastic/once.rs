//! An observer that is notified of each step once, though some are computed again.

use std::path::Path;

use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;

use super::super::{Error, Evaluated, Observed, Observer};

/// Passes on what is new to an observer.
pub(super) struct Once<'o> {
    inner: &'o mut dyn Observer,
    has_begun: bool,
    /// Whether the traces were passed on.
    pub is_traced: bool,
    /// The last step of each kind of report.
    pub trained: u64,
    evaluated: u64,
    weights: u64,
}

impl<'o> Once<'o> {
    pub fn new(inner: &'o mut dyn Observer) -> Once<'o> {
        Once { inner, has_begun: false, is_traced: false, trained: 0, evaluated: 0, weights: 0 }
    }
}

/// Whether a step is after the last one, which it then becomes.
fn is_new(last: &mut u64, step: u64) -> bool {
    let is_new = step > *last;
    *last = step.max(*last);
    is_new
}

impl Observer for Once<'_> {
    fn begins(&mut self, start: u64) -> Observed {
        match std::mem::replace(&mut self.has_begun, true) {
            true => Ok(()),
            false => self.inner.begins(start),
        }
    }

    fn noted(&mut self, text: &str) -> Observed {
        self.inner.noted(text)
    }

    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        if is_new(&mut self.trained, step) { self.inner.trained(step, values) } else { Ok(()) }
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        if is_new(&mut self.evaluated, step) { self.inner.evaluated(step, evaluated) } else { Ok(()) }
    }

    fn evaluated_last(&mut self, evaluated: &Evaluated) -> Observed {
        self.inner.evaluated_last(evaluated)
    }

    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        if is_new(&mut self.weights, step) { self.inner.weights(step, weights) } else { Ok(()) }
    }

    fn traced(&mut self, first: u64, steps: u64, traces: Vec<DeviceTrace>) -> Observed {
        self.is_traced = true;
        self.inner.traced(first, steps, traces)
    }

    fn saved(&mut self, step: u64, file: &Path) -> Observed {
        self.inner.saved(step, file)
    }

    fn save_failed(&mut self, step: u64, error: &Error, is_last: bool) -> bool {
        self.inner.save_failed(step, error, is_last)
    }

    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        self.inner.enough(step, of, best, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps that were reported.
    #[derive(Default)]
    struct Told(Vec<u64>);

    impl Observer for Told {
        fn begins(&mut self, start: u64) -> Observed {
            self.0.push(start);
            Ok(())
        }

        fn trained(&mut self, step: u64, _: &[f64]) -> Observed {
            self.0.push(100 + step);
            Ok(())
        }

        fn weights(&mut self, step: u64, _: &[(String, Tensor)]) -> Observed {
            self.0.push(200 + step);
            Ok(())
        }
    }

    #[test]
    fn steps_that_are_computed_again_are_reported_once() {
        let mut told = Told::default();
        let mut once = Once::new(&mut told);
        for start in [4, 6] {
            once.begins(start).unwrap();
            (start + 1..start + 5).for_each(|step| once.trained(step, &[0.5]).unwrap());
            once.weights(8, &[]).unwrap();
        }
        assert_eq!(told.0, [4, 105, 106, 107, 108, 208, 109, 110]);
    }
}
