//! Compiled pieces: the action of each node, the targets of its outputs, and the initial state of each frame.
//!
//! Names, ops, attributes, kernels and positions, all that a step would have to look up, are settled once, at compile time.

mod code;
mod followers;
mod products;
mod source;
mod stages;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use code::{Act, CONTROL, CompiledNode, CompiledPiece, Edge, PieceCode, Placed, Receive, Stages, Wait};
use code::{FrameCode, op_name};
use meshtf_engine::{Engine, Value};
use meshtf_graph::Attrs;
use meshtf_graph::op::{self, Role};
use meshtf_graph::plan::{Mode, Piece, PieceNode, PieceOp, late_feed};
use meshtf_graph::shape::Extent;
use meshtf_kernels::{self as kernel, HostKernel, KernelNode};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, constant};
pub(super) use source::Source;

use super::state::{self, Site};

/// Most iterations of one loop that a device has under way, whatever the graph specifies.
const MAX_PARALLEL_ITERATIONS: u32 = 1024;

/// Most inputs of a node that takes references.
const MAX_REF_INPUTS: usize = 64;

/// Compiles a piece for the device that `site` names.
///
/// # Errors
/// Unimplemented if an op has no kernel on this device, InvalidArgument if attributes are wrong or the piece is inconsistent;
/// with node and op.
pub(super) fn compile(piece: &Piece, site: &Site, engine: &dyn Engine) -> Result<CompiledPiece> {
    let mut roles: Vec<Role> = piece.nodes.iter().map(role).collect();
    check(piece, &roles)?;
    let (whole, folded) = (piece, products::folded(piece, engine));
    let (piece, takers) = match &folded {
        Some((piece, takers)) => (piece, Some(takers)),
        None => (piece, None),
    };
    let is_taken = |node: u32| takers.is_some_and(|takers| takers.contains_key(&node));
    let (unfollowed, followed) = (piece, followers::followed(piece, engine, is_taken));
    let piece = followed.as_ref().map_or(piece, |followed| &followed.piece);
    // The sums and slices that compute products, by their indices in the piece that is left.
    let place = |node: u32| followed.as_ref().map_or(Some(node), |followed| followed.places[node as usize]);
    let takers: HashMap<u32, &Vec<products::Taken>> =
        takers.into_iter().flatten().filter_map(|(node, terms)| Some((place(*node)?, terms))).collect();
    if folded.is_some() || followed.is_some() {
        roles = piece.nodes.iter().map(role).collect();
    }
    let mut code = lay_out(piece, &roles);
    connect(piece, &roles, &mut code);
    find_starts(piece, &mut code)?;
    let mut acts = Vec::with_capacity(piece.nodes.len());
    for (i, node) in piece.nodes.iter().enumerate() {
        let chain = followed.as_ref().and_then(|followed| followed.chains.get(&(i as u32)));
        let compiled = match (takers.get(&(i as u32)), chain) {
            (Some(terms), _) => products::act(whole, node, terms, engine),
            (None, Some(chain)) => followers::act(unfollowed, chain, engine),
            (None, None) => act(piece, node, roles[i], site, engine),
        };
        acts.push(compiled.map_err(|failure| failure.at_node(&node.name, op_name(&node.op)))?);
        if let Some(Act::Recv { transfer, .. }) = acts.last() {
            code.recvs.insert(*transfer, i as u32);
        }
    }
    keep(&code, &mut acts, engine)?;
    // A partial run's fetches are sent as they come, so when they come matters.
    if !piece.mode.is_partial()
        && code.frames.len() == 1
        && !piece.nodes.iter().zip(&acts).any(|(node, act)| may_wait(node, act))
    {
        code.stages = stages::stages(piece, &code, &acts);
        code.may_run_inline = code.stages.is_some() && shapes_decide(piece);
    }
    Ok(CompiledPiece { code: Arc::new(code), acts, feeds: piece.feeds.clone(), fetches: piece.fetches.clone() })
}

