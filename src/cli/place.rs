//! `--place`, for the commands that run a graph on a mesh.

use meshtf_graph::plan::PlaceBy;

/// The choice of devices.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Choice of a device for nodes whose device strings leave one. names: the master's, or the first by name. auto: so that a
    /// step is expected to end soonest, and no device has to hold more than its memory
    #[arg(long, value_name = "RULE", value_enum, default_value_t)]
    place: Rule,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Rule {
    #[default]
    Names,
    Auto,
}

impl PlaceArgs {
    /// The rule of the sessions.
    pub fn rule(self) -> PlaceBy {
        match self.place {
            Rule::Names => PlaceBy::Names,
            Rule::Auto => PlaceBy::Cost,
        }
    }
}
