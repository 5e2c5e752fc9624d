//! The exchange of a mirrored training: gradients go to the workers that update their variables, which add them up
//! (reduce-scatter), and the new values go to all workers (all-gather).
//!
//! Each worker sends every other worker a part of its gradients and receives a part of the values: 2 (n - 1) / n of the bytes of
//! all gradients, whatever the number of workers n, over one hop each.

use meshtf_graph::gradient::{self, Gradient};
use meshtf_graph::variable::ops::{binary, on};
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_variable, read};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Shape, Tensor};

use super::shares::{Piece, Unit};
use crate::ring::{join, split};

/// The prefix of the names of the variables that have a piece of another variable.
const SHARES: &str = "train/shares";

/// A unit on the workers.
pub(super) struct Exchange<'a> {
    pub unit: &'a Unit,
    /// For each worker, the trained variables.
    variables: &'a [Vec<Variable>],
    /// For a variable in pieces, the variables of the pieces.
    pub shares: Vec<Variable>,
}

/// A variable of a unit that a worker updates, and the sum of its gradients.
pub(super) type Summed = (Variable, Output);

impl<'a> Exchange<'a> {
    /// Adds the variables of the pieces, if the unit is cut. They begin with the value of the first worker's variable.
    pub fn begin(g: &mut GraphBuilder, unit: &'a Unit, variables: &'a [Vec<Variable>]) -> Result<Exchange<'a>> {
        let Unit::Cut { place, pieces } = unit else { return Ok(Exchange { unit, variables, shares: Vec::new() }) };
        let whole = &variables[0][*place];
        let (mut shares, mut first) = (Vec::with_capacity(pieces.len()), 0i64);
        for (k, piece) in pieces.iter().enumerate() {
            let device = &variables[piece.owner][*place].device;
            let spec = VariableSpec {
                dtype: whole.dtype,
                device: device.clone(),
                ..VariableSpec::new(&format!("{SHARES}/{}/{k}", whole.name), [piece.elements], Initializer::Zeros)
            };
            let mut share = add_variable(g, &spec)?;
            let value = on(g, &whole.device, |g| read(g, whole.handle, whole.is_ref, whole.dtype).build())?;
            share.assign = Some(on(g, device, |g| {
                let flat = flat(g, value)?;
                let size = Tensor::vector(vec![piece.elements as i64]);
                let part = g.op("Slice").input(flat).input(Tensor::vector(vec![first])).input(size).build()?;
                binary(g, "AssignVariableOp", share.handle, part)
            })?);
            first += piece.elements as i64;
            shares.push(share);
        }
        Ok(Exchange { unit, variables, shares })
    }

    /// Adds the sums of the gradients on the workers that own the variables: those of the unit, or for each piece that of the
    /// piece.
    pub fn sums(&self, g: &mut GraphBuilder, gradients: &[Vec<Gradient>]) -> Result<Vec<Summed>> {
        match self.unit {
            Unit::Owned { owner, places } => self.owned(g, gradients, *owner, places),
            Unit::Cut { place, pieces } => self.cut(g, gradients, *place, pieces),
        }
    }

    fn owned(
        &self,
        g: &mut GraphBuilder,
        gradients: &[Vec<Gradient>],
        owner: usize,
        places: &[usize],
    ) -> Result<Vec<Summed>> {
        let own = &self.variables[owner];
        let device = &own[places[0]].device;
        let mut of_each = Vec::with_capacity(gradients.len());
        for (worker, set) in gradients.iter().enumerate() {
            let mut dense = Vec::with_capacity(places.len());
            for &place in places {
                dense.push(gradient::dense(g, set[place])?);
            }
            of_each.push(on(g, &self.variables[worker][places[0]].device, |g| together(g, &dense))?);
        }
        let sum = on(g, device, |g| g.op("AddN").inputs(of_each).build())?;
        let sums = on(g, device, |g| apart(g, sum, &self.shapes(places)))?;
        Ok(places.iter().map(|&place| own[place].clone()).zip(sums).collect())
    }

    fn cut(
        &self,
        g: &mut GraphBuilder,
        gradients: &[Vec<Gradient>],
        place: usize,
        pieces: &[Piece],
    ) -> Result<Vec<Summed>> {
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.elements).collect();
        let mut of_each = Vec::with_capacity(gradients.len());
        for (worker, set) in gradients.iter().enumerate() {
            let dense = gradient::dense(g, set[place])?;
            of_each.push(on(g, &self.variables[worker][place].device, |g| {
                let flat = flat(g, dense)?;
                split(g, flat, &sizes)
            })?);
        }
        let mut sums = Vec::with_capacity(pieces.len());
        for (k, share) in self.shares.iter().enumerate() {
            let parts = of_each.iter().map(|parts| parts[k]);
            sums.push((share.clone(), on(g, &share.device, |g| g.op("AddN").inputs(parts).build())?));
        }
        Ok(sums)
    }

    /// Adds the assignments of the new values on every worker that did not compute all of them, once these nodes have updated
    /// the variables that [`Exchange::sums`] returned. Returns them for each worker.
    pub fn values(&self, g: &mut GraphBuilder, updates: &[Output]) -> Result<Vec<Option<Output>>> {
        let updated = |g: &mut GraphBuilder, variable: &Variable, update: Output| {
            on(g, &variable.device, |g| {
                read(g, variable.handle, variable.is_ref, variable.dtype).control(update).build()
            })
        };
        let mut values = Vec::with_capacity(updates.len());
        let (owner, places) = match self.unit {
            Unit::Owned { owner, places } => {
                for (&place, &update) in places.iter().zip(updates) {
                    values.push(updated(g, &self.variables[*owner][place], update)?);
                }
                let device = &self.variables[*owner][places[0]].device;
                values = vec![on(g, device, |g| together(g, &values))?];
                (Some(*owner), &places[..])
            }
            Unit::Cut { place, .. } => {
                for (share, &update) in self.shares.iter().zip(updates) {
                    values.push(updated(g, share, update)?);
                }
                (None, std::slice::from_ref(place))
            }
        };
        let shapes = self.shapes(places);
        let mut assigned = Vec::with_capacity(self.variables.len());
        for (worker, own) in self.variables.iter().enumerate() {
            if owner == Some(worker) {
                assigned.push(None);
                continue;
            }
            let device = &own[places[0]].device;
            let nodes = on(g, device, |g| {
                let parts = match self.shares.is_empty() {
                    true => apart(g, values[0], &shapes)?,
                    false => vec![whole(g, &values, shapes[0])?],
                };
                let mut nodes = Vec::with_capacity(places.len());
                for (&place, part) in places.iter().zip(parts) {
                    let assign = if own[place].is_ref { "Assign" } else { "AssignVariableOp" };
                    nodes.push(binary(g, assign, own[place].handle, part)?);
                }
                match nodes[..] {
                    [one] => Ok(one),
                    _ => nodes.iter().fold(g.op("NoOp").name("assigned"), |all, &one| all.control(one)).build(),
                }
            })?;
            assigned.push(Some(nodes));
        }
        Ok(assigned)
    }

    fn shapes(&self, places: &[usize]) -> Vec<&'a Shape> {
        places.iter().map(|&place| &self.variables[0][place].shape).collect()
    }
}

