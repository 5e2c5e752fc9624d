//! `--place`, for the commands that run a graph on a mesh.

use meshtf_graph::Graph;
use meshtf_graph::plan::PlaceBy;

/// The choice of devices.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PlaceArgs {
    /// Choice of a device for nodes whose device strings leave one. names: the master's, or the first by name. auto: so that a
    /// step is expected to end soonest, and no device has to hold more than its memory. throughput: so that most steps of a
    /// series, such as --steps makes, end each second, if they do not wait for each other [default: auto for a graph that has
    /// neither device strings nor variables, unless --target names the master; else names]
    #[arg(long, value_name = "RULE", value_enum)]
    place: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rule {
    Names,
    Auto,
    Throughput,
}

impl PlaceArgs {
    /// The rule of the sessions of a graph. `has_target`: whether the master was named.
    pub fn rule(self, graph: &Graph, has_target: bool) -> PlaceBy {
        match self.place {
            Some(Rule::Names) => PlaceBy::Names,
            Some(Rule::Auto) => PlaceBy::Cost,
            Some(Rule::Throughput) => PlaceBy::Throughput,
            None if !has_target && is_open(graph) => PlaceBy::Cost,
            None => PlaceBy::Names,
        }
    }
}

/// Whether nothing in a graph says where it runs. Variables do: other commands look for them where names put them.
fn is_open(graph: &Graph) -> bool {
    graph.nodes().all(|(_, node)| node.device.is_empty() && !node.op.makes_variable)
}

#[cfg(test)]
mod tests {
    use meshtf_graph::read;

    use super::*;

    #[test]
    fn a_graph_that_says_nothing_of_devices_is_placed_by_cost() {
        let rule = |nodes: &str, place, has_target| {
            let text = format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#);
            PlaceArgs { place }.rule(&Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap(), has_target)
        };
        let open =
            r#""x": {"op": "Const", "attrs": {"dtype": "float32", "value": 2.0}}, "y": {"op": "Neg", "inputs": ["x"]}"#;
        let asked = open.replace(r#""inputs": ["x"]"#, r#""inputs": ["x"], "device": "/cpu:0""#);
        let kept = format!(r#"{open}, "w": {{"op": "VarHandleOp", "attrs": {{"dtype": "float32", "shape": []}}}}"#);
        assert_eq!(rule(open, None, false), PlaceBy::Cost);
        assert_eq!(rule(open, None, true), PlaceBy::Names);
        assert_eq!(rule(open, Some(Rule::Names), false), PlaceBy::Names);
        for text in [&asked, &kept] {
            assert_eq!(rule(text, None, false), PlaceBy::Names, "{text}");
            assert_eq!(rule(text, Some(Rule::Auto), true), PlaceBy::Cost, "{text}");
            assert_eq!(rule(text, Some(Rule::Throughput), true), PlaceBy::Throughput, "{text}");
        }
    }
}
