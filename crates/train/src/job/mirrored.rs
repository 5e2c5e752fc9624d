//! Mirrored training: each worker has a copy of all variables. Gradients are summed over all workers, each worker updates its
//! share of the variables, and keeps only the slots of that share; then the new values are sent to all.

use std::ops::Range;

use meshtf_graph::gradient::Gradient;
use meshtf_graph::variable::ops::{binary, cast, on};
use meshtf_graph::variable::{Variable, add_init, read, variable_of};
use meshtf_graph::{Graph, GraphBuilder, Node, NodeDef, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::exchange::Exchange;
use super::replicas::Replicas;
use super::shares::{Candidate, Division, Unit, divide};
use super::state::{Part, Shared, state};
use super::updates::{all_of, changed_in_steps};
use super::{Beside, Made, Team, held, mean, metrics, names_of_variables, places_of_trained};
use crate::clip::{self, Clip};
use crate::file::TrainSection;
use crate::minimize::{Applied, gradients_of_share};
use crate::ring::{BucketLimits, all_reduce};

/// Adds the updates of all replicas of a graph.
pub(super) fn add(
    g: &mut GraphBuilder,
    graph: &Graph,
    replicas: &Replicas,
    train: &TrainSection,
    checks: bool,
    limits: BucketLimits,
) -> Result<Made> {
    let count = replicas.count();
    let all: Vec<usize> = (0..count).collect();
    let (own, mut begun) = copies(g, graph, replicas)?;
    let (mut trained, mut found) = (Vec::new(), Vec::new());
    let places = places_of_trained(train, &own[0])?;
    for (i, variables) in own.iter().enumerate() {
        let of_replica: Vec<Variable> = places.iter().map(|&k| variables[k].clone()).collect();
        let loss = replicas.outputs(g, &train.loss, &[i])?[0];
        found.push(gradients_of_share(g, &[loss], 1.0 / count as f64, &of_replica)?);
        trained.push(of_replica);
    }
    let changed = changed_in_steps(graph, train)?;
    let division = division(train, &trained[0], &found[0], count, limits, |variable| changed.contains(&variable.name));
    let mut exchanges = Vec::with_capacity(division.units.len());
    for unit in &division.units {
        let exchange = Exchange::begin(g, unit, &trained)?;
        begun.extend(exchange.shares.iter().cloned());
        exchanges.push(exchange);
    }
    let losses = replicas.outputs(g, &train.loss, &all)?;
    g.settle()?;
    let first = g.settled().len();
    let mut sets = Vec::with_capacity(count);
    for (set, &loss) in found.iter().zip(&losses) {
        // If one worker's loss is not finite, no worker gets complete gradients.
        let home = g.device_of(loss);
        let number = on(g, &home, |g| cast(g, loss, DType::F32))?;
        sets.push(held(g, number, set, checks)?);
    }
    let mut parts = sums(g, &trained, &sets, &division, &exchanges, limits)?;
    g.settle()?;
    let early = first..g.settled().len();
    let loss = mean(g, "train/loss", &losses)?;
    if let Some(clip) = train.training.clip {
        limit(g, &trained, &mut parts, clip)?;
    }
    let variables: Vec<Vec<Variable>> =
        parts.iter().map(|own| own.iter().map(|part| part.variable.clone()).collect()).collect();
    let (mut applied, mut updates) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (i, own) in variables.iter().enumerate() {
        let worker = Applied::begin(g, own, &train.training, &trained[i][0].device, &replicas.prefix(i))?;
        let sums: Vec<Gradient> = parts[i].iter().map(|part| part.sum).collect();
        updates.push(worker.updates(g, &sums)?);
        applied.push(worker);
    }
    let arrivals = values(g, &exchanges, &parts, &updates)?;
    let mut runs = Vec::with_capacity(count);
    for (i, worker) in applied.iter().enumerate() {
        runs.push(worker.step(g, &updates[i], &arrivals[i], &[])?);
    }
    let prefixes: Vec<String> = all.iter().map(|&i| replicas.prefix(i)).collect();
    let shared = Shared { own: &own, trained: &trained, places: &places, exchanges: &exchanges, parts: &parts };
    let (state, added) = state(g, &shared, &applied, &prefixes)?;
    begun.extend(added);
    let init = add_init(g, "train/init", &begun)?;
    let home = g.device_of(runs[0]);
    let run = all_of(g, "train/all", &home, runs)?;
    let team = Team { loss, metrics: metrics(g, replicas, train, &all)?, run };
    Ok(Made { init, teams: vec![team], state, early, beside: Beside::default() })
}

/// The variables of each worker, and those of them that begin with the value of the first worker's: random first values are to be
/// the same for all, and the optimizer's slots may start from them.
pub(super) fn copies(
    g: &mut GraphBuilder,
    graph: &Graph,
    replicas: &Replicas,
) -> Result<(Vec<Vec<Variable>>, Vec<Variable>)> {
    let names = names_of_variables(graph);
    let mut own = Vec::with_capacity(replicas.count());
    for i in 0..replicas.count() {
        let variables = names.iter().map(|name| variable_of(g, &replicas.named(name, i)));
        own.push(variables.collect::<Result<Vec<Variable>>>()?);
    }
    let mut begun = Vec::new();
    let (first, others) = own.split_at_mut(1);
    for copies in others {
        for (variable, copy) in first[0].iter().zip(copies) {
            copy.assign = Some(take_over(g, variable, copy)?);
            begun.push(copy.clone());
        }
    }
    Ok((own, begun))
}

/// The division of the trained variables: by the gradients of one worker, and by the optimizer.
fn division(
    train: &TrainSection,
    trained: &[Variable],
    gradients: &[Gradient],
    count: usize,
    limits: BucketLimits,
    is_changed: impl Fn(&Variable) -> bool,
) -> Division {
    let can_be_cut = train.training.optimizer.is_elementwise();
    let mut dense: Vec<usize> =
        (0..trained.len()).filter(|&place| matches!(gradients[place], Gradient::Dense(_))).collect();
    // A gradient is added to the graph before those that are computed from it, and so has a smaller index.
    dense.sort_by_key(|&place| clip::values(&gradients[place]).node);
    let candidate = |&place: &usize| {
        let Variable { dtype, shape, .. } = &trained[place];
        // The pieces of a variable are kept apart from it, and would not have what another node assigns to it.
        let can_be_cut = can_be_cut && !is_changed(&trained[place]);
        Candidate { place, dtype: *dtype, elements: shape.elements().unwrap_or(0), can_be_cut }
    };
    let mut division = divide(&dense.iter().map(candidate).collect::<Vec<_>>(), count, limits);
    let is_sparse = |&place: &usize| matches!(gradients[place], Gradient::Sparse(_));
    division.whole.extend((0..trained.len()).filter(is_sparse));
    division.whole.sort_unstable();
    division
}

/// Adds the sums of the gradients. Returns what each worker updates by them.
fn sums(
    g: &mut GraphBuilder,
    trained: &[Vec<Variable>],
    sets: &[Vec<Gradient>],
    division: &Division,
    exchanges: &[Exchange],
    limits: BucketLimits,
) -> Result<Vec<Vec<Part>>> {
    let mut parts: Vec<Vec<Part>> = trained.iter().map(|_| Vec::new()).collect();
    for (unit, exchange) in exchanges.iter().enumerate() {
        let summed = g.with_scope("train/all_reduce", |g| exchange.sums(g, sets))?;
        for (index, (variable, sum)) in summed.into_iter().enumerate() {
            let owner = match exchange.unit {
                Unit::Owned { owner, .. } => *owner,
                Unit::Cut { pieces, .. } => pieces[index].owner,
            };
            parts[owner].push(Part { variable, sum: Gradient::Dense(sum), unit: Some((unit, index)) });
        }
    }
    let chosen = |all: &[Vec<Variable>]| -> Vec<Vec<Variable>> {
        all.iter().map(|own| division.whole.iter().map(|&place| own[place].clone()).collect()).collect()
    };
    let gradients: Vec<Vec<Gradient>> =
        sets.iter().map(|set| division.whole.iter().map(|&place| set[place]).collect()).collect();
    let variables = chosen(trained);
    let whole = all_reduce(g, &variables, &gradients, limits)?;
    for ((own, variables), sums) in parts.iter_mut().zip(variables).zip(whole) {
        own.extend(variables.into_iter().zip(sums).map(|(variable, sum)| Part { variable, sum, unit: None }));
    }
    Ok(parts)
}

/// Limits the sums. The norm is that of all gradients: each worker adds up the squares of its own, and all add up these sums in
/// one order, so that they limit by the same number.
fn limit(g: &mut GraphBuilder, trained: &[Vec<Variable>], parts: &mut [Vec<Part>], clip: Clip) -> Result<()> {
    clip::check(clip)?;
    g.with_scope("clip", |g| {
        let gradients: Vec<Vec<Gradient>> = parts.iter().map(|own| own.iter().map(|part| part.sum).collect()).collect();
        let limited = match clip {
            Clip::Value(limit) => {
                gradients.iter().map(|own| clip::within(g, own, limit)).collect::<Result<Vec<_>>>()?
            }
            Clip::GlobalNorm(limit) => {
                let (mut of_shares, mut of_whole) = (Vec::new(), Vec::new());
                for (i, own) in gradients.iter().enumerate() {
                    let halves = clip::half_squares(g, own)?.into_iter().zip(&parts[i]);
                    let (share, whole): (Vec<_>, Vec<_>) = halves.partition(|(_, part)| part.unit.is_some());
                    if !share.is_empty() {
                        let halves = share.into_iter().map(|(half, _)| half);
                        of_shares.push(on(g, &trained[i][0].device, |g| g.op("AddN").inputs(halves).build())?);
                    }
                    of_whole.push(whole.into_iter().map(|(half, _)| half).collect::<Vec<_>>());
                }
                let mut limited = Vec::with_capacity(gradients.len());
                for (i, own) in gradients.iter().enumerate() {
                    let halves = [&of_shares[..], &of_whole[i][..]].concat();
                    limited.push(on(g, &trained[i][0].device, |g| {
                        let (_, factor) = clip::factor(g, &halves, limit)?;
                        clip::scaled(g, own, factor)
                    })?);
                }
                limited
            }
        };
        for (own, limited) in parts.iter_mut().zip(limited) {
            own.iter_mut().zip(limited).for_each(|(part, sum)| part.sum = sum);
        }
        Ok(())
    })
}

/// Adds the assignments of the updated values on all workers; returns those on each.
fn values(
    g: &mut GraphBuilder,
    exchanges: &[Exchange],
    parts: &[Vec<Part>],
    updates: &[Vec<Output>],
) -> Result<Vec<Vec<Output>>> {
    let mut of_unit: Vec<Vec<(usize, Output)>> = exchanges.iter().map(|_| Vec::new()).collect();
    for (part, &update) in parts.iter().flatten().zip(updates.iter().flatten()) {
        if let Some((unit, index)) = part.unit {
            of_unit[unit].push((index, update));
        }
    }
    let mut arrivals: Vec<Vec<Output>> = parts.iter().map(|_| Vec::new()).collect();
    for (exchange, mut updates) in exchanges.iter().zip(of_unit) {
        updates.sort_by_key(|&(index, _)| index);
        let updates: Vec<Output> = updates.into_iter().map(|(_, update)| update).collect();
        let assigned = g.with_scope("train/all_gather", |g| exchange.values(g, &updates))?;
        arrivals.iter_mut().zip(assigned).for_each(|(own, node)| own.extend(node));
    }
    Ok(arrivals)
}

/// Adds the assignment of a variable's value to a copy of it.
fn take_over(g: &mut GraphBuilder, variable: &Variable, copy: &Variable) -> Result<Output> {
    let value = on(g, &variable.device, |g| read(g, variable.handle, variable.is_ref, variable.dtype).build())?;
    let assign = if copy.is_ref { "Assign" } else { "AssignVariableOp" };
    on(g, &copy.device, |g| binary(g, assign, copy.handle, value))
}

/// A graph in which the nodes of a range, and the nodes that are computed for them alone, directly follow their inputs: a
/// device runs ready nodes in the order of the graph, and gradients are to be sent before the next ones are computed. So the
/// gradient of a layer's weights is computed before that of its input. Also returns the new id of each node.
pub(super) fn sooner(graph: Graph, range: &Range<usize>) -> Result<(Graph, Vec<NodeId>)> {
    if range.is_empty() {
        let places = graph.nodes().map(|(id, _)| id).collect();
        return Ok((graph, places));
    }
    let is_early = early(&graph, range);
    let mut keys: Vec<usize> = (0..graph.len()).collect();
    for (id, node) in graph.nodes().filter(|(id, _)| is_early[id.index()]) {
        let before = node.sources();
        keys[id.index()] = before.map(|from| keys[from.index()]).max().unwrap_or(0);
    }
    let mut order: Vec<usize> = (0..graph.len()).collect();
    order.sort_by_key(|&at| (keys[at], at));
    let mut places = vec![NodeId(0); order.len()];
    let mut defs: Vec<Option<NodeDef>> = graph.to_defs().into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(order.len());
    for (place, &at) in (0..).zip(&order) {
        places[at] = NodeId(place);
        sorted.extend(defs[at].take());
    }
    Ok((Graph::new(sorted)?, places))
}

/// By node: whether it is in the range, or stateless and consumed by nodes of the range alone.
fn early(graph: &Graph, range: &Range<usize>) -> Vec<bool> {
    let (mut is_taken, mut is_taken_late) = (vec![false; graph.len()], vec![false; graph.len()]);
    for (id, node) in graph.nodes() {
        let taken = if range.contains(&id.index()) { &mut is_taken } else { &mut is_taken_late };
        let before = node.sources();
        before.for_each(|from| taken[from.index()] = true);
    }
    let is_early = |id: usize, node: &Node| {
        range.contains(&id) || is_taken[id] && !is_taken_late[id] && !node.op.stateful && !node.inputs.is_empty()
    };
    graph.nodes().map(|(id, node)| is_early(id.index(), node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::PartialShape;

    #[test]
    fn gradients_of_weights_are_computed_before_those_of_the_layers_below() {
        let mut g = GraphBuilder::new();
        let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN).expect("a placeholder");
        let mut add = |name: &str, op: &str, inputs: &[Output]| {
            g.op(op).name(name).inputs(inputs.iter().copied()).build().expect("a node")
        };
        let by_y = add("by_y", "Neg", &[x]);
        let by_x = add("by_x", "MatMul", &[by_y, x]);
        let by_w = add("by_w", "MatMul", &[x, by_y]);
        let by_lower = add("by_lower", "MatMul", &[x, by_x]);
        let first = 5;
        let sent = add("sent", "Identity", &[by_w]);
        let later = add("later", "Identity", &[by_lower]);
        add("update", "Add", &[sent, later]);
        let (graph, places) = sooner(g.finish().expect("a graph"), &(first..first + 2)).expect("an order");
        let names: Vec<&str> = graph.nodes().map(|(_, node)| node.name.as_str()).collect();
        assert_eq!(names, ["x", "by_y", "by_w", "sent", "by_x", "by_lower", "later", "update"]);
        assert!(names.iter().enumerate().all(|(at, name)| graph.find(name) == Some(NodeId(at as u32))));
        assert_eq!(places[by_w.node.index()], NodeId(2));
    }
}
