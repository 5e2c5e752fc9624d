//! The ops of k-means: the nearest centres of points, and the choice of points as initial centres.

use std::collections::HashSet;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::call::{kernel as call, size, take};
use super::real::order;
use super::{HostKernel, Outputs, Registry, random};

/// Registers the ops of k-means.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("NearestNeighbors", |_| {
        Ok(Some(Box::new(|inputs| {
            let [points, centers, k] = take(inputs)?;
            nearest(&points, &centers, &k)
        }) as HostKernel))
    });
    ops.insert("KMC2ChainInitialization", |_| {
        Ok(Some(call(|[distances, seed]: [Tensor; 2]| chain(&distances, &seed))))
    });
    ops.insert("KmeansPlusPlusInitialization", |_| Ok(Some(call(|inputs: [Tensor; 4]| plus_plus(&inputs)))));
}

/// The rows of a matrix, and half of each row's squared length.
struct Points<'a> {
    rows: &'a [f32],
    count: usize,
    width: usize,
    half_squares: Vec<f32>,
}

impl<'a> Points<'a> {
    fn of(matrix: &'a Tensor, what: &str) -> Result<Points<'a>> {
        let &[count, width] = matrix.dims() else {
            return Err(Failure::invalid(format!("Input {what} should be a matrix. Its shape is {}", matrix.shape())));
        };
        Shape::from([count]).checked_elements(DType::F32)?;
        let rows = matrix.slice::<f32>()?;
        let mut points = Points { rows, count, width, half_squares: Vec::with_capacity(count) };
        let mut pace = Pace::new();
        for i in 0..count {
            pace.go(4 + width);
            let square = 0.5 * dot(points.row(i), points.row(i));
            points.half_squares.push(square);
        }
        Ok(points)
    }

    #[inline]
    fn row(&self, i: usize) -> &'a [f32] {
        &self.rows[i * self.width..][..self.width]
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The nearest `k` centres of each point, nearest first, and their squared distances.
fn nearest(points: &Tensor, centers: &Tensor, k: &Tensor) -> Result<Outputs> {
    if k.rank() > 0 {
        return Err(Failure::invalid("Input k should be a scalar."));
    }
    let (points, centers) = (Points::of(points, "points")?, Points::of(centers, "centers")?);
    if points.count == 0 {
        return Err(Failure::invalid("Expected points.rows() > 0."));
    }
    if points.width != centers.width {
        return Err(Failure::invalid(format!(
            "Expected point_dimensions == center_dimensions: {} vs {}.",
            points.width, centers.width
        )));
    }
    let k = size(k, "k")?.min(centers.count);
    let shape = Shape::from([points.count, k]);
    let elements = shape.checked_elements(DType::I64)?;
    memory::admit(elements.saturating_mul(12).saturating_add(centers.count.saturating_mul(16)))?;
    let (mut indices, mut distances) = (Vec::with_capacity(elements), Vec::with_capacity(elements));
    let mut pace = Pace::new();
    let mut all: Vec<(f32, usize)> = Vec::with_capacity(centers.count);
    for i in (0..points.count).filter(|_| k > 0) {
        all.clear();
        for j in 0..centers.count {
            pace.go(8 + points.width);
            all.push((centers.half_squares[j] - dot(points.row(i), centers.row(j)), j));
        }
        let by_distance = |a: &(f32, usize), b: &(f32, usize)| order(&a.0, &b.0).then(a.1.cmp(&b.1));
        all.select_nth_unstable_by(k - 1, by_distance);
        all[..k].sort_unstable_by(by_distance);
        indices.extend(all[..k].iter().map(|(_, j)| *j as i64));
        distances.extend(all[..k].iter().map(|(partial, _)| 2.0 * (points.half_squares[i] + partial)));
    }
    Ok(smallvec![Tensor::from_vec(shape.clone(), indices), Tensor::from_vec(shape, distances)])
}

fn generator(seed: &Tensor) -> Result<random::Simple> {
    if seed.rank() > 0 {
        return Err(Failure::invalid("Input seed should be a scalar."));
    }
    Ok(random::Simple::new(seed.to_i64()? as u64))
}

/// The last point of a chain of candidates. The probability of a candidate grows with its distance.
fn chain(distances: &Tensor, seed: &Tensor) -> Result<Tensor> {
    if distances.rank() != 1 {
        return Err(Failure::invalid("Input distances should be a vector."));
    }
    let mut random = generator(seed)?;
    let distances = distances.slice::<f32>()?;
    let Some(&first) = distances.first() else {
        return Err(Failure::invalid("Expected distances_tensor.size() > 0."));
    };
    let (mut selected, mut distance) = (0, first);
    let mut pace = Pace::new();
    for (i, &candidate) in distances.iter().enumerate().skip(1) {
        pace.go(16);
        if candidate > random.fraction() * distance {
            (selected, distance) = (i as i64, candidate);
        }
    }
    Ok(Tensor::scalar(selected))
}

/// Most draws that repeat a chosen point; after them the first point not yet chosen is taken.
const MAX_DRAWS: usize = 1 << 16;

/// Some of the points. The probability of each grows with its distance from the points drawn before.
fn plus_plus([points, count, seed, retries]: &[Tensor; 4]) -> Result<Tensor> {
    let points = Points::of(points, "points")?;
    for (input, name) in [(count, "num_to_sample"), (retries, "num_retries_per_sample")] {
        if input.rank() > 0 {
            return Err(Failure::invalid(format!("Input {name} should be a scalar.")));
        }
    }
    let mut random = generator(seed)?;
    let (count, retries) = (count.to_i64()?, retries.to_i64()?);
    if points.count == 0 {
        return Err(Failure::invalid("Expected points.rows() > 0."));
    }
    let wanted = usize::try_from(count).ok().filter(|&count| count > 0);
    let wanted = wanted.ok_or_else(|| Failure::invalid("Expected num_to_sample > 0."))?;
    if wanted > points.count {
        let why = format!("Expected num_to_sample <= points.rows(). {wanted} vs {}.", points.count);
        return Err(Failure::invalid(why));
    }
    let tries = if retries < 0 { 2 + (wanted as f64).ln() as i64 } else { retries }.saturating_add(1);
    memory::admit(points.count.saturating_mul(4 * 4 + 8))?;
    let mut chosen = Chosen {
        nearest: vec![f32::INFINITY; points.count],
        sums: vec![0.0; points.count],
        taken: HashSet::new(),
        points: &points,
        pace: Pace::new(),
    };
    let shape = Shape::from([wanted, points.width]);
    let mut out = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    for _ in 0..wanted {
        chosen.sum_up();
        let mut best: Option<(f32, usize, Vec<f32>)> = None;
        for _ in 0..tries {
            let index = chosen.draw(&mut random);
            let nearest = chosen.with(index);
            let potential = nearest.iter().sum::<f32>();
            if best.as_ref().is_none_or(|(least, ..)| potential < *least) {
                best = Some((potential, index, nearest));
            }
        }
        let Some((_, index, nearest)) = best else { break };
        chosen.nearest = nearest;
        chosen.taken.insert(index);
        out.extend_from_slice(points.row(index));
    }
    Ok(Tensor::from_vec(shape, out))
}

struct Chosen<'a> {
    points: &'a Points<'a>,
    /// For each point, half of the squared distance to the nearest chosen point.
    nearest: Vec<f32>,
    /// The partial sums of `nearest` up to each point.
    sums: Vec<f32>,
    taken: HashSet<usize>,
    pace: Pace,
}

impl Chosen<'_> {
    #[inline]
    fn sum_up(&mut self) {
        let mut sum = 0.0;
        for (total, nearest) in self.sums.iter_mut().zip(&self.nearest) {
            sum += nearest;
            *total = sum;
        }
    }

    fn draw(&mut self, random: &mut random::Simple) -> usize {
        let last = self.points.count - 1;
        if self.taken.is_empty() {
            return random.below(self.points.count as u64) as usize;
        }
        for _ in 0..MAX_DRAWS {
            self.pace.go(32);
            let at = random.fraction() * self.sums[last];
            let index = self.sums.partition_point(|sum| *sum <= at).min(last);
            if !self.taken.contains(&index) {
                return index;
            }
        }
        (0..last).find(|index| !self.taken.contains(index)).unwrap_or(last)
    }

    /// The distances to the nearest chosen point if the point `index` were chosen, too.
    fn with(&mut self, index: usize) -> Vec<f32> {
        let (own, half) = (self.points.row(index), self.points.half_squares[index]);
        let mut nearest = Vec::with_capacity(self.points.count);
        for i in 0..self.points.count {
            self.pace.go(8 + own.len());
            let distance = (self.points.half_squares[i] - dot(self.points.row(i), own)) + half;
            nearest.push(self.nearest[i].min(distance));
        }
        nearest
    }
}
