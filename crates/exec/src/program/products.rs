//! Products of matrices that their consumers compute.
//!
//! The gradient of a weight that is used many times, in each step of a recurrent network for example, is a sum of products of
//! matrices. If nothing else takes a product, the sum takes its factors instead, and accumulates each product in its own
//! buffer. No product is written and read again, and the cores share several products where one is too small for that. A sum of
//! many is computed in parts, each as soon as its factors exist, so that few of them are kept. In a loop, where the sum so far
//! comes from the iteration before, a product is added to that.
//!
//! A slice of a small product computes only the elements that it takes: the gradient of a matrix that was concatenated with
//! another is such a slice.

use std::collections::HashMap;

use meshtf_engine::Engine;
use meshtf_graph::OutputType;
use meshtf_graph::plan::{Mode, Piece, PieceNode, PieceOp};
use meshtf_kernels::{self as kernel, HostKernel, KernelNode};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::code::{Act, op_name};
use super::{constants, relinked};

/// Most products that are computed at once, and so keep their factors until then.
const MOST_AT_ONCE: usize = 8;

/// An input of a node, by indices in the original piece.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    /// An output of a node.
    Value(u32, u32),
    /// A product; the node takes both of its factors.
    Product(u32),
}

/// The inputs of each node that computes products itself, in their order, by its index in the folded piece.
pub(super) type Folded = HashMap<u32, Vec<Taken>>;

/// The piece without the products that other nodes compute themselves, and those nodes; `None` if there are none. A traced
/// piece stays as it is, since its trace has every op of the graph.
pub(super) fn folded(piece: &Piece, engine: &dyn Engine) -> Option<(Piece, Folded)> {
    if piece.mode == Mode::Traced || !engine.computes_products_within() {
        return None;
    }
    let takers = takers(piece);
    let is_own = |node: &PieceNode, product: u32| {
        let own = &piece.nodes[product as usize];
        takers[product as usize].values == 1 && own.frame == node.frame && is_product(own)
    };
    let mut nodes: Vec<Option<(PieceNode, Vec<Taken>)>> = piece.nodes.iter().map(|_| None).collect();
    let mut is_left_out = vec![false; piece.nodes.len()];
    let mut stand_ins = HashMap::new();
    for (at, slice) in piece.nodes.iter().enumerate().filter(|(_, node)| is_op(node, &["Slice"])) {
        let Some((&(product, _), others)) = slice.inputs.split_first() else { continue };
        // Nodes that wait for the product can wait for the slice if it comes before them.
        let is_first = takers[product as usize].first_waiting.is_none_or(|waiting| at < waiting as usize);
        if !is_own(slice, product) || !is_first {
            continue;
        }
        is_left_out[product as usize] = true;
        stand_ins.insert(product, at as u32);
        let others = others.iter().map(|&(from, port)| Taken::Value(from, port));
        let (mut node, terms) = taking(piece, slice, std::iter::once(Taken::Product(product)).chain(others));
        node.control.clone_from(&slice.control);
        nodes[at] = Some((node, terms));
    }
    for (at, sum) in piece.nodes.iter().enumerate().filter(|(_, node)| is_sum(node)) {
        let mut products: Vec<u32> = sum.inputs.iter().map(|&(from, _)| from).collect();
        products.retain(|&from| is_own(sum, from) && takers[from as usize].first_waiting.is_none());
        products.sort_unstable();
        let Some(last) = products.len().checked_sub(1) else { continue };
        let (parts, own) = products.split_at(last / MOST_AT_ONCE * MOST_AT_ONCE);
        products.iter().for_each(|&product| is_left_out[product as usize] = true);
        // A part takes the position of the last of its products.
        let mut so_far = None;
        for part in parts.chunks(MOST_AT_ONCE) {
            let place = part[MOST_AT_ONCE - 1];
            let products = part.iter().map(|&product| Taken::Product(product));
            nodes[place as usize] = Some(taking(piece, sum, so_far.into_iter().chain(products)));
            is_left_out[place as usize] = false;
            so_far = Some(Taken::Value(place, 0));
        }
        let rest = sum.inputs.iter().filter(|input| parts.binary_search(&input.0).is_err()).map(|&(from, port)| {
            match own.contains(&from) {
                true => Taken::Product(from),
                false => Taken::Value(from, port),
            }
        });
        let (mut node, terms) = taking(piece, sum, so_far.into_iter().chain(rest));
        node.control.clone_from(&sum.control);
        nodes[at] = Some((node, terms));
    }
    if !is_left_out.contains(&true) {
        return None;
    }
    Some(without(piece, nodes, &is_left_out, &stand_ins))
}

