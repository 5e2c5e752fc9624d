//! An input that is the same in every step, in the form in which a kernel reads it.

use meshtf_tensor::memory as budget;

/// The form of such an input.
pub(super) struct Kept<T> {
    is_constant: bool,
    form: Option<T>,
}

impl<T> Kept<T> {
    pub fn new(is_constant: bool) -> Kept<T> {
        Kept { is_constant, form: None }
    }

    /// The form, if the input is constant. It is made at the first call, if there is memory for its bytes; what is not made then
    /// never is.
    pub fn form(&mut self, bytes: usize, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        if self.is_constant && self.form.is_none() {
            self.form = budget::admit(bytes).is_ok().then(make).flatten();
            self.is_constant = self.form.is_some();
        }
        self.form.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_constant_is_made_once() {
        let mut kept = Kept::new(true);
        assert_eq!(kept.form(4, || Some(1)), Some(&1));
        assert_eq!(kept.form(4, || panic!("it is kept")), Some(&1));
        let mut none = Kept::new(true);
        assert_eq!(none.form(4, || None::<i32>), None);
        assert_eq!(none.form(4, || panic!("it is not asked for again")), None);
        assert_eq!(Kept::new(false).form(4, || panic!("it may change") as Option<i32>), None);
    }
}
