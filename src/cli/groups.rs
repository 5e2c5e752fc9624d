//! The list of commands in `meshtf --help`, grouped by purpose.

use std::fmt::Write as _;
use std::sync::LazyLock;

use clap::Subcommand as _;
use clap::builder::{StyledStr, Styles};

/// The groups, in the order of the list. Each command is in exactly one of them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run a node", &["node", "server"]),
    (
        "Run graphs and programs",
        &["submit", "attach", "stop", "run", "serve", "plan", "summary", "inspect", "ops", "tf", "burn"],
    ),
    ("Train", &["example", "new", "train", "predict", "generate", "runs", "differentiate", "export", "import"]),
    ("Inspect", &["ps", "status", "top", "events", "variable", "cache"]),
    ("Connect machines", &["ticket", "join", "doctor"]),
    ("Tools", &["verify", "completions", "man", "help"]),
];

/// The template of the help: clap's own, with a heading for each group of commands.
pub(super) fn template() -> StyledStr {
    // The command line is built several times in a process.
    static TEMPLATE: LazyLock<StyledStr> = LazyLock::new(written);
    TEMPLATE.clone()
}

fn written() -> StyledStr {
    let mut commands = super::Command::augment_subcommands(clap::Command::new("meshtf"));
    // Adds `help`.
    commands.build();
    let styles = Styles::default();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "{header}{group}:{header:#}");
        for name in *names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name}{literal:#}{:1$}  {about}", "", width - name.len());
        }
        text.push('\n');
    }
    let _ = write!(text, "{header}Options:{header:#}\n{{options}}{{after-help}}");
    text.into()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Command, CommandFactory};

    use super::super::Cli;
    use super::*;

    /// Columns of a terminal in which no line of the list is wrapped.
    const COLUMNS: usize = 80;
    /// Flags whose meaning depends on the command.
    const OWN: &[&str] = &["all", "every", "help", "log", "out", "steps", "to", "trace", "version"];

    fn built() -> Command {
        let mut cli = Cli::command();
        cli.build();
        cli
    }

    /// The commands and their subcommands, except `help`.
    fn all(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().filter(|one| one.get_name() != "help");
        below.flat_map(|one| [vec![one], all(one)].concat()).collect()
    }

    #[test]
    fn every_command_is_in_one_group() {
        let cli = built();
        let commands: BTreeSet<&str> = cli.get_subcommands().map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), commands);
        assert_eq!(grouped.len(), commands.len(), "each is listed once");
        assert!(cli.get_subcommands().all(|one| !one.is_hide_set()));
    }

    #[test]
    fn the_list_has_a_line_for_each_command() {
        let help = built().render_help().to_string();
        for (group, names) in GROUPS {
            assert!(help.contains(&format!("\n{group}:\n")), "{help}");
            for name in *names {
                let line = help.lines().find(|line| line.starts_with(&format!("  {name} ")));
                let line = line.unwrap_or_else(|| panic!("{name} is not in {help}"));
                assert!(line.len() > 20 && line.chars().count() <= COLUMNS, "{line}");
            }
        }
        for part in ["Usage: meshtf", "\nOptions:\n", "\n  -v, --verbose", "\nExamples:\n", "meshtf man"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }

    #[test]
    fn every_command_has_examples_and_every_argument_a_description() {
        let cli = built();
        for command in all(&cli) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let path = command.get_bin_name().unwrap_or_default();
            assert!(after.starts_with("Examples:\n  ") && after.contains(path), "{path}: {after}");
        }
        for command in [vec![&cli], all(&cli)].concat() {
            // A wrapped line could not be copied to a shell.
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long = after.lines().find(|line| line.chars().count() > COLUMNS);
            assert_eq!(long, None, "{} columns in the help of {}", COLUMNS, command.get_name());
        }
        for command in all(&cli) {
            for argument in command.get_arguments().filter(|one| !one.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{}: {}", command.get_name(), argument.get_id());
            }
        }
    }

    /// The description of a flag, up to the first punctuation, is the same in every command that has it.
    #[test]
    fn a_flag_has_the_same_words_in_every_command() {
        let cli = built();
        let mut known: BTreeMap<&str, (&str, String)> = BTreeMap::new();
        let mut shared = 0;
        for command in all(&cli) {
            for argument in command.get_arguments() {
                let Some(long) = argument.get_long().filter(|long| !OWN.contains(long)) else { continue };
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let words = help.split([',', ';', ':', '.', '[', '(']).next().unwrap_or_default().trim().to_owned();
                let (first, same) = known.entry(long).or_insert((command.get_name(), words.clone()));
                shared += usize::from(*first != command.get_name());
                assert_eq!(&words, same, "--{long} of {} and of {first}", command.get_name());
            }
        }
        assert!(shared > 50, "{shared} flags are shared");
    }
}
