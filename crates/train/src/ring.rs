//! All-reduce of gradients over tasks that each have a part of them: afterwards all have the same sums.
//!
//! Gradients travel in buckets, so that those that are computed first are sent while others are computed. Two tasks exchange
//! them, and both add them up. With more tasks, as many buckets as there are tasks are the chunks of one round; a remaining
//! bucket is cut into as many chunks. Each chunk goes around the ring of tasks, of which each adds its part, and once more,
//! complete. So each task sends and receives 2 (n - 1) / n of the bytes, whatever the number of tasks n; no algorithm for the
//! sum takes less.

use meshtf_graph::gradient::{self, Gradient, Rows};
use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::{binary, cast, on, unary};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};

use super::clip::values;
use super::job::share;

/// The sizes of transfers of gradients, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLimits {
    /// The size of a transfer: small gradients are joined up to this, and large ones are cut.
    pub bucket: usize,
    /// The size up to which a gradient is small for two tasks. To join a larger one, and to cut the sum, takes longer than to
    /// send it alone.
    pub joined: usize,
    /// The size up to which each task sends its gradients to every other task, so that they arrive after one hop and not
    /// after a round of the ring.
    pub direct: usize,
    /// The size up to which a worker of a mirrored training updates its share by itself, together with those of all others: that
    /// takes less time than to wait for their results.
    pub undivided: usize,
}

impl Default for BucketLimits {
    fn default() -> BucketLimits {
        BucketLimits { bucket: 4 << 20, joined: 256 << 10, direct: 64 << 10, undivided: 1 << 20 }
    }
}

/// Some elements of a variable's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// The index of the variable.
    variable: usize,
    elements: usize,
}

/// Pieces that are sent together, of one dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bucket {
    bytes: usize,
    pieces: Vec<Piece>,
}

/// Adds nodes that sum gradients over tasks, given each task's variables and its gradients in their order. Returns the sums
/// on each task, which are bitwise identical.
pub fn all_reduce(
    g: &mut GraphBuilder,
    variables: &[Vec<Variable>],
    gradients: &[Vec<Gradient>],
    limits: BucketLimits,
) -> Result<Vec<Vec<Gradient>>> {
    if gradients.len() < 2 {
        return Ok(gradients.to_vec());
    }
    g.with_scope("train/all_reduce", |g| {
        let mut sums: Vec<Vec<Option<Gradient>>> = gradients.iter().map(|set| vec![None; set.len()]).collect();
        let mut dense = Vec::new();
        for place in 0..gradients[0].len() {
            let of_each: Vec<Gradient> = gradients.iter().map(|set| set[place]).collect();
            let rows: Option<Vec<Rows>> =
                of_each.iter().map(|one| if let Gradient::Sparse(rows) = one { Some(*rows) } else { None }).collect();
            match rows {
                Some(rows) => {
                    for (task, own) in variables.iter().enumerate() {
                        sums[task][place] = Some(Gradient::Sparse(all_rows(g, &own[place].device, &rows, task)?));
                    }
                }
                None => dense.push(place),
            }
        }
        // A gradient is added to the graph before those that are computed from it, and so has a smaller index.
        dense.sort_by_key(|&place| values(&gradients[0][place]).node);
        let mut types: Vec<DType> = dense.iter().map(|&place| variables[0][place].dtype).collect();
        types.sort_unstable();
        types.dedup();
        for dtype in types {
            let own: Vec<usize> = dense.iter().copied().filter(|&place| variables[0][place].dtype == dtype).collect();
            let of_type = Dense { variables, gradients, dtype, places: &own, limits };
            for (task, whole) in of_type.add_up(g)?.into_iter().enumerate() {
                for (&place, sum) in own.iter().zip(whole) {
                    sums[task][place] = Some(Gradient::Dense(sum));
                }
            }
        }
        Ok(sums.into_iter().map(|set| set.into_iter().flatten().collect()).collect())
    })
}

/// The rows of all tasks, concatenated, on one of them.
fn all_rows(g: &mut GraphBuilder, device: &str, rows: &[Rows], task: usize) -> Result<Rows> {
    let mut indices = Vec::with_capacity(rows.len());
    for own in rows {
        let device = g.device_of(own.indices);
        indices.push(on(g, &device, |g| cast(g, own.indices, DType::I64))?);
    }
    on(g, device, |g| {
        let values = g.op("ConcatV2").name("rows").inputs(rows.iter().map(|rows| rows.values)).input(0).build()?;
        let indices = g.op("ConcatV2").name("indices").inputs(indices).input(0).build()?;
        Ok(Rows { values, indices, dense_shape: rows[task].dense_shape })
    })
}

/// The dense gradients of one dtype, in the order in which they are computed.
struct Dense<'a> {
    variables: &'a [Vec<Variable>],
    gradients: &'a [Vec<Gradient>],
    dtype: DType,
    places: &'a [usize],
    limits: BucketLimits,
}

