//! The inputs and results of programs: numbers that are the same on every device.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;

/// Numbers with names, in the order of a program's results.
#[derive(Debug, Default)]
pub struct Numbers(Vec<(String, Vec<f64>)>);

impl Numbers {
    /// Reads `tensor` from its device.
    pub fn push<const D: usize>(&mut self, name: impl Into<String>, tensor: Tensor<D>) {
        self.0.push((name.into(), tensor.into_data().iter::<f64>().collect()));
    }

    pub fn push_int<const D: usize>(&mut self, name: impl Into<String>, tensor: Tensor<D, Int>) {
        self.0.push((name.into(), tensor.into_data().iter::<f64>().collect()));
    }

    pub fn push_all(&mut self, name: impl Into<String>, values: Vec<f64>) {
        self.0.push((name.into(), values));
    }

    /// Every parameter and running state of `module`.
    pub fn parameters<M: Module>(&mut self, module: &M) {
        struct Read<'a>(&'a mut Numbers, usize);
        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(format!("parameter {}", self.1), param.val().without_autodiff());
                self.1 += 1;
            }
        }
        module.visit(&mut Read(self, 0));
    }

    /// The values of a learner's metrics.
    pub fn metrics(&mut self, values: &BTreeMap<String, f64>) {
        values.iter().for_each(|(name, value)| self.push_all(name.clone(), vec![*value]));
    }

    /// As text, one line for each name, which [`Numbers::read`] reads.
    pub fn write(&self) -> String {
        let line = |(name, values): &(String, Vec<f64>)| {
            let values: Vec<String> = values.iter().map(f64::to_string).collect();
            format!("{name}\t{}\n", values.join(" "))
        };
        self.0.iter().map(line).collect()
    }

    /// Reads the text of [`Numbers::write`]; `None` if it is incomplete.
    pub fn read(text: &str) -> Option<Numbers> {
        let line = |line: &str| {
            let (name, values) = line.split_once('\t')?;
            let values = values.split(' ').filter(|value| !value.is_empty()).map(str::parse);
            Some((name.to_owned(), values.collect::<Result<_, _>>().ok()?))
        };
        if text.is_empty() || !text.ends_with('\n') {
            None
        } else {
            text.lines().map(line).collect::<Option<_>>().map(Numbers)
        }
    }

    /// The largest difference to `other`, relative to the larger of the two and 1, with its place; or the first mismatch.
    pub fn compare(&self, other: &Numbers) -> Result<(f64, String), String> {
        if self.0.len() != other.0.len() {
            return Err(format!("{} results, {} on flex", self.0.len(), other.0.len()));
        }
        let mut worst = (0.0, String::new());
        for ((name, a), (expected, b)) in self.0.iter().zip(&other.0) {
            if name != expected || a.len() != b.len() {
                return Err(format!("{name} with {} elements, on flex {expected} with {}", a.len(), b.len()));
            }
            for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
                if a == b || (a.is_nan() && b.is_nan()) {
                    continue;
                }
                let off = (a - b).abs() / a.abs().max(b.abs()).max(1.0);
                if off.is_nan() || off > worst.0 {
                    worst = (
                        if off.is_nan() { f64::INFINITY } else { off },
                        format!("{name}[{i}] is {a:e}, on flex {b:e}"),
                    );
                }
            }
        }
        Ok(worst)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, values)| values.len()).sum()
    }
}

/// Numbers from a seed: splitmix64.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// From 0 to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn floats(&mut self, count: usize, low: f64, high: f64) -> Vec<f32> {
        (0..count).map(|_| (low + (high - low) * self.unit()) as f32).collect()
    }
}

/// A tensor of floats from `low` to `high`, the same for the same seed.
pub fn floats<const D: usize>(shape: [usize; D], seed: u64, low: f64, high: f64, device: &Device) -> Tensor<D> {
    let values = Draw::new(seed).floats(shape.iter().product(), low, high);
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A tensor of floats from -1 to 1.
pub fn input<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    floats(shape, seed, -1.0, 1.0, device)
}

/// A tensor of ints from 0 to `below` (exclusive).
pub fn ints<const D: usize>(shape: [usize; D], below: usize, seed: u64, device: &Device) -> Tensor<D, Int> {
    let mut draw = Draw::new(seed);
    let values: Vec<i32> = (0..shape.iter().product()).map(|_| (draw.unit() * below as f64) as i32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// `module` with parameters drawn from `seed`, since an initializer draws other numbers on each device.
pub fn fixed<M: Module>(module: M, seed: u64) -> M {
    fixed_within(module, seed, 0.4)
}

/// As [`fixed`], with parameters from `-bound` to `bound`.
pub fn fixed_within<M: Module>(module: M, seed: u64, bound: f64) -> M {
    struct Fix {
        draw: Draw,
        name: String,
        bound: f64,
    }
    impl ModuleMapper for Fix {
        fn enter_module(&mut self, name: &str, _container: &str) {
            name.clone_into(&mut self.name);
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let positive = matches!(self.name.as_str(), "running_var" | "gamma" | "alpha");
            param.map(|tensor| {
                let shape = tensor.dims();
                let (low, high) = if positive { (0.5, 1.5) } else { (-self.bound, self.bound) };
                let values = self.draw.floats(shape.iter().product(), low, high);
                let device = tensor.device();
                let fixed = Tensor::from_data(TensorData::new(values, shape), &device);
                if tensor.is_require_grad() { fixed.require_grad() } else { fixed }
            })
        }
    }
    module.map(&mut Fix { draw: Draw::new(seed), name: String::new(), bound })
}
