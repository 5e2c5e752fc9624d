//! Convolutions that compute the nodes after them: bias, normalisation, activation, the sum with another image.
//!
//! Each of these nodes reads and writes an image as large as the convolution's. If nothing else takes what is between them, the
//! kernel of the convolution computes them all, part by part, while the part is in a core's cache, and only the last image is
//! written to memory. An activation may consist of several nodes, some of which take the same value, as `x · relu6(x + 3) / 6`.

use std::collections::HashMap;

use meshtf_engine::{Engine, Follower, Origin};
use meshtf_graph::op::{self, OpDef, Role};
use meshtf_graph::plan::{Mode, Piece, PieceNode, PieceOp};
use meshtf_kernels::{self as kernel, HostKernel, KernelNode};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::code::{Act, op_name};
use super::products::kernel_node;
use super::{constants, relinked, role};

/// Most inputs of a follower: batch normalisation has five.
const MOST_INPUTS: usize = 5;

/// Most nodes that follow a convolution.
const MOST: usize = 16;

/// A convolution and its followers, by indices in the original piece.
pub(super) struct Chain {
    convolution: u32,
    followers: Vec<(u32, Vec<Origin>)>,
}

/// A piece whose convolutions compute the nodes after them.
pub(super) struct Followed {
    pub piece: Piece,
    /// By the index of the node that is left of it.
    pub chains: HashMap<u32, Chain>,
    /// The index of each node of the original piece that is left.
    pub places: Vec<Option<u32>>,
}

/// `None` if there are none. A traced piece stays as it is, since its trace has every op of the graph. `is_taken`: whether a node
/// is computed in another way already.
pub(super) fn followed(piece: &Piece, engine: &dyn Engine, is_taken: impl Fn(u32) -> bool) -> Option<Followed> {
    let is_convolution = |node: &PieceNode| matches!(op_name(&node.op), "Conv2D" | "DepthwiseConv2dNative");
    if piece.mode == Mode::Traced || !piece.nodes.iter().any(is_convolution) {
        return None;
    }
    let (takers, is_source) = (takers(piece), sources(piece));
    let mut is_in = vec![false; piece.nodes.len()];
    // By the last node of each chain.
    let mut chains: HashMap<u32, Chain> = HashMap::new();
    for (at, node) in piece.nodes.iter().enumerate().filter(|(_, node)| is_convolution(node)) {
        let at = at as u32;
        if is_in[at as usize] || is_taken(at) || !is_plain(node) || node.inputs.len() != 2 {
            continue;
        }
        let is_free = |other: u32| !is_in[other as usize] && !is_taken(other);
        // A chain waits for nothing that comes after its convolution: that would keep the images before both, and the other
        // convolution of a block would not run beside it. The last convolution takes the sum of both.
        let is_there = |other: u32| other < at || is_source[other as usize];
        let Some(chain) = chain(piece, engine, &takers, at, [&is_free, &is_there]) else { continue };
        is_in[at as usize] = true;
        chain.followers.iter().for_each(|&(other, _)| is_in[other as usize] = true);
        chains.insert(chain.last(), chain);
    }
    if chains.is_empty() { None } else { Some(without(piece, chains, &is_in)) }
}

/// The consumers of a node.
#[derive(Clone, Default)]
struct Takers {
    /// Those that take its values, in their order.
    values: Vec<u32>,
    /// Whether one takes another output than the first.
    takes_others: bool,
    is_waited_for: bool,
}

fn takers(piece: &Piece) -> Vec<Takers> {
    let mut takers = vec![Takers::default(); piece.nodes.len()];
    for (at, node) in piece.nodes.iter().enumerate() {
        for &(from, port) in &node.inputs {
            let of = &mut takers[from as usize];
            of.takes_others |= port != 0;
            if of.values.last() != Some(&(at as u32)) {
                of.values.push(at as u32);
            }
        }
        node.control.iter().for_each(|&from| takers[from as usize].is_waited_for = true);
    }
    for frame in &piece.frames {
        frame.pred.iter().for_each(|&pred| takers[pred as usize].is_waited_for = true);
    }
    takers
}

/// Whether it is an op that computes values of floats.
fn is_plain(node: &PieceNode) -> bool {
    matches!(node.op, PieceOp::Op(_))
        && role(node) == Role::Compute
        && node.outputs.first().is_some_and(|output| output.dtype == DType::F32 && !output.is_ref)
        && !node.input_refs.contains(&true)
        && node.frame == node.output_frame
}