fn flat(g: &mut GraphBuilder, x: Output) -> Result<Output> {
    binary(g, "Reshape", x, Tensor::vector(vec![-1i64]))
}

pub(super) fn shaped(g: &mut GraphBuilder, x: Output, shape: &Shape) -> Result<Output> {
    binary(g, "Reshape", x, Tensor::vector(shape.dims().iter().map(|&size| size as i64).collect::<Vec<_>>()))
}

/// Vectors as one tensor of this shape.
pub(super) fn whole(g: &mut GraphBuilder, parts: &[Output], shape: &Shape) -> Result<Output> {
    let flat = join(g, parts.to_vec())?;
    shaped(g, flat, shape)
}

/// The elements of a tensor in parts of these sizes.
pub(super) fn parts(g: &mut GraphBuilder, whole: Output, sizes: &[usize]) -> Result<Vec<Output>> {
    let flat = flat(g, whole)?;
    split(g, flat, sizes)
}

/// Tensors as one vector; one alone as it is.
fn together(g: &mut GraphBuilder, all: &[Output]) -> Result<Output> {
    if let [one] = all {
        return Ok(*one);
    }
    let mut vectors = Vec::with_capacity(all.len());
    for &one in all {
        vectors.push(flat(g, one)?);
    }
    join(g, vectors)
}

/// The vector that [`together`] made, as tensors of these shapes.
fn apart(g: &mut GraphBuilder, joined: Output, shapes: &[&Shape]) -> Result<Vec<Output>> {
    if shapes.len() == 1 {
        return Ok(vec![joined]);
    }
    let sizes: Vec<usize> = shapes.iter().map(|shape| shape.elements().unwrap_or(0)).collect();
    let mut tensors = Vec::with_capacity(shapes.len());
    for (part, shape) in split(g, joined, &sizes)?.into_iter().zip(shapes) {
        tensors.push(shaped(g, part, shape)?);
    }
    Ok(tensors)
}
