//! A text that many ask for and that is made for all of them together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::failure::Result;

/// The last text, and when its making began.
#[derive(Default)]
pub struct Recent(Mutex<Option<(Instant, Arc<str>)>>);

impl Recent {
    /// The last text; one that `make` makes if that is as old as `age`. One is made at a time: whoever asks meanwhile gets it, too.
    ///
    /// # Errors
    /// Those of `make`; the next one who asks tries again.
    ///
    /// # Cancellation
    /// If the future is dropped, the next one who asks makes what was not finished.
    pub async fn get(&self, age: Duration, make: impl Future<Output = Result<String>>) -> Result<Arc<str>> {
        let mut last = self.0.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < age
        {
            return Ok(Arc::clone(text));
        }
        let began = Instant::now();
        let text: Arc<str> = make.await?.into();
        *last = Some((began, Arc::clone(&text)));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::failure::Failure;

    #[tokio::test]
    async fn all_who_ask_get_what_one_made_while_it_is_recent() {
        let count = Cell::new(0);
        let make = async || {
            count.set(count.get() + 1);
            tokio::task::yield_now().await;
            Ok(count.get().to_string())
        };
        let (recent, hour) = (Recent::default(), Duration::from_secs(3600));
        let failed = recent.get(hour, async { Err(Failure::invalid("no")) }).await;
        assert!(failed.is_err());
        let (first, second) = tokio::join!(recent.get(hour, make()), recent.get(hour, make()));
        assert_eq!((&*first.unwrap(), &*second.unwrap(), &*recent.get(hour, make()).await.unwrap()), ("1", "1", "1"));
        let now = Duration::ZERO;
        let (third, fourth) = tokio::join!(recent.get(now, make()), recent.get(now, make()));
        assert_eq!((&*third.unwrap(), &*fourth.unwrap()), ("2", "3"));
    }
}