/// Refuses indices outside the piece's own tables.
fn check(piece: &Piece, roles: &[Role]) -> Result<()> {
    let wrong = |node: &PieceNode, why: &str| Err(Failure::invalid(why).at_node(&node.name, op_name(&node.op)));
    if piece.frames.is_empty() || piece.frames.iter().enumerate().skip(1).any(|(i, frame)| frame.parent as usize >= i) {
        return Err(Failure::invalid("the frames of a piece must begin with the root, and parents come first"));
    }
    for (i, node) in piece.nodes.iter().enumerate() {
        let is_frame = |frame: u32| (frame as usize) < piece.frames.len();
        if !is_frame(node.frame) || !is_frame(node.output_frame) {
            return wrong(node, "its frame is not in the piece");
        }
        if node.input_refs.len() != node.inputs.len() || node.input_refs.iter().skip(MAX_REF_INPUTS).any(|&r| r) {
            return wrong(node, "its inputs and their kinds do not go together");
        }
        for &(from, port) in &node.inputs {
            let Some(producer) = piece.nodes.get(from as usize) else {
                return wrong(node, "an input is not in the piece");
            };
            if port as usize >= producer.outputs.len() || producer.output_frame != node.frame {
                return wrong(node, "an input does not exist in its frame");
            }
            let leads_back = roles[from as usize].leads_back(roles[i]);
            if from as usize >= i && !leads_back {
                return wrong(node, "an input comes after it");
            }
            if roles[from as usize] == Role::NextIteration && !leads_back {
                return wrong(node, "what the next iteration begins with can only go to a Merge");
            }
        }
        for &from in &node.control {
            if piece.nodes.get(from as usize).is_none_or(|producer| producer.output_frame != node.frame)
                || from as usize >= i
            {
                return wrong(node, "a control input does not exist before it in its frame");
            }
        }
        let leads = match roles[i] {
            Role::Enter => node.output_frame != 0 && piece.frames[node.output_frame as usize].parent == node.frame,
            Role::Exit => node.frame != 0 && piece.frames[node.frame as usize].parent == node.output_frame,
            Role::NextIteration => node.frame != 0 && node.output_frame == node.frame,
            _ => node.output_frame == node.frame,
        };
        if !leads {
            return wrong(node, "it does not lead from its frame to the one of its outputs");
        }
        let needed = match &node.op {
            PieceOp::Op(_) => match roles[i] {
                Role::Switch => (2, 2),
                Role::Merge => (1, 2),
                Role::Enter | Role::Exit | Role::NextIteration | Role::LoopCond => (1, 1),
                Role::Forward => (node.outputs.len(), 1),
                Role::Const | Role::Placeholder => (0, 1),
                Role::Compute | Role::Nothing | Role::ControlTrigger => (0, 0),
            },
            PieceOp::Feed(_) => (0, 1),
            PieceOp::Fetch(_) => (1, 0),
            PieceOp::Send { .. } | PieceOp::Recv { .. } => (0, 0),
        };
        if node.inputs.len() < needed.0 || node.outputs.len() < needed.1 {
            return wrong(node, "it lacks inputs or outputs");
        }
    }
    Ok(())
}

