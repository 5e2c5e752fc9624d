//! The `meshtf` command: nothing here but the exit code. See [`meshtf::cli`].

fn main() -> std::process::ExitCode {
    meshtf::cli::main()
}
