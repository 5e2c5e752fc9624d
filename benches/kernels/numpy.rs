//! NumPy's time for the same computations, if a Python with NumPy exists.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

/// Seconds by measurement; or the reason why there are none.
pub struct Numpy(Result<HashMap<String, f64>, String>);

impl Numpy {
    /// Runs everything once, in a Python process with as many threads as this one's kernels.
    pub fn measure(seconds: f64) -> Numpy {
        Numpy(run(seconds))
    }

    /// For a report without NumPy.
    pub fn unasked() -> Numpy {
        Numpy(Err("not asked for".to_owned()))
    }

    pub fn seconds(&self, what: &str) -> Option<f64> {
        self.0.as_ref().ok()?.get(what).copied()
    }

    pub fn why_not(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }
}

fn run(seconds: f64) -> Result<HashMap<String, f64>, String> {
    let python = python().ok_or("no virtual environment; `make bench` makes one where Python and its packages are")?;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/kernels/beside.py");
    let output = Command::new(python)
        .args([script, &seconds.to_string()])
        .envs(["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, &threads)))
        .output()
        .map_err(|error| format!("Python does not start: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().last().unwrap_or("Python failed").to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("not what beside.py prints: {error}"))
}

/// The Python of the environment that `make bench` made: `target/bench-venv`, for `target/release/deps/kernels-…`.
fn python() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let found = program.ancestors().skip(1).take(3).map(|folder| folder.join("bench-venv/bin/python"));
    found.into_iter().find(|python| python.is_file())
}