/// Gives every node and input its index.
fn lay_out(piece: &Piece, roles: &[Role]) -> PieceCode {
    let mut frames: Vec<FrameCode> = Vec::with_capacity(piece.frames.len());
    for (i, frame) in piece.frames.iter().enumerate() {
        let (mut parent, mut depth, mut place) = (0, 0, 0);
        if i > 0 {
            parent = frame.parent;
            let around = &mut frames[parent as usize];
            depth = around.depth + 1;
            place = around.children.len() as u32;
            around.children.push(i as u32);
        }
        frames.push(FrameCode {
            parent,
            depth,
            place,
            children: Vec::new(),
            parallel_iterations: frame.parallel_iterations.clamp(1, MAX_PARALLEL_ITERATIONS),
            has_pred: frame.pred.is_some(),
            slots: 0,
            waits: Vec::new(),
            sources: Vec::new(),
        });
    }
    let mut nodes = Vec::with_capacity(piece.nodes.len());
    for (i, node) in piece.nodes.iter().enumerate() {
        let frame = &mut frames[node.frame as usize];
        let local = frame.waits.len() as u32;
        let data = if roles[i] == Role::Merge { 1 } else { node.inputs.len() };
        frame.waits.push(Wait { pending: (data + node.control.len()) as u32, ..Wait::default() });
        nodes.push(CompiledNode {
            name: node.name.clone(),
            op: op_name(&node.op).to_owned(),
            frame: node.frame,
            output_frame: node.output_frame,
            local,
            first_input: frame.slots,
            inputs: node.inputs.len() as u32,
            outputs: node.outputs.len() as u32,
            input_refs: node.input_refs.iter().take(MAX_REF_INPUTS).rev().fold(0, |bits, &r| bits << 1 | u64::from(r)),
            first_edge: 0,
            control_edges: 0,
            end_edge: 0,
            is_pred: piece.frames[node.frame as usize].pred == Some(i as u32),
            merges: (roles[i] == Role::Merge).then(|| {
                let back = node.inputs.iter().filter(|input| roles[input.0 as usize] == Role::NextIteration);
                let back = back.count() as u32;
                let first = node.inputs.len() as u32 - back;
                if back == 0 { (first, first) } else { (first, back) }
            }),
        });
        frame.slots += node.inputs.len() as u32;
    }
    PieceCode {
        nodes,
        edges: Vec::new(),
        frames,
        recvs: HashMap::new(),
        fetches: piece.fetches.len(),
        mode: piece.mode,
        stages: None,
        may_run_inline: false,
    }
}

/// Turns the inputs of the consumers into the edges of the producers.
fn connect(piece: &Piece, roles: &[Role], code: &mut PieceCode) {
    let mut edges: Vec<Vec<Edge>> = piece.nodes.iter().map(|_| Vec::new()).collect();
    let mut control: Vec<Vec<Edge>> = piece.nodes.iter().map(|_| Vec::new()).collect();
    for (i, node) in piece.nodes.iter().enumerate() {
        for (input, &(from, port)) in node.inputs.iter().enumerate() {
            let is_constant = || piece.nodes[from as usize].attrs.bool("is_constant").unwrap_or(false);
            edges[from as usize].push(Edge {
                port,
                to: i as u32,
                input: input as u32,
                slot: code.nodes[i].first_input + input as u32,
                is_last: true,
                is_invariant: roles[from as usize] == Role::Enter && (roles[i] != Role::Merge || is_constant()),
            });
        }
        for &from in &node.control {
            control[from as usize].push(Edge {
                port: CONTROL,
                to: i as u32,
                input: CONTROL,
                slot: 0,
                is_last: true,
                is_invariant: roles[from as usize] == Role::Enter,
            });
        }
    }
    for (i, (mut data, control)) in edges.into_iter().zip(control).enumerate() {
        data.sort_by_key(|edge| edge.port);
        for k in 1..data.len() {
            data[k - 1].is_last = data[k - 1].port != data[k].port;
        }
        let node = &mut code.nodes[i];
        node.first_edge = code.edges.len() as u32;
        code.edges.extend(data);
        node.control_edges = code.edges.len() as u32;
        code.edges.extend(control);
        node.end_edge = code.edges.len() as u32;
    }
}

/// Finds the nodes that run first in each frame.
fn find_starts(piece: &Piece, code: &mut PieceCode) -> Result<()> {
    for (i, node) in code.nodes.iter().enumerate() {
        let frame = &mut code.frames[node.frame as usize];
        if frame.waits[node.local as usize].pending == 0 {
            frame.sources.push(i as u32);
        }
    }
    for (i, frame) in piece.frames.iter().enumerate() {
        if i > 0 && code.frames[i].waits.is_empty() && code.frames[i].children.is_empty() {
            return Err(Failure::invalid(format!("loop {} has no node in the piece", frame.name)));
        }
        let Some(pred) = frame.pred else { continue };
        let answers = |node: &PieceNode| i > 0 && node.frame as usize == i && !node.outputs.is_empty();
        if !piece.nodes.get(pred as usize).is_some_and(answers) {
            return Err(Failure::invalid(format!("the condition of loop {} is not in the piece", frame.name)));
        }
    }
    Ok(())
}

