//! Schedules of the learning rate over the steps.

use meshtf_graph::variable::ops::{binary, cast, unary};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

/// The learning rate as a function of the number of updates so far.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// Always the same.
    Constant(f64),
    /// `rates[i]` from the update with the number `after[i - 1]` on, `rates[0]` before.
    Steps {
        /// The numbers of updates after which the rate changes, ascending.
        after: Vec<u64>,
        /// The rates: one more than there are changes.
        rates: Vec<f64>,
    },
    /// `rate · factor ^ (step / every)`.
    Exponential {
        /// The initial rate.
        rate: f64,
        /// The factor of each change.
        factor: f64,
        /// The number of updates for one factor.
        every: u64,
        /// Whether the rate changes at once after that many updates, rather than gradually with each.
        staircase: bool,
    },
    /// Half a cosine wave from the rate down to `last · rate`, where it stays.
    Cosine {
        /// The initial rate.
        rate: f64,
        /// The number of updates that the decay takes.
        steps: u64,
        /// The share of the rate that remains at the end.
        last: f64,
    },
    /// Linear growth to the initial rate of another schedule, which begins after that.
    WarmUp(WarmUp),
}

/// Warm-up before another schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmUp {
    /// The number of updates of the warm-up; update number `i`, from 0, has `(i + 1) / steps` of the initial rate.
    pub steps: u64,
    /// The schedule after the warm-up.
    pub then: Box<Schedule>,
}

impl From<f64> for Schedule {
    fn from(rate: f64) -> Schedule {
        Schedule::Constant(rate)
    }
}

impl Schedule {
    /// Adds the nodes that compute the rate, a scalar of float32, from the number of updates, a scalar of int64.
    ///
    /// # Errors
    /// InvalidArgument for an invalid schedule: a negative rate, changes that do not ascend.
    pub fn add(&self, g: &mut GraphBuilder, step: Output) -> Result<Output> {
        self.check()?;
        g.with_scope("learning_rate", |g| self.nodes(g, step))
    }

    fn check(&self) -> Result<()> {
        let wrong = |why: String| Err(Failure::invalid(format!("learning rate: {why}")));
        let rates: &[f64] = match self {
            Schedule::Constant(rate) | Schedule::Exponential { rate, .. } | Schedule::Cosine { rate, .. } => &[*rate],
            Schedule::Steps { rates, .. } => rates,
            Schedule::WarmUp(WarmUp { steps, then }) => {
                if *steps == 0 {
                    return wrong("a warm-up takes at least one step".to_owned());
                }
                return then.check();
            }
        };
        if let Some(rate) = rates.iter().find(|rate| !rate.is_finite() || **rate < 0.0) {
            return wrong(format!("the rate is {rate}; expected 0 or more"));
        }
        match self {
            Schedule::Steps { after, rates } if rates.len() != after.len() + 1 => {
                wrong(format!("{} changes need {} rates, and there are {}", after.len(), after.len() + 1, rates.len()))
            }
            Schedule::Steps { after, .. } if !after.is_sorted_by(|a, b| a < b) => {
                wrong("the steps after which it changes must ascend".to_owned())
            }
            Schedule::Exponential { every: 0, .. } | Schedule::Cosine { steps: 0, .. } => {
                wrong("it takes at least one step".to_owned())
            }
            Schedule::Exponential { factor, .. } if !(*factor > 0.0 && factor.is_finite()) => {
                wrong(format!("the factor is {factor}; expected a number above 0"))
            }
            Schedule::Cosine { last, .. } if !(0.0..=1.0).contains(last) => {
                wrong(format!("the last share of the rate is {last}; expected 0 to 1"))
            }
            _ => Ok(()),
        }
    }

    fn nodes(&self, g: &mut GraphBuilder, step: Output) -> Result<Output> {
        match self {
            Schedule::Constant(rate) => g.constant("rate", *rate as f32),
            Schedule::Steps { after, rates } => {
                // The rate before the first change, and from each change on the difference to the rate before.
                let mut rate = g.constant("rate", rates[0] as f32)?;
                for (&after, &next) in after.iter().zip(&rates[1..]) {
                    let is_due = binary(g, "GreaterEqual", step, count(after)?)?;
                    rate = g.op("SelectV2").input(is_due).input(next as f32).input(rate).build()?;
                }
                Ok(rate)
            }
            Schedule::Exponential { rate, factor, every, staircase } => {
                let step = cast(g, step, DType::F32)?;
                let mut times = binary(g, "RealDiv", step, *every as f32)?;
                if *staircase {
                    times = unary(g, "Floor", times)?;
                }
                let power = binary(g, "Pow", *factor as f32, times)?;
                binary(g, "Mul", power, *rate as f32)
            }
            Schedule::Cosine { rate, steps, last } => {
                let step = binary(g, "Minimum", step, count(*steps)?)?;
                let step = cast(g, step, DType::F32)?;
                let share = binary(g, "RealDiv", step, *steps as f32)?;
                let angle = binary(g, "Mul", share, std::f32::consts::PI)?;
                let wave = unary(g, "Cos", angle)?;
                let half = binary(g, "Mul", wave, (0.5 * (1.0 - last) * rate) as f32)?;
                binary(g, "AddV2", half, (0.5 * (1.0 + last) * rate) as f32)
            }
            Schedule::WarmUp(WarmUp { steps, then }) => {
                let left = binary(g, "Sub", step, count(*steps)?)?;
                let after = binary(g, "Maximum", left, 0i64)?;
                let rate = then.nodes(g, after)?;
                let next = binary(g, "AddV2", step, 1i64)?;
                let next = cast(g, next, DType::F32)?;
                let share = binary(g, "RealDiv", next, *steps as f32)?;
                let share = binary(g, "Minimum", share, 1f32)?;
                binary(g, "Mul", rate, share)
            }
        }
    }
}

fn count(steps: u64) -> Result<i64> {
    i64::try_from(steps).map_err(|_| Failure::invalid(format!("learning rate: {steps} steps are too many")))
}
