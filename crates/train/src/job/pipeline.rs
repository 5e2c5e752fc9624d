//! Training in stages: micro-batches of a batch go forward and back through the stages, each of which has its variables and
//! their slots; the gradients of all micro-batches make one update.
//!
//! Nothing but values and their gradients is sent from stage to stage, once for each micro-batch. The gradient of the loss of a
//! micro-batch is weighted by its share of the batch, so that the sum is the gradient of the mean over the whole batch.

use meshtf_graph::gradient::{Gradient, Rows};
use meshtf_graph::variable::ops::on;
use meshtf_graph::variable::{Variable, add_init};
use meshtf_graph::{GraphBuilder, NodeId, Output};
use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::{Failure, Result};

use super::kept::Kept;
use super::microbatches::{Cut, mean};
use super::replicas::{Replicas, within};
use super::turns::{Nodes, Turn, in_order, turns};
use super::{Beside, Made, Team, held, trained_of, variables, without};
use crate::Trained;
use crate::file::TrainSection;
use crate::minimize::{apply_each, gradients_of_share};

/// Adds the update of a batch, and the order of the turns.
pub(super) fn add(g: &mut GraphBuilder, replicas: &Replicas, train: &TrainSection, checks: bool) -> Result<Made> {
    let Some(cut) = &replicas.cut else { return Err(Failure::invalid("a model in mode pipeline has stages")) };
    let variables = variables(g)?;
    let trained = trained_of(train, &variables)?;
    let batch: usize = cut.sizes.iter().sum();
    let all: Vec<usize> = (0..cut.sizes.len()).collect();
    let losses = replicas.outputs(g, &train.loss, &all)?;
    let mut sum = Sum { dense: vec![None; trained.len()], rows: vec![Vec::new(); trained.len()] };
    let mut backward = Vec::with_capacity(all.len());
    for (&loss, &size) in losses.iter().zip(&cut.sizes) {
        g.settle()?;
        let first = g.settled().len();
        let found = gradients_of_share(g, &[loss], size as f64 / batch as f64, &trained)?;
        let ends = sum.add(g, &trained, found)?;
        g.settle()?;
        backward.push(Backward { first, ends });
    }
    let gradients = sum.whole(g, &trained)?;
    let loss = mean(g, "train/loss", &losses, &cut.sizes)?;
    let set = held(g, loss, &gradients, checks)?;
    let (Trained { variables: added, .. }, runs) = apply_each(g, &trained, &[set], &train.training, &[])?;
    let added = without(added, &variables);
    let init = add_init(g, "train/init", &added)?;
    let mut metrics = Vec::with_capacity(train.metrics.len());
    for name in &train.metrics {
        let of_each = replicas.outputs(g, name, &all)?;
        metrics.push(mean(g, "train/metric", &of_each, &cut.sizes)?);
    }
    let after = order(g, replicas, cut, &backward)?;
    let state = variables.into_iter().chain(added).map(Kept::alone).collect();
    let team = Team { loss, metrics, run: runs[0] };
    Ok(Made { init, teams: vec![team], state, early: 0..0, beside: Beside { after, ..Beside::default() } })
}

/// The nodes that were added for the gradients of a micro-batch: from the first one on, up to those of the next one.
struct Backward {
    first: usize,
    /// Those by which its gradients are added to the sums.
    ends: Vec<Output>,
}

/// The sums of gradients so far, by variable.
struct Sum {
    dense: Vec<Option<Output>>,
    /// Those of a gradient of which only some rows are stated.
    rows: Vec<Vec<Rows>>,
}

impl Sum {
    /// Adds the gradients of a micro-batch; returns the nodes with which these have been added.
    fn add(&mut self, g: &mut GraphBuilder, trained: &[Variable], found: Vec<Gradient>) -> Result<Vec<Output>> {
        let mut ends = Vec::with_capacity(found.len());
        for ((variable, gradient), (sum, rows)) in
            trained.iter().zip(found).zip(self.dense.iter_mut().zip(&mut self.rows))
        {
            match (gradient, *sum) {
                (Gradient::Dense(own), None) => *sum = Some(own),
                (Gradient::Dense(own), Some(before)) => {
                    *sum = Some(on(g, &variable.device, |g| {
                        g.op("AddV2").name("train/sum").input(before).input(own).build()
                    })?);
                }
                (Gradient::Sparse(own), _) => {
                    rows.push(own);
                    ends.extend([own.values, own.indices]);
                }
            }
            ends.extend(*sum);
        }
        Ok(ends)
    }

