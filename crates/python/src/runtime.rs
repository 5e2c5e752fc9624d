//! The threads on which meshtf works, and the way in which Python waits for them.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::block_in_place;

/// The interval at which a wait looks for signals: Ctrl-C ends it.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

struct Threads {
    runtime: Runtime,
    /// The process that has them. They do not exist in one that was forked from it.
    process: u32,
}

/// The runtime of this process.
pub fn runtime() -> PyResult<&'static Runtime> {
    static THREADS: OnceLock<Threads> = OnceLock::new();
    let threads = match THREADS.get() {
        Some(threads) => threads,
        None => {
            let runtime = Builder::new_multi_thread().enable_all().thread_name("meshtf").build()?;
            THREADS.get_or_init(|| Threads { runtime, process: std::process::id() })
        }
    };
    if threads.process != std::process::id() {
        return Err(PyRuntimeError::new_err(
            "this process was forked from one that used meshtf, whose threads it lacks; start it with \
             multiprocessing.get_context(\"spawn\")",
        ));
    }
    Ok(&threads.runtime)
}

/// Waits without Python's lock. A signal whose handler raises ends the wait: the future is dropped.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let work = async {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(LOOK_FOR_SIGNALS) => Python::attach(|py| py.check_signals())?,
            }
        }
    };
    // A callback waits on a thread of meshtf, of whose work another one takes care meanwhile.
    let is_within = Handle::try_current().is_ok();
    py.detach(|| if is_within { block_in_place(|| runtime.block_on(work)) } else { runtime.block_on(work) })
}
