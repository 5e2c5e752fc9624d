//! Splits a placed graph into one piece per device, with a Send and a Recv wherever a value crosses.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::frame::Loops;
use super::place::Placed;
use super::prune::{ItemOp, PrunedGraph};
use super::{Frame, Mode, Piece, PieceNode, PieceOp, Plan, PlanError, Transfer};
use crate::op::Role;
use crate::shape::Declarations;
use crate::{Attrs, Node, OutputType, Shapes};

/// Splits the graph. There is one transfer for each pair of a value (or control edge) and a device that waits for it.
///
/// # Errors
/// NoCondition.
pub(super) fn partition(pruned: &PrunedGraph, placed: Placed, loops: &Loops, mode: Mode) -> Result<Plan, PlanError> {
    let taking_part = TakingPart::find(pruned, &placed, loops)?;
    let late_reads = late_reads(pruned, &placed, loops);
    let crossings = crossings(pruned, &placed, loops, &taking_part, &late_reads);
    let is_split = crossings.iter().any(|crossings| !crossings.is_empty()) || !late_reads.is_empty();
    let shapes = is_split.then(|| pruned.shapes(Declarations::Declared));

    let mut builder = Builder {
        pruned,
        placed: &placed,
        loops,
        shapes,
        pieces: taking_part.frames.iter().map(|(&device, frames)| (device, Building::new(loops, frames))).collect(),
        transfers: Vec::new(),
    };
    for (item, crossings) in crossings.iter().enumerate() {
        for read in late_reads.range(LateRead::all_of(item)) {
            builder.late_read(read);
        }
        for &device in &placed.of_item[item] {
            builder.node(item, device);
        }
        for &crossing in crossings {
            builder.transfer(item, crossing);
        }
    }
    let (pieces, transfers) = builder.finish(mode);
    Ok(Plan {
        pieces,
        transfers,
        placements: placed.placements,
        feed_types: pruned.feed_types.clone(),
        fetch_types: pruned.fetch_types.clone(),
        estimate: placed.estimate,
    })
}

/// The frames of each device, with their parents, in ascending order: parents first.
struct TakingPart {
    frames: BTreeMap<usize, BTreeSet<usize>>,
}

impl TakingPart {
    fn find(pruned: &PrunedGraph, placed: &Placed, loops: &Loops) -> Result<Self, PlanError> {
        let mut frames: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for item in 0..pruned.items.len() {
            for &device in &placed.of_item[item] {
                let known = frames.entry(device).or_default();
                for mut frame in [loops.runs_in[item], loops.answers_in[item]] {
                    while known.insert(frame) && frame != 0 {
                        frame = loops.all[frame].parent;
                    }
                }
                known.insert(0);
            }
        }
        for (frame, it) in loops.all.iter().enumerate() {
            let devices = frames.values().filter(|frames| frames.contains(&frame)).count();
            if let (Some(next), None, 2..) = (it.next_iteration, it.condition, devices) {
                return Err(PlanError::NoCondition {
                    frame: it.name.clone(),
                    node: pruned.tensor_name(next, 0),
                    op: pruned.op(next).to_owned(),
                });
            }
        }
        Ok(TakingPart { frames })
    }
}

/// An output of an item, or (without a port) the fact that it has run, is awaited on another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crossing {
    port: Option<u32>,
    to: usize,
}

/// A variable that is read on another device by an item that waits for items that may write the variable: its value is sent
/// once those have run. It has a separate transfer, since other items read the same variable at other times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LateRead {
    reader: usize,
    /// The reader's device.
    to: usize,
    from: usize,
    port: u32,
}

impl LateRead {
    /// The late reads of one reader.
    fn all_of(reader: usize) -> std::ops::RangeInclusive<LateRead> {
        let end = usize::MAX;
        LateRead { reader, to: 0, from: 0, port: 0 }..=LateRead { reader, to: end, from: end, port: u32::MAX }
    }
}

