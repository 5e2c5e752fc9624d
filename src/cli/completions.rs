//! `meshtf completions`: a completion script for a shell, on stdout.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Exit, Outcome, output};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf completions bash > ~/.local/share/bash-completion/completions/meshtf
  meshtf completions zsh > ~/.zfunc/_meshtf
  meshtf completions fish > ~/.config/fish/completions/meshtf.fish")]
pub struct Args {
    /// Shell of the script
    shell: Shell,
}

pub(super) fn completions(args: Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "meshtf", &mut script);
    output::bytes(&script)?;
    Ok(Exit::Ok)
}