/// Compiles the action of a node.
fn act(piece: &Piece, node: &PieceNode, role: Role, site: &Site, engine: &dyn Engine) -> Result<Act> {
    let op = match &node.op {
        PieceOp::Feed(place) if (*place as usize) < piece.feeds.len() => {
            return Ok(match piece.mode {
                Mode::Partial { .. } => Act::Recv { transfer: late_feed(*place), is_kept: false },
                Mode::Whole | Mode::Traced => Act::Feed { place: *place, is_kept: false },
            });
        }
        PieceOp::Fetch(place) if (*place as usize) < piece.fetches.len() => return Ok(Act::Fetch(*place)),
        PieceOp::Feed(_) | PieceOp::Fetch(_) => return Err(Failure::invalid("it is not among the piece's own")),
        PieceOp::Send { transfer, to } => return Ok(Act::Send { transfer: *transfer, to: to.clone() }),
        PieceOp::Recv { transfer, .. } => return Ok(Act::Recv { transfer: *transfer, is_kept: false }),
        PieceOp::Op(op) => op.as_str(),
    };
    Ok(match role {
        // A variant is no value of an engine.
        Role::Const if let Ok(content) = node.attrs.variant("value") => Act::State(state::constant(content.clone())?),
        Role::Const => Act::Const(Value::Host(node.attrs.whole_tensor("value")?)),
        Role::Nothing => Act::Nothing,
        Role::ControlTrigger => Act::ControlTrigger,
        Role::Forward if node.outputs.len() > 1 => Act::ForwardAll,
        Role::Forward | Role::LoopCond => Act::Forward,
        Role::Switch => Act::Switch,
        Role::Merge => Act::Merge,
        Role::Enter => Act::Enter,
        Role::Exit => Act::Exit,
        Role::NextIteration => Act::NextIteration,
        Role::Placeholder => Act::Unfed(unfed(&node.name, &node.attrs)),
        Role::Compute => {
            let inputs: Vec<DType> = node
                .inputs
                .iter()
                .map(|&(from, port)| piece.nodes[from as usize].outputs[port as usize].dtype)
                .collect();
            let constants = constants(piece, node);
            let kernel_node = KernelNode {
                name: &node.name,
                op,
                attrs: &node.attrs,
                inputs: &inputs,
                outputs: &node.outputs,
                constants,
            };
            if let Some(state) = state::compile(&kernel_node, site, engine)? {
                return Ok(Act::State(state));
            }
            let on_engine = engine.compile(&kernel_node)?;
            let host = match kernel::compile_with(&kernel_node, &site.generators) {
                // A call that the engine declines at run time fails as the host's kernel does.
                Err(failure) if on_engine.is_some() => {
                    Some(Box::new(move |_: kernel::Inputs| Err(failure.clone())) as HostKernel)
                }
                answer => answer?,
            };
            if on_engine.is_none() && host.is_none() {
                return Err(Failure::new(Code::Unimplemented, format!("{op} has no kernel on {}", engine.name())));
            }
            Act::Kernel { engine: on_engine, host }
        }
    })
}

/// A piece of some of the nodes of `piece`, rewritten: `place` turns an index there into the one that stands for it.
fn relinked(piece: &Piece, mut nodes: Vec<PieceNode>, place: impl Fn(&mut u32)) -> Piece {
    let mut frames = piece.frames.clone();
    for node in &mut nodes {
        node.inputs.iter_mut().for_each(|(from, _)| place(from));
        node.control.iter_mut().for_each(&place);
    }
    frames.iter_mut().filter_map(|frame| frame.pred.as_mut()).for_each(place);
    Piece {
        device: piece.device.clone(),
        nodes,
        frames,
        feeds: piece.feeds.clone(),
        fetches: piece.fetches.clone(),
        mode: piece.mode,
    }
}

/// A bit for each of the first inputs of a node: whether it is a constant, maybe through nodes that pass it on.
fn constants(piece: &Piece, node: &PieceNode) -> u64 {
    let is_constant = |&(from, port): &(u32, u32)| {
        let mut producer = &piece.nodes[from as usize];
        // Inputs come before what they lead to, but for those of a loop's Merge, which passes on no constant.
        while port == 0 && role(producer) == Role::Forward && producer.outputs.len() == 1 {
            let Some(&(from, 0)) = producer.inputs.first() else { return false };
            producer = &piece.nodes[from as usize];
        }
        port == 0 && role(producer) == Role::Const
    };
    let bits = node.inputs.iter().take(64).enumerate().map(|(i, input)| u64::from(is_constant(input)) << i);
    bits.fold(0, |all, bit| all | bit)
}

