//! Gradients of a whole graph by name, for the command line.

use meshtf_tensor::failure::Result;

use super::walk::walk;
use super::{Differentiation, Gradient, Unconnected, dense};
use crate::{Graph, GraphBuilder, Output};

/// The gradient with respect to one tensor, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGradient {
    /// The tensor that it is the gradient with respect to, as given by the caller.
    pub by: String,
    /// The name under which it is fetched; `None` if no differentiated tensor depends on the tensor.
    pub name: Option<String>,
    /// The names of its values, indices and dense shape, if it is sparse. The tensor `name` is dense nevertheless.
    pub rows: Option<[String; 3]>,
}

/// Adds the derivatives of the sum of some tensors with respect to others to a graph. That with respect to `a/b` is named
/// `gradients/a/b`, that with respect to `a/b:1` `gradients/a/b_1`; and `gradients_1/a/b` if the graph has gradients already.
///
/// # Errors
/// As [`gradients`](super::gradients), and InvalidArgument for a name that denotes no tensor.
pub fn of_graph(
    graph: Graph,
    of: &[String],
    by: &[String],
    unconnected: Unconnected,
) -> Result<(Graph, Vec<NamedGradient>)> {
    let find = |names: &[String]| -> Result<Vec<Output>> {
        Ok(names.iter().map(|name| graph.output(name)).collect::<std::result::Result<_, _>>()?)
    };
    let (ys, xs) = (find(of)?, find(by)?);
    let mut g = GraphBuilder::from(graph);
    g.settle()?;
    let scope = g.free_scope("gradients");
    let names: Vec<String> = xs.iter().map(|x| full_name(&scope, &g.settled().node(x.node).name, x.port)).collect();
    // The nodes that compute the gradients get other names.
    names.iter().for_each(|name| g.reserve(name));
    let options = Differentiation { unconnected, ..Differentiation::default() };
    let by_variable: Vec<Output> = xs.iter().map(|x| of_variable(g.settled(), *x)).collect();
    let found = walk(&mut g, &scope, &ys, &by_variable, &options)?;
    names.iter().for_each(|name| g.release(name));
    let mut named = Vec::with_capacity(by.len());
    for (((by, x), name), gradient) in by.iter().zip(xs).zip(names).zip(found) {
        let device = g.settled().node(x.node).device.clone();
        let one = match gradient {
            None => NamedGradient { by: by.clone(), name: None, rows: None },
            Some(gradient) => g.with_device(&device, |g| {
                let whole = dense(g, gradient)?;
                let whole = add(g, &name, whole)?;
                let rows = match gradient {
                    Gradient::Dense(_) => None,
                    Gradient::Sparse(rows) => Some([
                        add(g, &format!("{name}/values"), rows.values)?,
                        add(g, &format!("{name}/indices"), rows.indices)?,
                        add(g, &format!("{name}/dense_shape"), rows.dense_shape)?,
                    ]),
                };
                Ok(NamedGradient { by: by.clone(), name: Some(whole), rows })
            })?,
        };
        named.push(one);
    }
    Ok((g.finish()?, named))
}

/// The handle of a variable whose value this is, by the names of variables in documents: rows are looked up through the handle.
fn of_variable(graph: &Graph, value: Output) -> Output {
    let node = graph.node(value.node);
    match node.inputs.first() {
        Some(&handle)
            if node.op.reads_variable && graph.node(handle.node).name == format!("{}/variable", node.name) =>
        {
            handle
        }
        _ => value,
    }
}

fn full_name(scope: &str, node: &str, port: u32) -> String {
    if port == 0 { format!("{scope}/{node}") } else { format!("{scope}/{node}_{port}") }
}

/// Adds a node with the value of a tensor under a name; returns its full name.
fn add(g: &mut GraphBuilder, name: &str, output: Output) -> Result<String> {
    let named = g.op("Identity").name(name).input(output).build()?;
    Ok(g.tensor_name(named))
}
