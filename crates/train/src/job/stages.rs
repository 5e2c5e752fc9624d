//! The division of a model into stages, one on each worker (mode pipeline): by its arithmetic, where few values are sent.

use std::collections::BTreeMap;

use meshtf_graph::op::Role;
use meshtf_graph::variable::Variable;
use meshtf_graph::{Attr, Attrs, Graph, GraphBuilder, NodeId, Output, operations};
use meshtf_tensor::PartialShape;
use meshtf_tensor::failure::{Failure, Result, counted};

use super::cuts::Row;
use super::units::Units;
use super::{FedPlaceholder, trained_of, variables};
use crate::file::TrainSection;

/// A stage of a model, for reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its task of job `worker`.
    pub task: usize,
    /// The variables that are trained on it.
    pub variables: Vec<String>,
    /// The number of their elements.
    pub parameters: u64,
    /// Its share of the arithmetic of the loss, from 0 to 1.
    pub share: f64,
    /// The elements that the cut before it sends to it and later stages for an example.
    pub receives: f64,
}

/// The division of a model.
pub(super) struct Stages {
    /// By node: its stage; `None` for one that may be anywhere.
    pub of: Vec<Option<usize>>,
    /// By node: whether the loss needs it.
    pub needed: Vec<bool>,
    pub each: Vec<Stage>,
}

impl Stages {
    /// The division into as many stages as there are tasks. Micro-batches have up to `rows` examples.
    ///
    /// # Errors
    /// InvalidArgument for a loss or a variable that does not exist, and if there are fewer places for cuts.
    pub fn of(
        graph: &Graph,
        train: &TrainSection,
        parts: &[FedPlaceholder],
        (is_copied, tasks): (&[bool], &[usize]),
        constants: &[&str],
        rows: usize,
    ) -> Result<Stages> {
        let mut g = GraphBuilder::from(graph.clone());
        let all = variables(&mut g)?;
        let trained = trained_of(train, &all)?;
        if trained.is_empty() {
            return Err(Failure::invalid("there is no variable to train"));
        }
        let loss = graph.output(&train.loss)?;
        let units = Units::of(graph, loss, &trained, is_copied, constants);
        let sized = Sized::of(graph, parts, rows)?;
        let row = row(graph, &sized, &units, (&trained[..], is_copied), rows);
        if row.most() == 0 {
            return Err(Failure::invalid(format!("the loss {} depends on no variable that is trained", train.loss)));
        }
        let Some(starts) = row.cut(tasks.len()) else {
            return Err(Failure::invalid(format!(
                "\"workers\" is {}, and the model has {} at most: each trains a variable, and what uses a variable is in one stage",
                tasks.len(),
                counted(row.most(), "stage")
            )));
        };
        let stage_at = |place: usize| starts.partition_point(|&start| start <= place) - 1;
        let ends = starts[1..].iter().copied().chain([units.count]);
        let whole: f64 = row.work.iter().sum();
        let mut each: Vec<Stage> = starts
            .iter()
            .zip(ends)
            .zip(tasks)
            .map(|((&start, end), &task)| Stage {
                task,
                variables: Vec::new(),
                parameters: 0,
                share: row.work[start..end].iter().sum::<f64>() / whole.max(f64::MIN_POSITIVE),
                receives: if start == 0 { 0.0 } else { row.crossing[start] },
            })
            .collect();
        for variable in &trained {
            if let Some(place) = units.place(variable.handle.node) {
                let stage = &mut each[stage_at(place)];
                stage.parameters += variable.shape.elements().unwrap_or(0) as u64;
                stage.variables.push(variable.name.clone());
            }
        }
        let first = |unit: usize| units.places[unit].map(stage_at);
        Ok(Stages { of: all_nodes(graph, &units, first), needed: units.needed, each })
    }
}

/// The sizes of a model whose placeholders have this many examples.
struct Sized {
    graph: Graph,
    /// By node of the model: its id here.
    ids: Vec<NodeId>,
}

impl Sized {
    fn of(graph: &Graph, parts: &[FedPlaceholder], rows: usize) -> Result<Sized> {
        let mut defs = graph.to_defs();
        for part in parts {
            if let Some(id) = graph.find(&part.name) {
                let sizes = std::iter::once(rows).chain(part.example.iter().copied()).map(Some).collect();
                defs[id.index()].attrs.set("shape", Attr::Shape(PartialShape(Some(sizes))));
            }
        }
        // The default of a placeholder has sizes that the placeholder need not state.
        for ((_, node), def) in graph.nodes().zip(&mut defs).filter(|((_, node), _)| node.op.is_fed) {
            if node.op.role != Role::Placeholder && node.inputs.len() == 1 {
                def.op = "Identity".to_owned();
                def.attrs = Attrs::from([("T", node.outputs[0].dtype.into())]);
            }
        }
        let sized = Graph::new(defs)?;
        let ids = graph.nodes().filter_map(|(_, node)| sized.find(&node.name)).collect();
        Ok(Sized { graph: sized, ids })
    }

