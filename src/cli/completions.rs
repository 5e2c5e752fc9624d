//! `meshtf completions`: a completion script for a shell, on stdout.

use clap_complete::Shell;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use super::complete::VARIABLE;
use super::{Exit, Outcome, Trouble, output};

/// The name of this command, by which a shell finds it.
const NAME: &str = "meshtf";
/// In zsh, a script in a folder of $fpath is the function that completes the first word that is asked for.
const FROM_FPATH: &str = r#"
if [[ "$funcstack[1]" == _meshtf ]]; then
    _clap_dynamic_completer_meshtf "$@"
fi
"#;

/// Print a completion script for a shell
///
/// The script asks `meshtf` itself: for commands and flags, files, the tasks and devices of the nodes that are up, within a
/// second, the ids of runs, and the names of ops and examples.
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
    let of_shell: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Elvish => &Elvish,
        Shell::Fish => &Fish,
        Shell::PowerShell => &Powershell,
        Shell::Zsh => &Zsh,
        other => return Err(Trouble::input(format!("there is no script for {other}"))),
    };
    let mut script = Vec::new();
    let written = of_shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut script);
    written.map_err(|error| Trouble::input(error.to_string()))?;
    if args.shell == Shell::Zsh {
        script.extend_from_slice(FROM_FPATH.as_bytes());
    }
    output::bytes(&script)?;
    Ok(Exit::Ok)
}
