//! The optimizers: their slots for each variable, with the initial values.

use meshtf_graph::GraphBuilder;
use meshtf_graph::variable::ops::scalar;
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_variable};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::render::number_text;

/// The rule by which gradients change variables. The parameters are those of TensorFlow's classes in `tf.train`, which these
/// behave like; AdamW and Lion behave like those of Keras.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `w -= rate · g`.
    Sgd,
    /// `a = momentum · a + g`, `w -= rate · a`.
    Momentum {
        /// The share of the last update that is kept.
        momentum: f64,
        /// Whether `w -= rate · (g + momentum · a)` instead.
        nesterov: bool,
    },
    /// `a += g²`, `w -= rate · g / √a`.
    Adagrad {
        /// The initial value of `a`.
        initial: f64,
    },
    /// Rates by the ratio of past updates and past gradients.
    Adadelta {
        /// The decay of the averages.
        rho: f64,
        /// Added below roots.
        epsilon: f64,
    },
    /// `s = decay · s + (1 - decay) · g²`, `m = momentum · m + rate · g / √(s + epsilon)`, `w -= m`.
    RmsProp {
        /// The decay of the average of squares.
        decay: f64,
        /// The share of the last update that is kept.
        momentum: f64,
        /// Added below the root.
        epsilon: f64,
        /// Whether the square of the gradients' mean is subtracted below the root.
        centered: bool,
    },
    /// `m = beta1 · m + (1 - beta1) · g`, `v = beta2 · v + (1 - beta2) · g²`, `w -= rate · m' / (√v' + epsilon)`, with `m'`
    /// and `v'` corrected for the bias of the zero start. A sparse gradient lets `m` and `v` of all rows decay, as in
    /// TensorFlow.
    Adam {
        /// The decay of the average of gradients.
        beta1: f64,
        /// The decay of the average of squares.
        beta2: f64,
        /// Added to the root.
        epsilon: f64,
    },
    /// Adam after `w -= rate · decay · w`.
    AdamW {
        /// As in Adam.
        beta1: f64,
        /// As in Adam.
        beta2: f64,
        /// As in Adam.
        epsilon: f64,
        /// The share of a weight that is subtracted, times the learning rate.
        decay: f64,
    },
    /// Follow the regularized leader, with L1 and L2 regularization.
    Ftrl {
        /// The power of the sum of squares by which rates fall, at most 0.
        power: f64,
        /// The initial value of the sum of squares.
        initial: f64,
        /// The strength of the L1 regularization, which makes weights exactly 0.
        l1: f64,
        /// The strength of the L2 regularization, which draws weights towards 0.
        l2: f64,
    },
    /// `w -= rate · sign(beta1 · m + (1 - beta1) · g)`, `m = beta2 · m + (1 - beta2) · g`.
    Lion {
        /// The share of the past in an update.
        beta1: f64,
        /// The decay of the average of gradients.
        beta2: f64,
    },
}

