//! The key `local` of the section `train`: the rounds of workers that make steps of their own between two updates that they make
//! together.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{Fault, Member, Path, Value};

use super::{Read, count, number, one_of, unknown};

/// Most local steps of a round.
const MOST_LOCAL: u64 = 4096;

/// The rounds of mode local.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSection {
    /// The number of local steps of a round, from 1 to 4,096.
    pub steps: u64,
    /// The learning rate of the outer update, above 0.
    pub rate: f64,
    /// The momentum of the outer update, from 0 to below 1.
    pub momentum: f64,
    /// The form in which differences are sent.
    pub exchange: Exchange,
}

impl Default for LocalSection {
    fn default() -> LocalSection {
        LocalSection { steps: 50, rate: 0.7, momentum: 0.9, exchange: Exchange::Int8 }
    }
}

/// The form in which workers send the differences that a round has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// A byte for each element, and a float32 for each block of up to 256: the rest is sent with the difference of the next
    /// round. As float32 where that is not larger: with 8 workers or more, and for very few weights.
    #[default]
    Int8,
    /// As they are, in float32.
    Float32,
}

impl Exchange {
    const NAMES: [(&str, Exchange); 2] = [("int8", Exchange::Int8), ("float32", Exchange::Float32)];
}

const KEYS: &[&str] = &["steps", "rate", "momentum", "exchange"];

pub(super) fn local(value: &Value, path: Path) -> Read<LocalSection> {
    let mut section = LocalSection::default();
    for Member { key, at, value } in value.object(path, "local is an object, such as {\"steps\": 50}")? {
        let path = path.key(key);
        match &**key {
            "steps" => section.steps = count(value, path)?,
            "rate" => section.rate = number(value, path)?,
            "momentum" => section.momentum = number(value, path)?,
            "exchange" => section.exchange = one_of(&Exchange::NAMES, value, path)?,
            _ => return Err(unknown(key, *at, path, KEYS)),
        }
        section.check().map_err(|failure| Fault::content(value, path, failure.message))?;
    }
    Ok(section)
}

impl LocalSection {
    /// # Errors
    /// InvalidArgument for a number out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { steps, rate, momentum, .. } = *self;
        let refused = match () {
            () if !(1..=MOST_LOCAL).contains(&steps) => {
                format!("a round of {steps} local steps; expected 1 to {MOST_LOCAL}")
            }
            () if !(rate > 0.0 && rate.is_finite()) => format!("the outer rate is {rate}; expected a number above 0"),
            () if !(0.0..1.0).contains(&momentum) => {
                format!("the outer momentum is {momentum}; expected a number from 0 to below 1")
            }
            () => return Ok(()),
        };
        Err(Failure::invalid(refused))
    }
}