/// Makes values that an engine's kernel may take be copied to the engine's memory once, not once for each consumer.
fn keep(code: &PieceCode, acts: &mut [Act], engine: &dyn Engine) -> Result<()> {
    for (i, node) in code.nodes.iter().enumerate() {
        let consumers = &code.edges[node.first_edge as usize..node.control_edges as usize];
        if !consumers.iter().any(|edge| may_go_to_engine(&acts[edge.to as usize])) {
            continue;
        }
        let has_form = |edge: &Edge| {
            let consumer = &acts[edge.to as usize];
            matches!(consumer, Act::Kernel { engine: Some(kernel), .. } if kernel.has_form_of(edge.input))
        };
        let is_formed = consumers.iter().all(has_form);
        match &mut acts[i] {
            Act::Feed { is_kept, .. } | Act::Recv { is_kept, .. } => *is_kept = true,
            Act::Const(value) => {
                // Where its kernels read it in a form of their own, that is all that stays of it.
                if let Value::Host(tensor) = value
                    && !(is_formed && constant::is_kept(tensor))
                {
                    *value = match engine.share(tensor)? {
                        Some(shared) => shared,
                        None => engine.keep(tensor.clone())?,
                    };
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a node runs on the engine, or passes its value to unknown consumers.
fn may_go_to_engine(act: &Act) -> bool {
    match act {
        Act::Kernel { engine, .. } => engine.is_some(),
        Act::Forward | Act::ForwardAll | Act::Switch | Act::Merge | Act::Enter | Act::Exit | Act::NextIteration => true,
        _ => false,
    }
}

fn unfed(name: &str, attrs: &Attrs) -> Failure {
    let dtype = attrs.dtype("dtype").map_or("?", |dtype| match dtype {
        DType::F16 => "half",
        DType::F32 => "float",
        DType::F64 => "double",
        other => other.name(),
    });
    let shape = match attrs.shape("shape") {
        Ok(shape) if shape.0.is_some() => format!(" and shape {shape}"),
        _ => String::new(),
    };
    Failure::invalid(format!("You must feed a value for placeholder tensor '{name}' with dtype {dtype}{shape}"))
}

/// Whether a node can wait for more than the arrival of a value, or distinguishes live from dead. A piece with such a node does
/// not run by stages.
fn may_wait(node: &PieceNode, act: &Act) -> bool {
    match act {
        Act::Switch | Act::Merge | Act::Enter | Act::Exit | Act::NextIteration | Act::ControlTrigger => true,
        Act::State(_) => op::lookup(op_name(&node.op)).is_some_and(|op| op.waits),
        _ => false,
    }
}

/// Whether the shapes of a step's incoming values decide how long each of its nodes takes, and nothing else does.
fn shapes_decide(piece: &Piece) -> bool {
    // By node: whether those shapes decide its values as well.
    let mut settled = vec![false; piece.nodes.len()];
    piece.nodes.iter().enumerate().all(|(i, node)| {
        let PieceOp::Op(name) = &node.op else { return true };
        let Some(op) = op::lookup(name) else { return false };
        let are_settled = |inputs: &[(u32, u32)]| inputs.iter().all(|&(from, _)| settled[from as usize]);
        let (extent, inputs) = (op.shape.extent(), &node.inputs);
        let is_computed = !op.stateful && !inputs.is_empty() && are_settled(inputs);
        let is_sized = extent != Extent::Unknown && are_settled(&inputs[extent.elements_of(inputs.len())]);
        settled[i] = op.role == Role::Const || op.uses_only_shape || is_computed;
        (is_computed || is_sized) && !op.uses_files && !op.takes_any_time
    })
}

fn role(node: &PieceNode) -> Role {
    match &node.op {
        PieceOp::Op(op) => op::lookup(op).map_or(Role::Compute, |op| op.role),
        _ => Role::Compute,
    }
}