    /// The elements of a tensor of the model; 1 if they are not known.
    fn elements(&self, output: Output) -> f64 {
        let own = Output { node: self.ids[output.node.index()], ..output };
        self.graph.shapes().known(own).and_then(|shape| shape.elements()).unwrap_or(1) as f64
    }

    fn operations(&self, id: NodeId) -> f64 {
        operations(&self.graph, self.ids[id.index()]).unwrap_or(0) as f64
    }
}

/// The units of a model, with their work for a micro-batch of `rows` examples.
fn row(graph: &Graph, sized: &Sized, units: &Units, (trained, is_copied): (&[Variable], &[bool]), rows: usize) -> Row {
    let mut row =
        Row { work: vec![0.0; units.count], trains: vec![false; units.count], crossing: vec![0.0; units.count + 1] };
    for place in trained.iter().filter_map(|variable| units.place(variable.handle.node)) {
        row.trains[place] = true;
    }
    // The first place that makes or takes a value, and the last.
    let mut spans: BTreeMap<Output, (usize, usize)> = BTreeMap::new();
    for (id, node) in graph.nodes().filter(|(id, _)| units.needed[id.index()]) {
        let Some(place) = units.place(id) else { continue };
        if is_copied[id.index()] {
            // An element that is only moved takes time, too.
            let made = (0..node.outputs.len() as u32).map(|port| sized.elements(Output { node: id, port }));
            row.work[place] += sized.operations(id) + made.sum::<f64>();
        }
        for &input in node.inputs.iter().filter(|input| graph.node(input.node).op.role != Role::Const) {
            let made = units.place(input.node).unwrap_or(place);
            let (low, high) = spans.entry(input).or_insert((made, made));
            (*low, *high) = ((*low).min(made).min(place), (*high).max(place));
        }
    }
    let mut change = vec![0.0; units.count + 2];
    for (value, (low, high)) in spans.into_iter().filter(|(_, (low, high))| low < high) {
        let sent = sized.elements(value) / rows.max(1) as f64;
        change[low + 1] += sent;
        change[high + 1] -= sent;
    }
    let mut sum = 0.0;
    for (crossing, change) in row.crossing.iter_mut().zip(change) {
        sum += change;
        *crossing = f64::max(sum, 0.0);
    }
    row
}

/// The stages of all nodes, given those of the units: a node that only the examples determine is on the first stage that takes
/// its value, and one that the loss does not need is on the last stage of which it takes a value.
fn all_nodes(graph: &Graph, units: &Units, first: impl Fn(usize) -> Option<usize>) -> Vec<Option<usize>> {
    let mut of: Vec<Option<usize>> = (0..graph.len()).map(first).collect();
    let is_fixed: Vec<bool> = of.iter().map(Option::is_some).collect();
    let group = |id: NodeId| units.together[id.index()];
    let is_group = |id: NodeId| graph.node(id).op.role == Role::Nothing;
    earlier(graph, units, &mut of, (&is_fixed, &|id| units.needed[id.index()]));
    let is_settled: Vec<bool> = of.iter().map(Option::is_some).collect();
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (id, node) in graph.nodes().filter(|(id, _)| !is_settled[group(*id)] && !is_group(*id)) {
            let last = node.sources().filter(|&from| !is_group(from)).filter_map(|from| of[group(from)]).max();
            if last > of[group(id)] {
                (of[group(id)], is_changed) = (last, true);
            }
        }
    }
    // The first values of variables, for example.
    let is_settled: Vec<bool> = of.iter().map(Option::is_some).collect();
    earlier(graph, units, &mut of, (&is_settled, &|_| true));
    (0..graph.len()).map(|at| of[units.together[at]]).collect()
}

/// Puts what these nodes take on the first stage that takes it, unless it has one.
fn earlier(
    graph: &Graph,
    units: &Units,
    of: &mut [Option<usize>],
    (is_fixed, takes): (&[bool], &dyn Fn(NodeId) -> bool),
) {
    let group = |id: NodeId| units.together[id.index()];
    let is_group = |id: NodeId| graph.node(id).op.role == Role::Nothing;
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for (id, node) in graph.nodes().rev().filter(|(id, _)| takes(*id) && !is_group(*id)) {
            let Some(own) = of[group(id)] else { continue };
            for from in node.sources().filter(|&from| !is_fixed[group(from)] && !is_group(from)) {
                let known = &mut of[group(from)];
                if known.is_none_or(|known| known > own) {
                    (*known, is_changed) = (Some(own), true);
                }
            }
        }
    }
}
