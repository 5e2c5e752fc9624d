//! `meshtf man`: the manual pages, one for each subcommand, for packagers.

use std::path::PathBuf;

use clap::CommandFactory;

use super::{Cli, Exit, Outcome, Trouble};

/// Write the manual pages to a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf man ~/.local/share/man/man1
  man meshtf-node")]
pub struct Args {
    /// Folder for meshtf.1, meshtf-node.1 and the others, created if it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) fn man(args: Args) -> Outcome {
    let cannot = |error: std::io::Error| Trouble::input(format!("{}: {error}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(cannot)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_that_is_shown_has_a_page_with_its_examples() {
        let folder = temp_dir::TempDir::new().unwrap();
        let pages = folder.path().join("man1");
        man(Args { folder: pages.clone() }).unwrap();
        let whole = Cli::command();
        let shown = whole.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name().to_owned());
        let names: Vec<String> = shown.map(|name| format!("meshtf-{name}.1")).chain(["meshtf.1".to_owned()]).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            let page = std::fs::read_to_string(pages.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(page.contains(".TH meshtf") && page.contains("Examples:"), "{name}: {page}");
        }
    }
}
