//! The `meshtf` command: nothing here but the exit code. See [`meshtf::cli`].

#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

fn main() -> std::process::ExitCode {
    silence_wayland();
    meshtf::cli::main()
}

/// Looking for GPUs asks for a Wayland display too, and libwayland prints a line for each time where this variable is not
/// set. Any absolute path will do; this one belongs to the user, holds no display, and need not exist.
fn silence_wayland() {
    const RUNTIME: &str = "XDG_RUNTIME_DIR";
    let is_unset = std::env::var_os(RUNTIME).is_none_or(|folder| folder.is_empty());
    if let (true, Ok(home)) = (is_unset, meshtf::mesh::home())
        && home.is_absolute()
    {
        // SAFETY: `main` has only just begun, and no other thread runs that could read the environment.
        unsafe { std::env::set_var(RUNTIME, home) };
    }
}
