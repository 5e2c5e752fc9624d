//! Ops that draw random numbers: seeds, and the positions of stateful nodes. The numbers are those of `meshtf_random`.
//!
//! A stateless op's numbers follow from its inputs. A stateful node continues where it stopped in the last step of its
//! session that ran it. With both seeds 0 its first position is random, otherwise it follows from the seeds.

mod binomial;
mod candidates;
mod indices;
mod rejection;
mod simple;
mod sobol;
mod stateful;
mod stateless;
mod unigrams;

pub use self::binomial::binomial;
pub use self::candidates::fixed;
pub use self::simple::Simple;
pub use self::stateful::{Dice, DicePosition, Generators, Position};
pub use self::stateless::key_and_counter;
pub use self::unigrams::Unigrams;

use super::Registry;

/// Registers the ops that draw random numbers.
pub(super) fn register(ops: &mut Registry) {
    stateful::register(ops);
    candidates::register(ops);
    rejection::register(ops);
    stateless::register(ops);
    binomial::register(ops);
    indices::register(ops);
    sobol::register(ops);
}