impl Dense<'_> {
    /// The sums on each task, in the order of `places`.
    fn add_up(&self, g: &mut GraphBuilder) -> Result<Vec<Vec<Output>>> {
        let width = self.dtype.size().unwrap_or(1);
        let elements: Vec<usize> =
            self.places.iter().map(|&place| self.variables[0][place].shape.elements().unwrap_or(0)).collect();
        // Buckets that go around together take as long as the largest of them.
        let joined = if self.variables.len() == 2 { self.limits.joined } else { self.limits.bucket };
        let buckets = buckets(&elements, width, BucketLimits { joined, ..self.limits });
        // The pieces of each gradient, on each task, in the order of the buckets.
        let mut pieces = Vec::with_capacity(self.variables.len());
        for task in 0..self.variables.len() {
            pieces.push(self.cut(g, task, &buckets)?);
        }
        let mut sums: Vec<Vec<Vec<Output>>> = vec![vec![Vec::new(); self.places.len()]; self.variables.len()];
        let (count, mut rest) = (pieces.len(), &buckets[..]);
        while !rest.is_empty() {
            let is_large = |bucket: &Bucket| bucket.bytes > self.limits.direct;
            // Two tasks send as many bytes in an exchange, and then do not wait for each other's sums.
            let is_group = count > 2 && rest.len() >= count && rest[..count].iter().all(is_large);
            let (group, after) = rest.split_at(if is_group { count } else { 1 });
            rest = after;
            let mut joined = vec![Vec::with_capacity(group.len()); count];
            for (task, own) in pieces.iter_mut().enumerate() {
                for bucket in group {
                    let parts = bucket.pieces.iter().filter_map(|piece| own[piece.variable].next()).collect();
                    joined[task].push(on(g, self.device(task, bucket), |g| join(g, parts))?);
                }
            }
            let summed = match is_group {
                true => around(g, |task, chunk| self.device(task, &group[chunk]), joined)?,
                false => self.alone(g, &group[0], joined)?,
            };
            for (task, wholes) in summed.into_iter().enumerate() {
                for (bucket, whole) in group.iter().zip(wholes) {
                    let sizes: Vec<usize> = bucket.pieces.iter().map(|piece| piece.elements).collect();
                    let parts = on(g, self.device(task, bucket), |g| split(g, whole, &sizes))?;
                    for (piece, part) in bucket.pieces.iter().zip(parts) {
                        sums[task][piece.variable].push(part);
                    }
                }
            }
        }
        let mut whole = Vec::with_capacity(sums.len());
        for (task, parts) in sums.into_iter().enumerate() {
            let mut own = Vec::with_capacity(parts.len());
            for (&place, parts) in self.places.iter().zip(parts) {
                let variable = &self.variables[task][place];
                let shape: Vec<i64> = variable.shape.dims().iter().map(|&size| size as i64).collect();
                own.push(on(g, &variable.device, |g| {
                    let flat = join(g, parts)?;
                    binary(g, "Reshape", flat, Tensor::vector(shape))
                })?);
            }
            whole.push(own);
        }
        Ok(whole)
    }

    /// The sums of one bucket, given the bucket of each task.
    fn alone(&self, g: &mut GraphBuilder, bucket: &Bucket, own: Vec<Vec<Output>>) -> Result<Vec<Vec<Output>>> {
        let count = own.len();
        let device = |task: usize| self.device(task, bucket);
        let own: Vec<Output> = own.into_iter().flatten().collect();
        if count == 2 || bucket.bytes <= self.limits.direct {
            return (0..count)
                .map(|task| on(g, device(task), |g| Ok(vec![g.op("AddN").inputs(own.iter().copied()).build()?])))
                .collect();
        }
        let elements = bucket.pieces.iter().map(|piece| piece.elements).sum();
        let sizes: Vec<usize> = (0..count).map(|part| share(elements, count, part)).collect();
        let mut chunks = Vec::with_capacity(count);
        for (task, own) in own.into_iter().enumerate() {
            chunks.push(on(g, device(task), |g| split(g, own, &sizes))?);
        }
        let chunks = around(g, |task, _| device(task), chunks)?.into_iter().enumerate();
        chunks.map(|(task, chunks)| on(g, device(task), |g| Ok(vec![join(g, chunks)?]))).collect()
    }

    /// The device on which a bucket is joined and cut: that of its first gradient.
    fn device(&self, task: usize, bucket: &Bucket) -> &str {
        &self.variables[task][self.places[bucket.pieces[0].variable]].device
    }

    /// The gradients of a task, flat, each in the pieces of the buckets.
    fn cut(&self, g: &mut GraphBuilder, task: usize, buckets: &[Bucket]) -> Result<Vec<std::vec::IntoIter<Output>>> {
        let mut cut = Vec::with_capacity(self.places.len());
        for (variable, &place) in self.places.iter().enumerate() {
            let own = buckets.iter().flat_map(|bucket| &bucket.pieces).filter(|piece| piece.variable == variable);
            let sizes: Vec<usize> = own.map(|piece| piece.elements).collect();
            let dense = gradient::dense(g, self.gradients[task][place])?;
            cut.push(
                on(g, &self.variables[task][place].device, |g| {
                    let flat = binary(g, "Reshape", dense, Tensor::vector(vec![-1i64]))?;
                    split(g, flat, &sizes)
                })?
                .into_iter(),
            );
        }
        Ok(cut)
    }
}

