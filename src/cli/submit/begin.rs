//! The begin of the steps: the graph with its weights, and the first values of its variables.

use meshtf::trainer::weights::Weights;
use meshtf::{Init, Session};
use meshtf_graph::Graph;

use super::super::inputs::StepRequest;
use super::super::paint::mention;
use super::super::reach::Reached;
use super::super::{Trouble, first_values, runs};
use super::StepArgs;

/// The source of the first values of variables.
pub(super) struct Begin {
    init: Init,
    weights: Option<Weights>,
}

impl StepArgs {
    /// The graph, with fed shapes, so that the plan knows the sizes of transfers, and with the nodes that set its variables.
    pub(super) fn begin(&self, job: &StepRequest) -> Result<(Graph, Begin), Trouble> {
        let graph = job.graph_as_fed().into_owned();
        let map = self.map.rules()?;
        let (graph, weights) = match self.weights(map.as_ref()) {
            Some(at) => {
                let (graph, weights) = Weights::add_for(graph, at, job.fetches().into_iter().chain(job.targets()))?;
                if !self.quiet && at.path.is_dir() {
                    mention(format_args!("weights from {}", weights.origin));
                }
                weights.remarks.iter().filter(|_| !self.quiet).for_each(mention);
                (graph, Some(weights))
            }
            None => (graph, None),
        };
        let looks = job.runs_init && !self.init && weights.is_none();
        let (graph, init) = Init::of(graph, if looks { &job.init[..] } else { &[] });
        Ok((graph, Begin { init, weights }))
    }

    /// Gives the variables their values, unless they have some.
    pub(super) async fn set_variables(
        &self,
        (reached, session): (&Reached, &Session),
        job: &StepRequest,
        Begin { init, weights }: &Begin,
    ) -> Result<(), Trouble> {
        if let Some(weights) = weights {
            weights.set(session).await?;
        } else if self.init || job.runs_init {
            if init.is_due(session).await? {
                // Of a process's own cluster, no variable ever has a value.
                let is_told = job.runs_init && !self.init && !self.quiet && matches!(reached, Reached::Mesh { .. });
                if is_told && let Some(line) = first_values::line(reached, init, &runs::hash(&job.graph)).await {
                    eprintln!("{line}");
                }
                session.run().feeds(&job.feeds()).targets(job.init()).await?;
            } else if !self.quiet {
                eprintln!("the variables are initialized, so init is skipped; --init starts over");
            }
        }
        Ok(())
    }
}
