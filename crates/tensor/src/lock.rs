//! Locks that stay usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, even one whose holder panicked. The guarded values are changed as a whole or not at all, and a panic fails
/// only the step or the request that it occurs in.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_holder_panicked_is_taken() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let hold = || {
                let _held = mutex.lock();
                panic!("on purpose");
            };
            scope.spawn(hold).join()
        });
        assert!(panicked.is_err() && mutex.is_poisoned());
        *lock(&mutex) += 1;
        assert_eq!(*lock(&mutex), 2);
    }
}