/// Late reads outside of loops; within a loop, it is unknown which iteration a read belongs to.
fn late_reads(pruned: &PrunedGraph, placed: &Placed, loops: &Loops) -> BTreeSet<LateRead> {
    let mut reads = BTreeSet::new();
    for (reader, item) in pruned.items.iter().enumerate() {
        if item.control.is_empty() || item.control.iter().any(|&before| loops.answers_in[before] != 0) {
            continue;
        }
        for &(from, port) in &item.inputs {
            let is_variable = pruned.is_ref(from, port) && loops.answers_in[from] == 0;
            for &to in placed.of_item[reader].iter().filter(|to| is_variable && !placed.of_item[from].contains(to)) {
                reads.insert(LateRead { reader, to, from, port });
            }
        }
    }
    reads
}

/// The crossings of each item, except for late reads.
fn crossings(
    pruned: &PrunedGraph,
    placed: &Placed,
    loops: &Loops,
    taking_part: &TakingPart,
    late_reads: &BTreeSet<LateRead>,
) -> Vec<BTreeSet<Crossing>> {
    let mut crossings: Vec<BTreeSet<Crossing>> = vec![BTreeSet::new(); pruned.items.len()];
    for (to, item) in pruned.items.iter().enumerate() {
        for &device in &placed.of_item[to] {
            for &(from, port) in item.inputs.iter().filter(|(from, _)| !placed.of_item[*from].contains(&device)) {
                if !late_reads.contains(&LateRead { reader: to, to: device, from, port }) {
                    crossings[from].insert(Crossing { port: Some(port), to: device });
                }
            }
        }
    }
    // Every device of a loop must learn whether there is another iteration.
    for (frame, it) in loops.all.iter().enumerate() {
        let Some(condition) = it.condition else { continue };
        for (&device, frames) in &taking_part.frames {
            if frames.contains(&frame) && !placed.of_item[condition].contains(&device) {
                crossings[condition].insert(Crossing { port: Some(0), to: device });
            }
        }
    }
    for (to, item) in pruned.items.iter().enumerate() {
        for &device in &placed.of_item[to] {
            // The arrival of a late read implies that the items on the variable's device have run.
            let told: Vec<usize> = late_reads
                .range(LateRead::all_of(to))
                .filter(|read| read.to == device)
                .map(|read| placed.of_item[read.from][0])
                .collect();
            let is_told = |from: usize| placed.of_item[from].iter().any(|device| told.contains(device));
            let elsewhere = |from: usize| !placed.of_item[from].contains(&device);
            for &from in item.control.iter().filter(|&&from| elsewhere(from) && !is_told(from)) {
                if carrier(pruned, &crossings[from], from, device).is_none() {
                    crossings[from].insert(Crossing { port: None, to: device });
                }
            }
        }
    }
    // The variable's device must also learn that the items which the reader waits for have run.
    for read in late_reads {
        let device = placed.of_item[read.from][0];
        for &before in pruned.items[read.reader].control.iter().filter(|&&item| !placed.of_item[item].contains(&device))
        {
            if carrier(pruned, &crossings[before], before, device).is_none() {
                crossings[before].insert(Crossing { port: None, to: device });
            }
        }
    }
    crossings
}

/// The port whose value crosses to that device anyway, and so shows that the item has run. None for a Switch, which has run
/// even if an output is dead.
fn carrier(pruned: &PrunedGraph, crossings: &BTreeSet<Crossing>, item: usize, to: usize) -> Option<u32> {
    if pruned.role(item) == Role::Switch {
        return None;
    }
    crossings.iter().find(|crossing| crossing.to == to && crossing.port.is_some()).and_then(|crossing| crossing.port)
}

/// The attributes of a node for its kernel: for an older op, completed with those of the newer op.
fn attrs_to_run(node: &Node) -> Attrs {
    let mut attrs = node.attrs.clone();
    let runs_as = node.op.runs_as();
    if !std::ptr::eq(runs_as, node.op) {
        for def in &runs_as.attrs {
            if let (None, Some(default)) = (attrs.get(def.name), &def.default) {
                attrs.set(def.name, default.clone());
            }
        }
    }
    attrs
}

/// Builds the pieces, item by item.
struct Builder<'a> {
    pruned: &'a PrunedGraph<'a>,
    placed: &'a Placed,
    loops: &'a Loops,
    /// The inferred shapes, if something crosses.
    shapes: Option<Cow<'a, Shapes>>,
    /// By device, as an index into `placed.devices`.
    pieces: BTreeMap<usize, Building>,
    transfers: Vec<Transfer>,
}

