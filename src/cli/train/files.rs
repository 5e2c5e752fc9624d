//! The files of a training: the graph and its sections.

use std::path::PathBuf;

use meshtf::trainer::Error;
use meshtf_graph::Graph;
use meshtf_train::file::{self, Sections, located};

use super::Args;
use super::needed::Needed;
use crate::cli::Trouble;
use crate::cli::tuned::read_for_training;

/// The content of a training's files.
pub(super) struct Files {
    pub from: PathBuf,
    /// The text of the sections.
    pub text: String,
    pub graph: Graph,
    pub sections: Sections,
}

impl Files {
    pub fn read(args: &Args) -> Result<Files, Trouble> {
        let from = args.with.as_ref().unwrap_or(&args.graph).clone();
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", from.display()));
        let text = std::fs::read(&from).map_err(|error| at(&error))?;
        let text = String::from_utf8(text)
            .map_err(|_| at(&"it is not text, so it cannot say how to train; use --with FILE"))?;
        let mut sections = file::read(&text).map_err(|why| at(&why))?;
        let with = args.with.as_ref().map(|file| (file, text.as_str()));
        let graph = read_for_training(&args.graph, with, &mut sections)?;
        Ok(Files { from, text, graph, sections })
    }

    /// The tasks that this training needs, at its start or after the loss of a task.
    pub fn needed(&self, is_after_loss: bool) -> Needed {
        Needed::of(&self.sections.train, self.graph.tasks(), is_after_loss)
    }

    /// Adds the file's name to an error about its sections.
    pub fn explained(&self, error: Error) -> Trouble {
        match error {
            Error::Sections(why) => Trouble::input(format!("{}: {}", self.from.display(), located(&self.text, &why))),
            error => error.into(),
        }
    }
}