/// The consumers of a node.
#[derive(Clone, Default)]
struct Takers {
    /// The number of inputs that take its values.
    values: u32,
    /// The first of the nodes that only wait for it.
    first_waiting: Option<u32>,
}

fn takers(piece: &Piece) -> Vec<Takers> {
    let mut takers = vec![Takers::default(); piece.nodes.len()];
    for (at, node) in piece.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|&(from, _)| takers[from as usize].values += 1);
        for &from in &node.control {
            takers[from as usize].first_waiting.get_or_insert(at as u32);
        }
    }
    takers
}

/// Whether it is a product of matrices that waits for nothing but its factors.
fn is_product(node: &PieceNode) -> bool {
    is_op(node, &["MatMul"]) && node.control.is_empty() && node.inputs.len() == 2
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

/// The node, or a part of a sum, with these terms as inputs and without its control inputs.
fn taking(piece: &Piece, node: &PieceNode, terms: impl Iterator<Item = Taken>) -> (PieceNode, Vec<Taken>) {
    let terms: Vec<Taken> = terms.collect();
    let mut inputs = Vec::with_capacity(2 * terms.len());
    for &term in &terms {
        match term {
            Taken::Value(from, port) => inputs.push((from, port)),
            Taken::Product(product) => inputs.extend_from_slice(&piece.nodes[product as usize].inputs),
        }
    }
    let input_refs = vec![false; inputs.len()];
    (PieceNode { inputs, input_refs, control: Vec::new(), ..node.clone() }, terms)
}

/// The piece with some nodes replaced and others left out. Nodes that waited for one that is left out wait for its stand-in.
fn without(
    piece: &Piece,
    anew: Vec<Option<(PieceNode, Vec<Taken>)>>,
    is_left_out: &[bool],
    stand_ins: &HashMap<u32, u32>,
) -> (Piece, Folded) {
    let mut places = Vec::with_capacity(piece.nodes.len());
    let mut count = 0;
    for &is_out in is_left_out {
        places.push(count);
        count += u32::from(!is_out);
    }
    let place = |from: &mut u32| *from = places[*stand_ins.get(from).unwrap_or(from) as usize];
    let (mut nodes, mut takers) = (Vec::with_capacity(count as usize), Folded::new());
    for ((old, new), _) in piece.nodes.iter().zip(anew).zip(is_left_out).filter(|(_, is_out)| !**is_out) {
        nodes.push(match new {
            Some((node, terms)) => {
                takers.insert(nodes.len() as u32, terms);
                node
            }
            None => old.clone(),
        });
    }
    (relinked(piece, nodes, place), takers)
}

/// Compiles a node that computes products of `piece`, which still contains them.
pub(super) fn act(piece: &Piece, node: &PieceNode, terms: &[Taken], engine: &dyn Engine) -> Result<Act> {
    let dtype = |&term: &Taken| match term {
        Taken::Value(from, port) => piece.nodes[from as usize].outputs[port as usize].dtype,
        Taken::Product(_) => DType::F32,
    };
    let inputs: Vec<DType> = terms.iter().map(dtype).collect();
    let product = |&term: &Taken| match term {
        Taken::Value(..) => None,
        Taken::Product(product) => {
            let node = &piece.nodes[product as usize];
            Some(KernelNode { constants: constants(piece, node), ..kernel_node(node, &[DType::F32; 2]) })
        }
    };
    let products: Vec<Option<KernelNode>> = terms.iter().map(product).collect();
    let node = kernel_node(node, &inputs);
    let host = host_kernel(&node, &products)?;
    Ok(Act::Kernel { engine: engine.compile_with_products(&node, &products)?, host: Some(host) })
}

/// The node as its kernel sees it, without constants.
pub(super) fn kernel_node<'a>(node: &'a PieceNode, inputs: &'a [DType]) -> KernelNode<'a> {
    KernelNode {
        name: &node.name,
        op: op_name(&node.op),
        attrs: &node.attrs,
        inputs,
        outputs: &node.outputs,
        constants: 0,
    }
}

/// The kernels one after the other, on the host, for calls that the engine declines: the kernel that is at fault refuses.
fn host_kernel(node: &KernelNode, products: &[Option<KernelNode>]) -> Result<HostKernel> {
    let compiled = |node: &KernelNode| {
        let missing = || Failure::new(Code::Internal, "it has no kernel on the host");
        kernel::compile(node)?.ok_or_else(missing).map_err(|failure| failure.at_node(node.name, node.op))
    };
    let named = |node: &KernelNode| Ok((node.name.to_owned(), compiled(node)?));
    let mut products: Vec<Option<(String, HostKernel)>> =
        products.iter().map(|product| product.as_ref().map(named).transpose()).collect::<Result<_>>()?;
    let mut take = compiled(node)?;
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
        take(terms)
    }))
}
