//! A value that several callers request and that is made once for all of them.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last value, and when the call that made it began. Values are cheap to clone.
pub struct Recent<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Mutex::default())
    }
}

impl<T: Clone> Recent<T> {
    /// The last value if it is younger than `age`, otherwise the one that `make` makes from it (`None`: there is none yet). Calls
    /// of `make` do not overlap: other callers meanwhile get its value, too.
    ///
    /// # Errors
    /// Those of `make`; the next caller tries again.
    ///
    /// # Cancellation
    /// If the future is dropped, the last value stays, and the next caller makes a new one.
    pub async fn get<E, F>(&self, age: Duration, make: impl FnOnce(Option<T>) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut last = self.0.lock().await;
        if let Some((at, value)) = &*last
            && at.elapsed() < age
        {
            return Ok(value.clone());
        }
        let began = Instant::now();
        let value = make(last.as_ref().map(|(_, value)| value.clone())).await?;
        *last = Some((began, value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn all_who_ask_get_what_one_made_while_it_is_recent() {
        let calls = Cell::new(0);
        // Ten times the last value, and the number of this call.
        let make = async |last: Option<u64>| {
            calls.set(calls.get() + 1);
            tokio::task::yield_now().await;
            Ok::<u64, &str>(10 * last.unwrap_or(0) + calls.get())
        };
        let (recent, hour) = (Recent::default(), Duration::from_secs(3600));
        assert_eq!(recent.get(hour, async |_| Err("no")).await, Err("no"));
        let (first, second) = tokio::join!(recent.get(hour, make), recent.get(hour, make));
        assert_eq!((first, second, recent.get(hour, make).await), (Ok(1), Ok(1), Ok(1)));
        let now = Duration::ZERO;
        let (third, fourth) = tokio::join!(recent.get(now, make), recent.get(now, make));
        assert_eq!((third, fourth), (Ok(12), Ok(123)));
        assert_eq!(recent.get(now, async |_| Err("no")).await, Err("no"));
        assert_eq!(recent.get(hour, make).await, Ok(123), "a failure leaves the last value");
    }
}