/// Whether each node is a feed, or a function of constants and variables alone: it waits for no other work.
fn sources(piece: &Piece) -> Vec<bool> {
    let mut is_parameter: Vec<bool> = Vec::with_capacity(piece.nodes.len());
    for node in &piece.nodes {
        let is_function = |op: &OpDef| {
            (op.reads_variable || !op.stateful)
                && !node.inputs.is_empty()
                && node.inputs.iter().all(|&(from, _)| is_parameter.get(from as usize) == Some(&true))
        };
        let is_own = |op: &OpDef| op.role == Role::Const || op.makes_variable || is_function(op);
        let op = op::lookup(op_name(&node.op));
        is_parameter.push(node.control.is_empty() && op.is_some_and(is_own));
    }
    for (is_source, node) in is_parameter.iter_mut().zip(&piece.nodes) {
        *is_source |= matches!(node.op, PieceOp::Feed(_));
    }
    is_parameter
}

/// The convolution with the nodes that its kernel can compute, of which only the last one's value is taken by others; `None` if
/// there are none. `is_free`: whether a node is in no other chain; `is_there`: whether a chain may take its value.
fn chain(
    piece: &Piece,
    engine: &dyn Engine,
    takers: &[Takers],
    convolution: u32,
    [is_free, is_there]: [&dyn Fn(u32) -> bool; 2],
) -> Option<Chain> {
    let first = &piece.nodes[convolution as usize];
    let dtypes = dtypes(piece, first);
    let own = kernel_node(first, &dtypes);
    // Nodes that others wait for, or that wait for others, can only be the last.
    let mut members = vec![convolution];
    let mut whole = 0;
    while members.len() <= MOST {
        // In the order of the piece, in which each node comes after its inputs: so are the members.
        let next = members
            .iter()
            .flat_map(|&member| &takers[member as usize].values)
            .filter(|&&next| {
                let node = &piece.nodes[next as usize];
                // First the number of inputs: a node of many may follow many convolutions.
                node.inputs.len() <= MOST_INPUTS
                    && next > members[members.len() - 1]
                    && is_free(next)
                    && is_plain(node)
                    && node.frame == first.frame
                    && node.inputs.iter().all(|&(from, port)| match members.contains(&from) {
                        true => port == 0,
                        false => is_there(from),
                    })
                    && engine.may_follow(&own, &kernel_node(node, &self::dtypes(piece, node)))
            })
            .min();
        let Some(&next) = next else { break };
        members.push(next);
        if is_closed(piece, takers, &members) {
            whole = members.len();
        }
    }
    members.truncate(whole);
    if members.is_empty() {
        return None;
    }
    let mut inputs = first.inputs.len();
    let followers = members[1..].iter().map(|&member| {
        let origin = |&(from, _): &(u32, u32)| match members.iter().position(|&other| other == from) {
            Some(value) => Origin::Value(value),
            None => {
                inputs += 1;
                Origin::Input(inputs - 1)
            }
        };
        (member, piece.nodes[member as usize].inputs.iter().map(origin).collect())
    });
    Some(Chain { convolution, followers: followers.collect() })
}

/// Whether only the last member is taken by other nodes, and nothing but values orders the others.
fn is_closed(piece: &Piece, takers: &[Takers], members: &[u32]) -> bool {
    let Some((last, inner)) = members.split_last() else { return false };
    let is_inner = |&member: &u32| {
        let of = &takers[member as usize];
        let is_inside = |taker: &u32| members.contains(taker);
        !of.values.is_empty()
            && !of.takes_others
            && !of.is_waited_for
            && of.values.iter().all(is_inside)
            && piece.nodes[member as usize].control.is_empty()
    };
    !takers[*last as usize].takes_others && inner.iter().all(is_inner)
}

fn dtypes(piece: &Piece, node: &PieceNode) -> Vec<DType> {
    let dtype = |&(from, port): &(u32, u32)| piece.nodes[from as usize].outputs[port as usize].dtype;
    node.inputs.iter().map(dtype).collect()
}

impl Chain {
    fn last(&self) -> u32 {
        self.followers.last().map_or(self.convolution, |last| last.0)
    }
}

