//! `--place`, for the commands that run a graph on a mesh.

/// The choice of devices.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Choice of a device for nodes whose requests leave one. names: the master's, or the first by name. auto: by cost, so that
    /// a step is expected to end soonest and no device has to hold more than its memory
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
    /// Whether nodes are placed by cost.
    pub fn by_cost(self) -> bool {
        self.place == Rule::Auto
    }
}
