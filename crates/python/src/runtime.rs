//! The threads on which meshtf works, and the way in which Python waits for them.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
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

/// Ends something on a thread of the runtime, on which the parts of a node may end. In a process that was forked it has no
/// threads to end, and stays.
pub fn released<T: Send + 'static>(held: T) {
    match runtime() {
        Ok(runtime) => {
            runtime.spawn_blocking(move || drop(held));
        }
        Err(_) => std::mem::forget(held),
    }
}

/// Waits without Python's lock. A signal whose handler raises ends the wait: the future is dropped.
///
/// The thread polls the future itself. A runtime's own wait would need a timer to look for signals, and setting one for each run
/// wakes another thread.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    wait_through(py, work, Err)
}

/// As [`wait`], but the exception of a signal's handler ends the wait only if `signalled` returns it.
pub fn wait_through<T: Send>(
    py: Python<'_>,
    work: impl Future<Output = T> + Send,
    mut signalled: impl FnMut(PyErr) -> PyResult<()> + Send,
) -> PyResult<T> {
    let runtime = runtime()?;
    py.detach(|| {
        // A callback waits on a thread of meshtf, whose work another one does meanwhile.
        block_in_place(|| {
            let _context = runtime.enter();
            let waker = Waker::from(Arc::new(Waiting(thread::current())));
            let mut work = pin!(work);
            let mut looked = Instant::now();
            loop {
                if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Ok(done);
                }
                thread::park_timeout(LOOK_FOR_SIGNALS);
                if looked.elapsed() >= LOOK_FOR_SIGNALS {
                    looked = Instant::now();
                    Python::attach(|py| py.check_signals()).or_else(&mut signalled)?;
                }
            }
        })
    })
}

/// A thread that waits for a future.
struct Waiting(Thread);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
