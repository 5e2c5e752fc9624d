//! Sums that compute the products they add up.
//!
//! The gradient of a weight that is used many times, in each step of a recurrent network say, is a sum of products of matrices.
//! If nothing else takes a product, the sum takes its factors instead, and adds one product to the next where the sum lies: no
//! product is written and read again, and the cores share several where one is too small for that. A sum of many is computed in
//! parts, each as soon as its factors are there, so that few of them are kept for it. In a loop, where the sum so far comes from
//! the iteration before, a product is added to that.

use std::collections::HashMap;

use super::code::{Act, op_name};
use crate::exec::engine::Engine;
use crate::exec::kernel::{self, HostKernel, KernelNode};
use crate::failure::{Code, Failure, Result};
use crate::graph::OutputType;
use crate::plan::{Mode, Piece, PieceNode, PieceOp};
use crate::tensor::DType;

/// Most products that are computed at once, and so keep their factors until then.
const MOST_AT_ONCE: usize = 8;

/// What a sum adds up, by places in the piece as it was.
#[derive(Clone, Copy)]
pub(super) enum Addend {
    /// An output of a node.
    Value(u32, u32),
    /// A product, of which the sum takes both factors.
    Product(u32),
}

/// By place in the folded piece: what a sum that computes products itself adds up, in the order of its inputs.
pub(super) type Folded = HashMap<u32, Vec<Addend>>;

/// The piece with the products left out that sums compute themselves, and those sums; `None` if there are none. A traced piece
/// stays as it is, since it tells of every op of the graph.
pub(super) fn folded(piece: &Piece, engine: &dyn Engine) -> Option<(Piece, Folded)> {
    if piece.mode == Mode::Traced || !engine.computes_sums_of_products() {
        return None;
    }
    let is_alone = taken_once(piece);
    let mut nodes: Vec<Option<(PieceNode, Vec<Addend>)>> = piece.nodes.iter().map(|_| None).collect();
    let mut is_left_out = vec![false; piece.nodes.len()];
    for (at, sum) in piece.nodes.iter().enumerate().filter(|(_, node)| is_sum(node)) {
        let mut products: Vec<u32> = sum.inputs.iter().map(|&(from, _)| from).collect();
        products.retain(|&from| is_alone[from as usize] && piece.nodes[from as usize].frame == sum.frame);
        products.sort_unstable();
        let Some(last) = products.len().checked_sub(1) else { continue };
        let (parts, own) = products.split_at(last / MOST_AT_ONCE * MOST_AT_ONCE);
        products.iter().for_each(|&product| is_left_out[product as usize] = true);
        // A part stands where the last of its products stood.
        let mut so_far = None;
        for part in parts.chunks(MOST_AT_ONCE) {
            let place = part[MOST_AT_ONCE - 1];
            let products = part.iter().map(|&product| Addend::Product(product));
            nodes[place as usize] = Some(summed(piece, sum, so_far.into_iter().chain(products)));
            is_left_out[place as usize] = false;
            so_far = Some(Addend::Value(place, 0));
        }
        let rest = sum.inputs.iter().filter(|input| parts.binary_search(&input.0).is_err()).map(|&(from, port)| {
            match own.contains(&from) {
                true => Addend::Product(from),
                false => Addend::Value(from, port),
            }
        });
        let (mut node, terms) = summed(piece, sum, so_far.into_iter().chain(rest));
        node.control.clone_from(&sum.control);
        nodes[at] = Some((node, terms));
    }
    if !is_left_out.contains(&true) {
        return None;
    }
    Some(without(piece, nodes, &is_left_out))
}

/// By node: whether it is a product of matrices that one node takes, once, and nothing else waits for.
fn taken_once(piece: &Piece) -> Vec<bool> {
    let mut takers = vec![0_u32; piece.nodes.len()];
    for node in &piece.nodes {
        node.inputs.iter().for_each(|&(from, _)| takers[from as usize] += 1);
        // As good as many.
        node.control.iter().for_each(|&from| takers[from as usize] += 2);
    }
    let is_alone = |(node, takers): (&PieceNode, u32)| {
        takers == 1 && is_op(node, &["MatMul"]) && node.control.is_empty() && node.inputs.len() == 2
    };
    piece.nodes.iter().zip(takers).map(is_alone).collect()
}

fn is_sum(node: &PieceNode) -> bool {
    is_op(node, &["AddN", "Add", "AddV2"])
        || is_op(node, &["BiasAdd"]) && node.attrs.str("data_format").is_ok_and(|format| format == "NHWC")
}

