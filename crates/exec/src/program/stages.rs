//! The stages of a piece without loops and branches: each has the nodes that wait for the same receives.
//!
//! The values that have arrived decide which nodes can run, so nothing is counted per node: once all receives of a stage have
//! their values, its nodes run one after the other. Nodes that do nothing are left out, and nodes that only pass a value on are
//! bypassed, except in a step that is traced, whose trace has every node.

use std::collections::HashMap;

use meshtf_graph::op;
use meshtf_graph::plan::{Mode, Piece};

use super::code::{Act, PieceCode, Placed, Receive, Route, Stage, Stages, op_name};

/// Most receives of all stages together, as a multiple of the nodes of the piece. Beyond it, counting per node costs less.
const MOST_WAITS_PER_NODE: usize = 16;

/// The stages of a piece in which only receives can wait; `None` if there would be too many.
pub(super) fn stages(piece: &Piece, code: &PieceCode, acts: &[Act]) -> Option<Stages> {
    let mut sets = Sets::new(MOST_WAITS_PER_NODE * piece.nodes.len() + 1024);
    let mut receives = Vec::new();
    let mut by_transfer = HashMap::new();
    let mut set_of = Vec::with_capacity(piece.nodes.len());
    for (i, node) in piece.nodes.iter().enumerate() {
        let before = node.inputs.iter().map(|&(from, _)| from).chain(node.control.iter().copied());
        let mut set = 0;
        for from in before {
            set = sets.union(set, set_of[from as usize])?;
        }
        if let Act::Recv { transfer, .. } = acts[i] {
            if set != 0 || by_transfer.insert(transfer, receives.len() as u32).is_some() {
                return None;
            }
            set = sets.intern(vec![receives.len() as u32])?;
            receives.push(i as u32);
        }
        set_of.push(set);
    }

    let sources = sources(piece, code, acts);
    let hands_on = |i: usize| sources[i].is_some() || matches!(acts[i], Act::Nothing);
    let after = after_kernels(piece, acts, hands_on);
    let is_traced = code.mode == Mode::Traced;
    let sources = if is_traced { vec![None; sources.len()] } else { sources };
    let mut order: Vec<u32> = (0..piece.nodes.len() as u32).filter(|&i| runs(code, acts, &sources, i)).collect();
    let rank = |i: u32| (sets.members[set_of[i as usize] as usize].len(), set_of[i as usize]);
    order.sort_by_key(|&i| (rank(i), i));

    let mut routes = Routes::of(piece, code, &sources);
    let mut stages: Vec<Stage> = Vec::new();
    let mut waiting = vec![Vec::new(); receives.len()];
    let mut last_set = None;
    let mut nodes = Vec::with_capacity(order.len());
    for i in order {
        let set = set_of[i as usize];
        if last_set.replace(set) != Some(set) {
            let members = &sets.members[set as usize];
            members.iter().for_each(|&receive| waiting[receive as usize].push(stages.len() as u32));
            let at = nodes.len() as u32;
            stages.push(Stage { first: at, end: at, waits: members.len() as u32 });
        }
        let is_pure = is_pure(piece, acts, i as usize);
        nodes.push(Placed { is_pure, is_after: after[i as usize], ..routes.place(i) });
        stages.last_mut()?.end += 1;
    }
    let placed = receives.into_iter().map(|i| routes.place(i)).zip(waiting);
    let receives = placed.map(|(placed, stages)| Receive { placed, stages }).collect();
    Some(Stages { stages, nodes, receives, routes: routes.all, by_transfer })
}

/// Whether a node runs by itself.
fn runs(code: &PieceCode, acts: &[Act], sources: &[Source], i: u32) -> bool {
    match acts[i as usize] {
        Act::Recv { .. } => false,
        Act::Nothing => code.nodes[i as usize].inputs > 0 || code.mode == Mode::Traced,
        _ => sources[i as usize].is_none(),
    }
}

/// Whether a node is a kernel that touches nothing but its inputs.
fn is_pure(piece: &Piece, acts: &[Act], i: usize) -> bool {
    let is_stateful = || op::lookup(op_name(&piece.nodes[i].op)).is_none_or(|op| op.stateful);
    matches!(acts[i], Act::Kernel { .. }) && !is_stateful()
}

