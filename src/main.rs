//! The `meshtf` command: the exit code, and the setup that must precede everything else. See [`cli`].

#![allow(unsafe_code, reason = "code runs before `main`, and the environment is changed before any thread")]

mod cli;

use std::sync::atomic::{AtomicBool, Ordering};

#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

/// Whether this process was started with a standard output, unlike in `meshtf … >&-`. Before `main`, Rust opens /dev/null in
/// place of a closed one, which cannot be distinguished from a deliberate /dev/null any more: so the check runs before that, if
/// the system supports it. Only the command does this, not the library.
static HAS_STDOUT: AtomicBool = AtomicBool::new(true);

#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;

#[cfg(target_os = "linux")]
extern "C" fn look_at_stdout() {
    let is_open = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_ok();
    HAS_STDOUT.store(is_open, Ordering::Relaxed);
}

fn main() -> std::process::ExitCode {
    silence_wayland();
    cli::main(HAS_STDOUT.load(Ordering::Relaxed))
}

/// Looking for GPUs also asks for a Wayland display, and libwayland prints a line each time if this variable is unset.
/// Any absolute path will do; this one belongs to the user, contains no display, and need not exist.
fn silence_wayland() {
    const RUNTIME: &str = "XDG_RUNTIME_DIR";
    let is_unset = std::env::var_os(RUNTIME).is_none_or(|folder| folder.is_empty());
    if let (true, Ok(home)) = (is_unset, cli::home())
        && home.is_absolute()
    {
        // SAFETY: this runs first in `main`, when no other thread could read the environment.
        unsafe { std::env::set_var(RUNTIME, home) };
    }
}
