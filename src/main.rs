//! The `meshtf` command: nothing here but the exit code. See [`meshtf::cli`].

/// Keeps what large tensors leave for the next ones, where the system's allocator would give it back and fault it in
/// again page by page.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    meshtf::cli::main()
}