/// By node: whether a control edge orders it after a kernel, directly or through nodes that only pass a value on. A pure kernel
/// keeps the order that its own control edges state, but not the order stated by control edges of pass-through nodes on the way
/// of its inputs: no one can observe it.
fn after_kernels(piece: &Piece, acts: &[Act], hands_on: impl Fn(usize) -> bool) -> Vec<bool> {
    let mut after = Vec::with_capacity(piece.nodes.len());
    // By node: whether a kernel has answered once it is done; and whether that follows from control edges of nodes that only
    // pass a value on.
    let (mut follows, mut is_ordered): (Vec<bool>, Vec<bool>) = (Vec::new(), Vec::new());
    for (i, node) in piece.nodes.iter().enumerate() {
        let of = |known: &[bool], from: u32| known.get(from as usize).is_some_and(|&known| known);
        let is_named = node.control.iter().any(|&from| of(&follows, from));
        let comes_ordered = node.inputs.iter().any(|&(from, _)| of(&is_ordered, from));
        let comes_after = node.inputs.iter().any(|&(from, _)| of(&follows, from));
        let hands_on = hands_on(i);
        after.push(!hands_on && (is_named || comes_ordered && !is_pure(piece, acts, i)));
        is_ordered.push(hands_on && (is_named || comes_ordered));
        follows.push(matches!(acts[i], Act::Kernel { .. }) || hands_on && (is_named || comes_after));
    }
    after
}

/// For a node that passes its input on as it is: the output that this is in the end, of a node that runs.
type Source = Option<(u32, u32)>;

/// The source of every node. `None` if the input may be a reference, which is resolved on its way.
fn sources(piece: &Piece, code: &PieceCode, acts: &[Act]) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::with_capacity(piece.nodes.len());
    for (i, node) in piece.nodes.iter().enumerate() {
        // An input comes before the node: only a loop leads back, and a piece with stages has none.
        let source = match (&acts[i], node.inputs.first()) {
            (Act::Forward, Some(&(from, port))) if code.nodes[i].input_refs == 0 => match acts[from as usize] {
                Act::Kernel { .. } | Act::Recv { .. } | Act::Feed { .. } | Act::Const(_) => Some((from, port)),
                Act::Forward => sources.get(from as usize).copied().flatten(),
                _ => None,
            },
            _ => None,
        };
        sources.push(source);
    }
    sources
}

/// The targets of every node's outputs.
struct Routes {
    /// By node: port and slot, in the order of the ports.
    of: Vec<Vec<(u32, u32)>>,
    all: Vec<Route>,
}

impl Routes {
    fn of(piece: &Piece, code: &PieceCode, sources: &[Source]) -> Routes {
        let mut of = vec![Vec::new(); piece.nodes.len()];
        for (i, node) in piece.nodes.iter().enumerate().filter(|&(i, _)| sources[i].is_none()) {
            for (input, &(from, port)) in node.inputs.iter().enumerate() {
                let (from, port) = sources[from as usize].unwrap_or((from, port));
                of[from as usize].push((port, code.nodes[i].first_input + input as u32));
            }
        }
        of.iter_mut().for_each(|routes: &mut Vec<(u32, u32)>| routes.sort_by_key(|route| route.0));
        Routes { of, all: Vec::new() }
    }

    fn place(&mut self, node: u32) -> Placed {
        let own = std::mem::take(&mut self.of[node as usize]);
        let first_route = self.all.len() as u32;
        self.all.extend(own.iter().enumerate().map(|(k, &(port, slot))| {
            let is_last = own.get(k + 1).is_none_or(|next| next.0 != port);
            Route { port, slot, is_last }
        }));
        Placed { node, first_route, end_route: self.all.len() as u32, is_pure: false, is_after: false }
    }
}

/// Sets of receives, each kept once. Number 0 is the empty one.
struct Sets {
    members: Vec<Vec<u32>>,
    numbers: HashMap<Vec<u32>, u32>,
    unions: HashMap<(u32, u32), u32>,
    /// The number of members that may still be examined.
    budget: usize,
}

impl Sets {
    fn new(budget: usize) -> Sets {
        Sets { members: vec![Vec::new()], numbers: HashMap::from([(Vec::new(), 0)]), unions: HashMap::new(), budget }
    }

    /// The number of a set; `None` once the budget is spent.
    fn intern(&mut self, members: Vec<u32>) -> Option<u32> {
        self.budget = self.budget.checked_sub(members.len())?;
        let next = self.members.len() as u32;
        let number = *self.numbers.entry(members.clone()).or_insert(next);
        if number == next {
            self.members.push(members);
        }
        Some(number)
    }

    fn union(&mut self, a: u32, b: u32) -> Option<u32> {
        let (a, b) = (a.min(b), a.max(b));
        if a == b || a == 0 {
            return Some(b);
        }
        if let Some(&union) = self.unions.get(&(a, b)) {
            return Some(union);
        }
        let mut members: Vec<u32> = self.members[a as usize].iter().chain(&self.members[b as usize]).copied().collect();
        members.sort_unstable();
        members.dedup();
        let union = self.intern(members)?;
        self.unions.insert((a, b), union);
        Some(union)
    }
}
