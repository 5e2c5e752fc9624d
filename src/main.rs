//! The `meshtf` command: nothing here but the exit code. See [`meshtf::cli`].

#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

fn main() -> std::process::ExitCode {
    meshtf::cli::main()
}