    /// The gradients of the batch.
    fn whole(self, g: &mut GraphBuilder, trained: &[Variable]) -> Result<Vec<Gradient>> {
        let mut all = Vec::with_capacity(trained.len());
        for ((variable, sum), rows) in trained.iter().zip(self.dense).zip(self.rows) {
            all.push(match (sum, &rows[..]) {
                (Some(sum), _) => Gradient::Dense(sum),
                (None, [only]) => Gradient::Sparse(*only),
                (None, [first, ..]) => on(g, &variable.device, |g| {
                    let joined = |g: &mut GraphBuilder, all: Vec<Output>| {
                        g.op("ConcatV2").name("train/rows").inputs(all).input(0).build()
                    };
                    let values = joined(g, rows.iter().map(|own| own.values).collect())?;
                    let indices = joined(g, rows.iter().map(|own| own.indices).collect())?;
                    Ok(Gradient::Sparse(Rows { values, indices, ..*first }))
                })?,
                (None, []) => return Err(Failure::invalid(format!("{} has no gradient", variable.name))),
            });
        }
        Ok(all)
    }
}

/// Adds the order of the turns of all stages: which nodes wait for which.
fn order(g: &mut GraphBuilder, replicas: &Replicas, cut: &Cut, backward: &[Backward]) -> Result<Vec<(String, String)>> {
    g.settle()?;
    let stages = cut.stages.each.len();
    let mut forwards: Vec<Vec<Nodes>> = vec![vec![Nodes::new(); cut.sizes.len()]; stages];
    for (id, node) in
        replicas.graph.nodes().filter(|(id, _)| cut.stages.needed[id.index()] && replicas.is_copied[id.index()])
    {
        let stage = cut.stages.of[id.index()].unwrap_or(0);
        for (m, nodes) in forwards[stage].iter_mut().enumerate() {
            nodes.extend(g.settled().find(&replicas.named(&node.name, m)));
        }
    }
    let mut backwards: Vec<Vec<Nodes>> = vec![vec![Nodes::new(); cut.sizes.len()]; stages];
    for (m, own) in backward.iter().enumerate() {
        for id in added_before(g, own) {
            let device: DeviceSpec = g.settled().node(id).device.parse().unwrap_or_default();
            let task = device.task.filter(|_| device.job.as_deref() == Some("worker"));
            let stage = task.and_then(|task| cut.stages.each.iter().position(|one| one.task == task as usize));
            if let Some(stage) = stage {
                backwards[stage][m].push(id);
            }
        }
    }
    let mut waits = Vec::new();
    for stage in 0..stages {
        let nodes = |turn: Turn| match turn {
            Turn::Forward(m) => forwards[stage][m].clone(),
            Turn::Backward(m) => backwards[stage][m].clone(),
        };
        let all: Vec<Nodes> = turns(stage, stages, cut.sizes.len()).into_iter().map(nodes).collect();
        waits.extend(in_order(g, &within("", "worker", replicas.task_of(stage))?, &all)?);
    }
    Ok(waits)
}

/// The nodes of a micro-batch's gradients that its ends depend on.
fn added_before(g: &GraphBuilder, Backward { first, ends }: &Backward) -> Vec<NodeId> {
    let graph = g.settled();
    let (mut seen, mut open) = (vec![false; graph.len()], Vec::new());
    let mut found = Vec::new();
    open.extend(ends.iter().map(|end| end.node));
    while let Some(id) = open.pop() {
        if id.index() >= *first && !std::mem::replace(&mut seen[id.index()], true) {
            found.push(id);
            open.extend(graph.node(id).sources());
        }
    }
    found
}