/// The assignment to buckets of gradients with these numbers of elements, each of `width` bytes.
fn buckets(elements: &[usize], width: usize, limits: BucketLimits) -> Vec<Bucket> {
    let most = (limits.bucket / width).max(1);
    let mut buckets: Vec<Bucket> = Vec::new();
    // The bucket that still has room; a gradient that is not small, or a piece of it, fills a separate bucket.
    let mut open: Option<Bucket> = None;
    for (variable, &elements) in elements.iter().enumerate() {
        let bytes = elements * width;
        if bytes > limits.joined {
            let count = elements.div_ceil(most);
            for part in 0..count {
                let elements = share(elements, count, part);
                buckets.push(Bucket { bytes: elements * width, pieces: vec![Piece { variable, elements }] });
            }
            continue;
        }
        if open.as_ref().is_some_and(|bucket| bucket.bytes + bytes > limits.bucket) {
            buckets.extend(open.take());
        }
        let bucket = open.get_or_insert(Bucket { bytes: 0, pieces: Vec::new() });
        bucket.bytes += bytes;
        bucket.pieces.push(Piece { variable, elements });
    }
    buckets.extend(open);
    buckets
}

/// Sends each chunk around the ring, until its sum is complete on the task with the chunk's index; then once more, unchanged.
/// There are as many chunks as tasks. Takes and returns them by task, then by chunk; `device` is the device of a chunk on a
/// task.
fn around<'a>(
    g: &mut GraphBuilder,
    device: impl Fn(usize, usize) -> &'a str,
    mut chunks: Vec<Vec<Output>>,
) -> Result<Vec<Vec<Output>>> {
    let count = chunks.len();
    for chunk in 0..count {
        let mut parts: Vec<&mut Output> = chunks.iter_mut().map(|task| &mut task[chunk]).collect();
        let on_task = |hop: usize| (chunk + hop) % count;
        let mut sum = *parts[on_task(1)];
        for task in (2..=count).map(on_task) {
            sum = on(g, device(task, chunk), |g| binary(g, "AddV2", sum, *parts[task]))?;
        }
        *parts[chunk] = sum;
        for task in (1..count).map(on_task) {
            sum = on(g, device(task, chunk), |g| unary(g, "Identity", sum))?;
            *parts[task] = sum;
        }
    }
    Ok(chunks)
}

/// Vectors concatenated.
pub(super) fn join(g: &mut GraphBuilder, parts: Vec<Output>) -> Result<Output> {
    match parts[..] {
        [one] => Ok(one),
        _ => g.op("ConcatV2").name("joined").inputs(parts).input(0).build(),
    }
}

/// A vector as parts of these sizes.
pub(super) fn split(g: &mut GraphBuilder, whole: Output, sizes: &[usize]) -> Result<Vec<Output>> {
    if sizes.len() < 2 {
        return Ok(vec![whole]);
    }
    let lengths = Tensor::vector(sizes.iter().map(|&size| size as i64).collect::<Vec<_>>());
    let parts = g.op("SplitV").name("parts").input(whole).input(lengths).input(0);
    let parts = parts.attr("num_split", sizes.len() as i64).build()?;
    Ok((0..sizes.len() as u32).map(|part| parts.port(part)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_travel_in_buckets() {
        let piece = |variable, elements| Piece { variable, elements };
        let limits = BucketLimits { bucket: 4 << 10, joined: 1 << 10, direct: 0, undivided: 0 };
        // 4 bytes each: two small ones together; one in three parts, another by itself; one that does not fit into the bucket
        // of the small ones before it.
        let got = buckets(&[100, 156, 2050, 600, 256, 256, 257, 256, 1], 4, limits);
        let wanted = [
            (4 * 684, vec![piece(2, 684)]),
            (4 * 683, vec![piece(2, 683)]),
            (4 * 683, vec![piece(2, 683)]),
            (4 * 600, vec![piece(3, 600)]),
            (4 * 257, vec![piece(6, 257)]),
            (4096, vec![piece(0, 100), piece(1, 156), piece(4, 256), piece(5, 256), piece(7, 256)]),
            (4, vec![piece(8, 1)]),
        ];
        let wanted: Vec<Bucket> = wanted.map(|(bytes, pieces)| Bucket { bytes, pieces }).into();
        assert_eq!(got, wanted);
        assert_eq!(buckets(&[], 4, limits), []);
    }
}