/// A piece while it is built.
#[derive(Default)]
struct Building {
    nodes: Vec<PieceNode>,
    frames: Vec<Frame>,
    feeds: Vec<u32>,
    fetches: Vec<u32>,
    /// The node of this piece for an item.
    own: HashMap<usize, u32>,
    /// The Recv of an item's output, or of its having run.
    received: BTreeMap<(usize, Option<u32>), u32>,
    /// The Recv of a late read.
    read_late: HashMap<LateRead, u32>,
    /// Indices into `frames`, by indices into `Loops::all`.
    frame_of: BTreeMap<usize, u32>,
    /// Inputs that wait for a later node: node, input, item, port.
    back_edges: Vec<(u32, usize, usize, u32)>,
}

impl Building {
    fn new(loops: &Loops, frames: &BTreeSet<usize>) -> Self {
        let mut piece = Building::default();
        for &frame in frames {
            let it = &loops.all[frame];
            piece.frame_of.insert(frame, piece.frames.len() as u32);
            piece.frames.push(Frame {
                name: it.name.clone(),
                parent: piece.frame_of[&it.parent],
                parallel_iterations: it.parallel_iterations,
                pred: None,
            });
        }
        piece
    }

    fn push(&mut self, node: PieceNode) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// The node of this piece that completes after an item has run: the item's own node, the Recv of its control edge, or the
    /// Recv of its first value.
    fn after(&self, item: usize) -> Option<u32> {
        let received = || self.received.range((item, None)..=(item, Some(u32::MAX))).next().map(|(_, &recv)| recv);
        self.own.get(&item).copied().or_else(received)
    }

    /// The node and port that provide an item's output in this piece, if they have been added.
    fn source(&self, item: usize, port: u32) -> Option<(u32, u32)> {
        let own = self.own.get(&item).map(|&node| (node, port));
        own.or_else(|| self.received.get(&(item, Some(port))).map(|&recv| (recv, 0)))
    }
}