/// The piece in which the last node of each chain takes the inputs of all, and the others are left out.
fn without(piece: &Piece, chains: HashMap<u32, Chain>, is_in: &[bool]) -> Followed {
    let mut places = Vec::with_capacity(piece.nodes.len());
    let mut count = 0;
    for (at, &is_in) in is_in.iter().enumerate() {
        let is_left = !is_in || chains.contains_key(&(at as u32));
        places.push(is_left.then_some(count));
        count += u32::from(is_left);
    }
    let place = |from: &mut u32| {
        if let Some(Some(place)) = places.get(*from as usize) {
            *from = *place;
        }
    };
    let mut nodes = Vec::with_capacity(count as usize);
    for (at, node) in piece.nodes.iter().enumerate().filter(|(at, _)| places[*at].is_some()) {
        let mut node = node.clone();
        if let Some(chain) = chains.get(&(at as u32)) {
            node.inputs.clone_from(&piece.nodes[chain.convolution as usize].inputs);
            for (follower, origins) in &chain.followers {
                let own = piece.nodes[*follower as usize].inputs.iter().zip(origins);
                node.inputs
                    .extend(own.filter(|(_, origin)| matches!(origin, Origin::Input(_))).map(|(input, _)| *input));
            }
            node.input_refs = vec![false; node.inputs.len()];
            // Nothing takes the others.
            node.outputs.truncate(1);
        }
        nodes.push(node);
    }
    let chains = chains.into_iter().filter_map(|(last, chain)| Some((places[last as usize]?, chain))).collect();
    let piece = relinked(piece, nodes, place);
    Followed { piece, chains, places }
}

/// Compiles the node of a chain of `piece`, which still has all of its nodes.
pub(super) fn act(piece: &Piece, chain: &Chain, engine: &dyn Engine) -> Result<Act> {
    let own = &piece.nodes[chain.convolution as usize];
    let own_dtypes = dtypes(piece, own);
    let convolution = KernelNode { constants: constants(piece, own), ..kernel_node(own, &own_dtypes) };
    let nodes = chain.followers.iter().map(|(follower, _)| &piece.nodes[*follower as usize]);
    let all_dtypes: Vec<Vec<DType>> = nodes.clone().map(|node| dtypes(piece, node)).collect();
    let followers: Vec<Follower> = nodes
        .zip(&all_dtypes)
        .zip(&chain.followers)
        .map(|((node, dtypes), (_, inputs))| Follower { node: kernel_node(node, dtypes), inputs: inputs.clone() })
        .collect();
    let on_engine = engine.compile_with_followers(&convolution, &followers)?;
    let host = match host_kernel(&convolution, &followers) {
        // A call that the engine declines at run time fails as the host's kernel does.
        Err(failure) if on_engine.is_some() => Box::new(move |_: kernel::Inputs| Err(failure.clone())) as HostKernel,
        host => host?,
    };
    Ok(Act::Kernel { engine: on_engine, host: Some(host) })
}

/// The kernels one after the other, on the host: the kernel that is at fault refuses.
fn host_kernel(convolution: &KernelNode, followers: &[Follower]) -> Result<HostKernel> {
    let own: Vec<Origin> = (0..convolution.inputs.len()).map(Origin::Input).collect();
    let all = std::iter::once((convolution, &own)).chain(followers.iter().map(|one| (&one.node, &one.inputs)));
    let mut kernels = Vec::with_capacity(1 + followers.len());
    for (node, inputs) in all {
        let missing = || Failure::new(Code::Internal, "it has no kernel on the host");
        let compiled = kernel::compile(node).and_then(|kernel| kernel.ok_or_else(missing));
        let compiled = compiled.map_err(|failure| failure.at_node(node.name, node.op))?;
        kernels.push((compiled, inputs.clone(), (node.name.to_owned(), node.op.to_owned())));
    }
    Ok(Box::new(move |inputs| {
        let missing = || Failure::new(Code::Internal, "an input is missing");
        let mut values = Vec::with_capacity(kernels.len());
        for (kernel, origins, (name, op)) in &mut kernels {
            let taken = origins.iter().map(|&origin| match origin {
                Origin::Input(at) => inputs.get(at).cloned(),
                Origin::Value(at) => values.get(at).cloned(),
            });
            let taken = taken.collect::<Option<kernel::Inputs>>().ok_or_else(missing)?;
            let made = kernel(taken).map_err(|failure| failure.at_node(name, op))?;
            values.push(made.into_iter().next().ok_or_else(missing)?);
        }
        Ok(kernel::Outputs::from_iter(values.pop()))
    }))
}