/// A parameter of an optimizer.
enum Number<'a> {
    Float(&'a mut f64),
    Flag(&'a mut bool),
}

/// The number of slots that an optimizer keeps for each number of a variable, and of numbers that it keeps once.
pub fn state_of(optimizer: &Optimizer) -> (usize, usize) {
    let powers = if let Optimizer::Adam { .. } | Optimizer::AdamW { .. } = optimizer { 2 } else { 0 };
    (optimizer.slots().len(), powers)
}

/// The slots of an optimizer for one variable.
pub(super) struct Slots(pub Vec<Variable>);

/// The state that an optimizer keeps once, of the dtype of its variables: the powers of Adam's betas.
pub(super) struct Powers {
    pub beta1: Variable,
    pub beta2: Variable,
}

impl Optimizer {
    /// Adam with its usual parameters.
    pub const ADAM: Optimizer = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

    /// The optimizer of that name with TensorFlow's usual parameters: sgd, momentum, nesterov, adagrad, adadelta, rmsprop,
    /// adam, adamw, ftrl or lion.
    pub fn of_name(name: &str) -> Option<Optimizer> {
        let (beta1, beta2) = (0.9, 0.999);
        Some(match name {
            "sgd" => Optimizer::Sgd,
            "momentum" => Optimizer::Momentum { momentum: 0.9, nesterov: false },
            "nesterov" => Optimizer::Momentum { momentum: 0.9, nesterov: true },
            "adagrad" => Optimizer::Adagrad { initial: 0.1 },
            "adadelta" => Optimizer::Adadelta { rho: 0.95, epsilon: 1e-8 },
            "rmsprop" => Optimizer::RmsProp { decay: 0.9, momentum: 0.0, epsilon: 1e-10, centered: false },
            "adam" => Optimizer::ADAM,
            "adamw" => Optimizer::AdamW { beta1, beta2, epsilon: 1e-8, decay: 0.004 },
            "ftrl" => Optimizer::Ftrl { power: -0.5, initial: 0.1, l1: 0.0, l2: 0.0 },
            "lion" => Optimizer::Lion { beta1: 0.9, beta2: 0.99 },
            _ => return None,
        })
    }

    /// The names that [`of_name`](Optimizer::of_name) accepts.
    pub const NAMES: &[&str] =
        &["sgd", "momentum", "nesterov", "adagrad", "adadelta", "rmsprop", "adam", "adamw", "ftrl", "lion"];

    /// Its parameters by their names in Rust; `centered` is 0 or 1.
    fn numbers(&mut self) -> Vec<(&'static str, Number<'_>)> {
        use Number::{Flag, Float};
        match self {
            Optimizer::Sgd => vec![],
            Optimizer::Momentum { momentum, nesterov: _ } => vec![("momentum", Float(momentum))],
            Optimizer::Adagrad { initial } => vec![("initial", Float(initial))],
            Optimizer::Adadelta { rho, epsilon } => vec![("rho", Float(rho)), ("epsilon", Float(epsilon))],
            Optimizer::RmsProp { decay, momentum, epsilon, centered } => vec![
                ("decay", Float(decay)),
                ("momentum", Float(momentum)),
                ("epsilon", Float(epsilon)),
                ("centered", Flag(centered)),
            ],
            Optimizer::Adam { beta1, beta2, epsilon } => {
                vec![("beta1", Float(beta1)), ("beta2", Float(beta2)), ("epsilon", Float(epsilon))]
            }
            Optimizer::AdamW { beta1, beta2, epsilon, decay } => vec![
                ("beta1", Float(beta1)),
                ("beta2", Float(beta2)),
                ("epsilon", Float(epsilon)),
                ("decay", Float(decay)),
            ],
            Optimizer::Ftrl { power, initial, l1, l2 } => {
                vec![("power", Float(power)), ("initial", Float(initial)), ("l1", Float(l1)), ("l2", Float(l2))]
            }
            Optimizer::Lion { beta1, beta2 } => vec![("beta1", Float(beta1)), ("beta2", Float(beta2))],
        }
    }

    /// Sets one of its parameters by name; a flag is 0 or 1.
    ///
    /// # Errors
    /// InvalidArgument if it has no such parameter, with those that it has.
    pub fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let mut numbers = self.numbers();
        let known = numbers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        match numbers.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Number::Float(number))) => **number = value,
            Some((_, Number::Flag(flag))) if value == 0.0 || value == 1.0 => **flag = value == 1.0,
            Some(_) => return Err(Failure::invalid(format!("{name} is true or false"))),
            None if known.is_empty() => {
                return Err(Failure::invalid(format!("this optimizer has no {name}; it has no numbers but the rate")));
            }
            None => return Err(Failure::invalid(format!("this optimizer has no {name}; it has {known}"))),
        }
        Ok(())
    }

    /// # Errors
    /// InvalidArgument for a parameter out of range.
    pub(super) fn check(&self) -> Result<()> {
        let refused = |name: &str, value: f64, expected: &str| {
            Failure::invalid(format!("{name} is {}; expected {expected}", number_text(value)))
        };
        let share = |name: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(refused(name, value, "a number from 0 to below 1")),
        };
        let positive = |name: &str, value: f64| match value > 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(refused(name, value, "a number above 0")),
        };
        let not_negative = |name: &str, value: f64| match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(refused(name, value, "a number from 0")),
        };
        match *self {
            Optimizer::Sgd => Ok(()),
            Optimizer::Momentum { momentum, .. } => not_negative("momentum", momentum),
            Optimizer::Adagrad { initial } => positive("initial", initial),
            Optimizer::Adadelta { rho, epsilon } => share("rho", rho).and(positive("epsilon", epsilon)),
            Optimizer::RmsProp { decay, momentum, epsilon, .. } => {
                share("decay", decay).and(not_negative("momentum", momentum)).and(positive("epsilon", epsilon))
            }
            Optimizer::Adam { beta1, beta2, epsilon } => {
                share("beta1", beta1).and(share("beta2", beta2)).and(positive("epsilon", epsilon))
            }
            Optimizer::AdamW { beta1, beta2, epsilon, decay } => {
                share("beta1", beta1).and(share("beta2", beta2)).and(positive("epsilon", epsilon))?;
                not_negative("decay", decay)
            }
            Optimizer::Ftrl { power, initial, l1, l2 } => {
                if !(power <= 0.0 && power.is_finite()) {
                    return Err(Failure::invalid(format!("power is {power}; expected a number of at most 0")));
                }
                positive("initial", initial).and(not_negative("l1", l1)).and(not_negative("l2", l2))
            }
            Optimizer::Lion { beta1, beta2 } => share("beta1", beta1).and(share("beta2", beta2)),
        }
    }

    /// Whether the update of an element depends on no other element of the variable. Parts of the variable may then be updated
    /// apart from each other.
    pub(super) fn is_elementwise(&self) -> bool {
        match self {
            Optimizer::Sgd
            | Optimizer::Momentum { .. }
            | Optimizer::Adagrad { .. }
            | Optimizer::Adadelta { .. }
            | Optimizer::RmsProp { .. }
            | Optimizer::Adam { .. }
            | Optimizer::AdamW { .. }
            | Optimizer::Ftrl { .. }
            | Optimizer::Lion { .. } => true,
        }
    }

    /// The share of a weight that is subtracted with each update, times the rate.
    pub(super) fn decay(&self) -> f64 {
        if let Optimizer::AdamW { decay, .. } = *self { decay } else { 0.0 }
    }

    /// The names of its slots after the variable's, and their initial values.
    fn slots(&self) -> Vec<(&'static str, f64)> {
        match *self {
            Optimizer::Sgd => vec![],
            Optimizer::Momentum { .. } => vec![("Momentum", 0.0)],
            Optimizer::Adagrad { initial } => vec![("Adagrad", initial)],
            Optimizer::Adadelta { .. } => vec![("Adadelta", 0.0), ("Adadelta_1", 0.0)],
            Optimizer::RmsProp { centered: false, .. } => vec![("RMSProp", 1.0), ("RMSProp_1", 0.0)],
            Optimizer::RmsProp { centered: true, .. } => vec![("RMSProp", 1.0), ("RMSProp_1", 0.0), ("RMSProp_2", 0.0)],
            Optimizer::Adam { .. } => vec![("Adam", 0.0), ("Adam_1", 0.0)],
            Optimizer::AdamW { .. } => vec![("AdamW", 0.0), ("AdamW_1", 0.0)],
            Optimizer::Ftrl { initial, .. } => vec![("Ftrl", initial), ("Ftrl_1", 0.0)],
            Optimizer::Lion { .. } => vec![("Lion", 0.0)],
        }
    }

    /// Adds its slots for a variable, on the variable's device.
    pub(super) fn add_slots(&self, g: &mut GraphBuilder, variable: &Variable) -> Result<Slots> {
        let mut slots = Vec::new();
        for (suffix, first) in self.slots() {
            slots.push(beside(g, variable, &format!("{}/{suffix}", variable.name), first, false)?);
        }
        Ok(Slots(slots))
    }

    /// Adds the state that it keeps once, on the device of the first of the variables by name.
    pub(super) fn add_powers(
        &self,
        g: &mut GraphBuilder,
        variables: &[Variable],
        prefix: &str,
    ) -> Result<Option<Powers>> {
        let (Optimizer::Adam { beta1, beta2, .. } | Optimizer::AdamW { beta1, beta2, .. }) = *self else {
            return Ok(None);
        };
        let Some(first) = variables.iter().min_by(|a, b| a.name.cmp(&b.name)) else { return Ok(None) };
        if let Some(other) = variables.iter().find(|variable| variable.dtype != first.dtype) {
            let why = format!("{} is {} and {} is {}", first.name, first.dtype, other.name, other.dtype);
            return Err(Failure::invalid(format!("Adam needs variables of one dtype: {why}")));
        }
        // The powers of a beta that rounds to 1 stay 1.
        scalar(first.dtype, beta1).and(scalar(first.dtype, beta2))?;
        let beta1 = beside(g, first, &format!("{prefix}beta1_power"), beta1, true)?;
        let beta2 = beside(g, first, &format!("{prefix}beta2_power"), beta2, true)?;
        Ok(Some(Powers { beta1, beta2 }))
    }
}

/// A variable that belongs to another one, of its shape or a scalar.
fn beside(g: &mut GraphBuilder, variable: &Variable, name: &str, first: f64, is_scalar: bool) -> Result<Variable> {
    let shape = if is_scalar { meshtf_tensor::Shape::scalar() } else { variable.shape.clone() };
    let spec = VariableSpec {
        dtype: variable.dtype,
        trainable: false,
        device: variable.device.clone(),
        is_ref: variable.is_ref,
        ..VariableSpec::new(name, shape, Initializer::Constant(scalar(variable.dtype, first)?))
    };
    add_variable(g, &spec)
}