impl Builder<'_> {
    /// Adds an item to its piece.
    fn node(&mut self, item: usize, device: usize) {
        let it = &self.pruned.items[item];
        let piece = self.pieces.get_mut(&device).expect("each device of an item takes part");
        let index = piece.nodes.len() as u32;
        let mut inputs = Vec::with_capacity(it.inputs.len());
        for (input, &(from, port)) in it.inputs.iter().enumerate() {
            let late = piece.read_late.get(&LateRead { reader: item, to: device, from, port });
            inputs.push(late.map(|&recv| (recv, 0)).or_else(|| piece.source(from, port)).unwrap_or_else(|| {
                piece.back_edges.push((index, input, from, port));
                (index, 0)
            }));
        }
        let mut control: Vec<u32> = it.control.iter().filter_map(|&from| piece.after(from)).collect();
        control.sort_unstable();
        control.dedup();
        let (frame, output_frame) =
            (piece.frame_of[&self.loops.runs_in[item]], piece.frame_of[&self.loops.answers_in[item]]);
        let (name, op) = match it.op {
            ItemOp::Node(id) => {
                let node = self.pruned.graph.node(id);
                (node.name.clone(), PieceOp::Op(node.op.runs_as().name.to_owned()))
            }
            ItemOp::Feed(feed, _) => {
                piece.feeds.push(feed);
                let place = piece.feeds.len() as u32 - 1;
                (format!("_Feed/{}", self.pruned.tensor_name(item, 0)), PieceOp::Feed(place))
            }
            ItemOp::Fetch(fetch, _) => {
                piece.fetches.push(fetch);
                let place = piece.fetches.len() as u32 - 1;
                (format!("_Fetch/{}", self.pruned.tensor_name(item, 0)), PieceOp::Fetch(place))
            }
        };
        let node = self.pruned.node(item);
        piece.push(PieceNode {
            name,
            op,
            input_refs: node.map_or_else(|| vec![false; inputs.len()], |node| node.input_refs.clone()),
            inputs,
            control,
            outputs: self.pruned.outputs(item),
            attrs: node.map_or_else(Attrs::default, attrs_to_run),
            frame,
            output_frame,
        });
        piece.own.insert(item, index);
    }

    /// Adds the Send and Recv of a crossing.
    fn transfer(&mut self, item: usize, crossing: Crossing) {
        let recv = self.send(item, crossing, &[]);
        let receiver = self.pieces.get_mut(&crossing.to).expect("each device that a value crosses to takes part");
        receiver.received.insert((item, crossing.port), recv);
    }

    /// Adds the Send and Recv of a late read.
    fn late_read(&mut self, read: &LateRead) {
        let &LateRead { reader, to, from, port } = read;
        let recv = self.send(from, Crossing { port: Some(port), to }, &self.pruned.items[reader].control);
        self.pieces.get_mut(&to).expect("a reader's device takes part").read_late.insert(*read, recv);
    }

    /// Adds a Send that waits until `after` have run, and its Recv; returns the Recv.
    fn send(&mut self, item: usize, crossing: Crossing, after: &[usize]) -> u32 {
        let devices = &self.placed.devices;
        let (from, to) = (self.placed.of_item[item][0], crossing.to);
        let transfer = self.transfers.len() as u32;
        let ty = crossing.port.map(|port| OutputType { is_ref: false, ..self.pruned.outputs(item)[port as usize] });
        let tensor = match crossing.port {
            Some(port) => self.pruned.tensor_name(item, port),
            None => format!("^{}", self.pruned.tensor_name(item, 0)),
        };
        let bytes = crossing.port.and_then(|port| {
            let elements = self.shapes.as_ref()?.known(self.pruned.tensor(item, port))?.elements()?;
            u64::try_from(elements.checked_mul(ty?.dtype.size()?)?).ok()
        });
        let frame = self.loops.answers_in[item];
        let node = |kind: &str, op, frame| PieceNode {
            name: format!("_{kind}/{tensor}/{transfer}"),
            op,
            inputs: Vec::new(),
            input_refs: Vec::new(),
            control: Vec::new(),
            outputs: Vec::new(),
            attrs: Attrs::default(),
            frame,
            output_frame: frame,
        };

        let sender = self.pieces.get_mut(&from).expect("each device of an item takes part");
        let own = sender.own[&item];
        let send = PieceOp::Send { transfer, to: devices[to].name.clone() };
        let mut send = node("Send", send, sender.frame_of[&frame]);
        match crossing.port {
            Some(port) => (send.inputs, send.input_refs) = (vec![(own, port)], vec![false]),
            None => send.control = vec![own],
        }
        send.control.extend(after.iter().filter_map(|&item| sender.after(item)));
        send.control.sort_unstable();
        send.control.dedup();
        sender.push(send);

        let receiver = self.pieces.get_mut(&to).expect("each device that a value crosses to takes part");
        let recv = PieceOp::Recv { transfer, from: devices[from].name.clone() };
        let mut recv = node("Recv", recv, receiver.frame_of[&frame]);
        recv.outputs.extend(ty);
        let recv = receiver.push(recv);

        let (from, to) = (devices[from].name.clone(), devices[to].name.clone());
        self.transfers.push(Transfer { tensor, dtype: ty.map(|ty| ty.dtype), from, to, bytes });
        recv
    }

    /// The pieces, in the order of their devices' names, and the transfers.
    fn finish(self, mode: Mode) -> (Vec<Piece>, Vec<Transfer>) {
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for (device, mut piece) in self.pieces {
            for (node, input, item, port) in std::mem::take(&mut piece.back_edges) {
                let source = piece.source(item, port).expect("a NextIteration is on the device of its Merge");
                piece.nodes[node as usize].inputs[input] = source;
            }
            for (&frame, &place) in &piece.frame_of {
                let condition = self.loops.all[frame].condition;
                piece.frames[place as usize].pred =
                    condition.and_then(|item| piece.source(item, 0)).map(|(node, _)| node);
            }
            let Building { nodes, frames, feeds, fetches, .. } = piece;
            pieces.push(Piece {
                device: self.placed.devices[device].name.clone(),
                nodes,
                frames,
                feeds,
                fetches,
                mode,
            });
        }
        (pieces, self.transfers)
    }
}
