//! The division of large constants among several devices, before a graph is placed by cost.

use std::collections::BTreeSet;
use std::time::Duration;

use meshtf::Client;
use meshtf::client::Reach;
use meshtf::protocol::{Cluster, SessionOptions};
use meshtf_graph::plan::{self, Estimate, PlaceBy};
use meshtf_tensor::device::DeviceKind;

use super::Trouble;
use super::inputs::StepRequest;
use super::paint::mention;
use super::reach::Reached;

/// A constant of more bytes is divided among processors if steps are expected to be faster then.
const LARGE: u64 = 1 << 20;
/// Most parts of one.
const MAX_PARTS: usize = 8;
/// The expected time of a step with parts is at most this part of that without, in percent: the parts are other constants, which
/// tasks do not have yet.
const WORTH_PERCENT: u32 = 80;
/// Transfers take at most this part of the computing that is saved: memory may be some times as fast as it is estimated to be.
const SAVED_PART: u32 = 4;

impl StepRequest {
    /// Divides constants of a graph that is placed by cost: those that no device has the memory for; if there is none, matrices
    /// among the processors, where that is expected to make steps faster.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for parts without which no device has the graph.
    pub async fn divide(&mut self, place_by: PlaceBy, reached: &Reached, is_quiet: bool) -> Result<(), Trouble> {
        if place_by == PlaceBy::Names {
            return Ok(());
        }
        // The requests to a served model feed its inputs.
        let (fed, inputs) = (self.feeds.iter().map(|(tensor, _)| tensor), self.ports.feeds());
        let all = fed.chain(&inputs).chain(&self.fetches).chain(&self.targets).chain(&self.init);
        let named: Vec<&str> = all.map(String::as_str).collect();
        if let Some(parts) = plan::divided(&self.graph, &reached.live().facts(), &named)? {
            self.graph = parts;
            return Ok(());
        }
        let count = processors(&reached.live()).min(MAX_PARTS);
        if count < 2 {
            return Ok(());
        }
        // Without memory for the parts, the graph runs as it is.
        let Ok(Some(parts)) = plan::divided_among(&self.graph, count, LARGE, &named) else { return Ok(()) };
        let Some(whole) = self.expected(place_by, reached).await else { return Ok(()) };
        let undivided = std::mem::replace(&mut self.graph, parts);
        match self.expected(place_by, reached).await {
            Some(divided) if is_worth_it(&whole, &divided) => {
                if !is_quiet {
                    let (time, whole) = (time(&divided), time(&whole));
                    mention(format_args!(
                        "matrices are divided into {count} parts: a step is expected to take {time:.1?} in place of {whole:.1?}"
                    ));
                }
            }
            _ => self.graph = undivided,
        }
        Ok(())
    }

    /// The expectation of the master for a step; `None` if it cannot plan the graph, which the session says then.
    async fn expected(&self, place_by: PlaceBy, reached: &Reached) -> Option<Estimate> {
        let graph = self.graph_as_fed();
        let signature = self.signature().with_placeholders(&graph);
        let options = SessionOptions { place_by, soft_placement: true, ..SessionOptions::default() };
        reached.explain(&graph, None, signature, options).await.ok()?.estimate
    }
}

/// The time of a step, or in a series of steps that overlap the time from one end to the next.
fn time(of: &Estimate) -> Duration {
    of.interval.unwrap_or(of.step)
}

fn is_worth_it(whole: &Estimate, divided: &Estimate) -> bool {
    let saved = whole.path.computes.saturating_sub(divided.path.computes);
    time(divided) <= time(whole) / 100 * WORTH_PERCENT && divided.path.transfers <= saved / SAVED_PART
}

/// The processors that compute beside each other: the CPUs of a machine are one, and each GPU is one.
fn processors(cluster: &Cluster) -> usize {
    let machines: BTreeSet<usize> = cluster.machines().into_values().collect();
    let gpus = cluster.facts().iter().filter(|device| device.name.kind == DeviceKind::Gpu).count();
    machines.len() + gpus
}
