//! SobolSample: quasi-random points that fill a cube evenly.
//!
//! The crate sobol is not maintained. `sobol.bin` has the direction numbers of S. Joe and F. Y. Kuo, Constructing Sobol
//! sequences with better two-dimensional projections, 2008 (new-joe-kuo-6.21201,
//! <https://web.maths.unsw.edu.au/~fkuo/sobol/>), for each dimension from the second on, in bits, the low ones first: the
//! degree of its polynomial (5 bits), the coefficients between the first and the last (the constant's side first), and the
//! odd numbers m1, m2, ... without their lowest bits, each of one bit more than the one before.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::Registry;
use super::super::call::{kernel as call, output_dtype};

/// The number of dimensions in the file, and the first.
const MOST_DIMENSIONS: i64 = 21_200;

static NUMBERS: &[u8] = include_bytes!("sobol.bin");

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SobolSample", |node| {
        let dtype = output_dtype(node, 0)?;
        let is_held = matches!(dtype, DType::F32 | DType::F64);
        Ok(is_held.then(|| call(move |inputs: [Tensor; 3]| sample(&inputs, dtype))))
    });
}

fn sample(inputs: &[Tensor; 3], dtype: DType) -> Result<Tensor> {
    for (input, name) in inputs.iter().zip(["dim", "num_results", "skip"]) {
        if input.rank() != 0 {
            return Err(Failure::invalid(format!("{name} must be a scalar. Its shape is {}", input.shape())));
        }
    }
    let [dimensions, count, skip] = [inputs[0].to_i64()?, inputs[1].to_i64()?, inputs[2].to_i64()?];
    let limit = i64::from(i32::MAX);
    let check = |is_right: bool, what: String| if is_right { Ok(()) } else { Err(Failure::invalid(what)) };
    check(dimensions >= 1, format!("dim must be at least one, got {dimensions}"))?;
    check(dimensions <= MOST_DIMENSIONS, format!("dim must be at most {MOST_DIMENSIONS}, got {dimensions}"))?;
    check(count >= 1, format!("num_results must be at least one, got {count}"))?;
    check(skip >= 0, format!("skip must be non-negative, got {skip}"))?;
    check(count < limit - skip, format!("num_results+skip must be less than {limit}, got {count} and {skip}"))?;
    let (dimensions, count, skip) = (dimensions as usize, count as usize, skip as u64);
    let shape = Shape::from([count, dimensions]);
    let all = shape.checked_elements(DType::F64)?;
    // Enough binary digits for the last point; every number is a whole multiple of the last digit.
    let digits = 64 - (skip + count as u64 + 1).leading_zeros();
    let directions = directions(dimensions, digits);
    let scale = 1.0 / (1u64 << digits) as f64;
    let (mut point, mut out) = (vec![0u64; dimensions], Vec::with_capacity(all));
    // The Gray code of the point before the first has a bit for each of its directions.
    let gray = skip ^ (skip >> 1);
    for k in (0..digits as usize).filter(|&k| gray >> k & 1 == 1) {
        point.iter_mut().zip(&directions[k * dimensions..]).for_each(|(x, v)| *x ^= v);
    }
    let mut pace = Pace::new();
    for i in skip..skip + count as u64 {
        pace.go(dimensions);
        let k = i.trailing_ones() as usize;
        point.iter_mut().zip(&directions[k * dimensions..]).for_each(|(x, v)| *x ^= v);
        out.extend(point.iter().map(|&x| x as f64 * scale));
    }
    Ok(match dtype {
        DType::F32 => Tensor::from_vec(shape, out.into_iter().map(|x| x as f32).collect()),
        _ => Tensor::from_vec(shape, out),
    })
}

/// The direction numbers of each dimension for each binary digit: those of digit 0 first.
fn directions(dimensions: usize, digits: u32) -> Vec<u64> {
    let digits = digits as usize;
    let mut all = vec![0u64; dimensions * digits];
    let mut bits = Bits { at: 0 };
    let mut pace = Pace::new();
    for j in 0..dimensions {
        pace.go(32 * digits);
        // The first dimension has the numbers 1, 1, 1, ...
        let (mut m, mut taps) = (vec![1u64], 0);
        let degree = if j == 0 { 0 } else { bits.take(5) as usize };
        if j > 0 {
            taps = bits.take(degree - 1);
            m = (0..degree).map(|i| bits.take(i) << 1 | 1).collect();
        }
        for k in m.len()..digits {
            let next = match degree {
                0 => 1,
                _ => {
                    let own = m[k - degree] ^ m[k - degree] << degree;
                    // Coefficient i of the polynomial, from its highest power on, shifts by i.
                    (1..degree).filter(|i| taps >> (degree - 1 - i) & 1 == 1).fold(own, |sum, i| sum ^ m[k - i] << i)
                }
            };
            m.push(next);
        }
        for (k, &m) in m.iter().take(digits).enumerate() {
            all[k * dimensions + j] = m << (digits - 1 - k);
        }
    }
    all
}

/// A position in the file.
struct Bits {
    at: usize,
}

impl Bits {
    fn take(&mut self, count: usize) -> u64 {
        let bit = |at: usize| u64::from(NUMBERS[at / 8] >> (at % 8) & 1);
        let value = (0..count).map(|i| bit(self.at + i) << i).sum();
        self.at += count;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_all_dimensions_and_no_more() {
        let all = directions(MOST_DIMENSIONS as usize, 1);
        // The first direction of every dimension is one half.
        assert!(all.iter().all(|&v| v == 1));
        let mut bits = Bits { at: 0 };
        for _ in 1..MOST_DIMENSIONS {
            let degree = bits.take(5) as usize;
            bits.at += degree - 1 + degree * (degree - 1) / 2;
        }
        assert_eq!(bits.at.div_ceil(8), NUMBERS.len());
    }
}