/// Whether it is one of these ops on float32, and takes values.
fn is_op(node: &PieceNode, ops: &[&str]) -> bool {
    matches!(&node.op, PieceOp::Op(op) if ops.contains(&op.as_str()))
        && matches!(node.outputs.as_slice(), [OutputType { dtype: DType::F32, is_ref: false, .. }])
        && !node.input_refs.contains(&true)
}

/// `sum`, or a part of it, over these terms; without its control inputs.
fn summed(piece: &Piece, sum: &PieceNode, terms: impl Iterator<Item = Addend>) -> (PieceNode, Vec<Addend>) {
    let terms: Vec<Addend> = terms.collect();
    let mut inputs = Vec::with_capacity(2 * terms.len());
    for &term in &terms {
        match term {
            Addend::Value(from, port) => inputs.push((from, port)),
            Addend::Product(product) => inputs.extend_from_slice(&piece.nodes[product as usize].inputs),
        }
    }
    let input_refs = vec![false; inputs.len()];
    (PieceNode { inputs, input_refs, control: Vec::new(), ..sum.clone() }, terms)
}

/// The piece with some nodes written anew, and others left out.
fn without(piece: &Piece, anew: Vec<Option<(PieceNode, Vec<Addend>)>>, is_left_out: &[bool]) -> (Piece, Folded) {
    let mut places = Vec::with_capacity(piece.nodes.len());
    let mut count = 0;
    for &is_out in is_left_out {
        places.push(count);
        count += u32::from(!is_out);
    }
    let place = |from: &mut u32| *from = places[*from as usize];
    let (mut nodes, mut sums) = (Vec::with_capacity(count as usize), Folded::new());
    for ((old, new), _) in piece.nodes.iter().zip(anew).zip(is_left_out).filter(|(_, is_out)| !**is_out) {
        let mut node = match new {
            Some((node, terms)) => {
                sums.insert(nodes.len() as u32, terms);
                node
            }
            None => old.clone(),
        };
        node.inputs.iter_mut().for_each(|(from, _)| place(from));
        node.control.iter_mut().for_each(place);
        nodes.push(node);
    }
    let mut frames = piece.frames.clone();
    frames.iter_mut().filter_map(|frame| frame.pred.as_mut()).for_each(place);
    let piece = Piece {
        device: piece.device.clone(),
        nodes,
        frames,
        feeds: piece.feeds.clone(),
        fetches: piece.fetches.clone(),
        mode: piece.mode,
    };
    (piece, sums)
}

/// Compiles a sum that computes products of `piece`, which has them still.
pub(super) fn act(piece: &Piece, sum: &PieceNode, terms: &[Addend], engine: &dyn Engine) -> Result<Act> {
    let floats = vec![DType::F32; terms.len().max(2)];
    let product = |&term: &Addend| match term {
        Addend::Value(..) => None,
        Addend::Product(product) => Some(kernel_node(&piece.nodes[product as usize], &floats[..2])),
    };
    let products: Vec<Option<KernelNode>> = terms.iter().map(product).collect();
    let sum = kernel_node(sum, &floats[..terms.len()]);
    let host = host_kernel(&sum, &products)?;
    Ok(Act::Kernel { engine: engine.compile_sum(&sum, &products)?, host: Some(host) })
}

fn kernel_node<'a>(node: &'a PieceNode, inputs: &'a [DType]) -> KernelNode<'a> {
    KernelNode { name: &node.name, op: op_name(&node.op), attrs: &node.attrs, inputs, outputs: &node.outputs }
}

/// One kernel after the other, on the host: for what an engine declines, which the right one of them refuses.
fn host_kernel(sum: &KernelNode, products: &[Option<KernelNode>]) -> Result<HostKernel> {
    let compiled = |node: &KernelNode| {
        let missing = || Failure::new(Code::Internal, "it has no kernel on the host");
        kernel::compile(node)?.ok_or_else(missing).map_err(|failure| failure.at_node(node.name, node.op))
    };
    let named = |node: &KernelNode| Ok((node.name.to_owned(), compiled(node)?));
    let mut products: Vec<Option<(String, HostKernel)>> =
        products.iter().map(|product| product.as_ref().map(named).transpose()).collect::<Result<_>>()?;
    let mut add = compiled(sum)?;
    Ok(Box::new(move |inputs| {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().ok_or_else(|| Failure::new(Code::Internal, "an input is missing"));
        let mut terms = kernel::Inputs::new();
        for product in &mut products {
            match product {
                None => terms.push(next()?),
                Some((name, multiply)) => {
                    let factors = kernel::Inputs::from_iter([next()?, next()?]);
                    terms.extend(multiply(factors).map_err(|failure| failure.at_node(name, "MatMul"))?);
                }
            }
        }
        add(terms)
    }))
}
