//! The shape rules by their names in `op/table.txt`: each infers an op's output shapes from its input shapes. Each family's
//! file has a table of its rules.
//!
//! A rule returns the facts about the outputs, in order; `None` if nothing is known about any. It infers nothing that
//! TensorFlow's shape function of the same op would not.

mod arrange;
mod elementwise;
mod example;
mod image;
mod index;
mod lists;
mod make;
mod picture;
mod quantized;
mod ragged;
mod recurrent;
mod reduce;
mod sparse;
mod spectrum;
mod state;
mod trees;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::call::Call;
use super::{Extent, Fact, ShapeRule};

/// Infers an op's output shapes from its input shapes.
pub(super) type Rule = fn(&Call) -> Option<Vec<Fact>>;

/// A rule: its name in the table of ops, its function, and the data on which the sizes of the outputs depend.
type Entry = (&'static str, Rule, Extent);

/// The tables of the families, and the rules that belong to none.
const FAMILIES: [&[Entry]; 17] = [
    &[("none", |_| Some(Vec::new()), Extent::Shapes), ("unknown", nothing_known, Extent::Unknown)],
    arrange::RULES,
    elementwise::RULES,
    example::RULES,
    image::RULES,
    index::RULES,
    lists::RULES,
    make::RULES,
    picture::RULES,
    quantized::RULES,
    ragged::RULES,
    recurrent::RULES,
    reduce::RULES,
    sparse::RULES,
    spectrum::RULES,
    state::RULES,
    trees::RULES,
];

static BY_NAME: LazyLock<HashMap<&str, ShapeRule>> = LazyLock::new(|| all().map(|rule| (rule.name, rule)).collect());

/// Every rule.
pub(super) fn all() -> impl Iterator<Item = ShapeRule> {
    FAMILIES.into_iter().flatten().map(|&(name, infer, extent)| ShapeRule { name, infer, extent })
}

/// The rule of a name in the table.
pub(super) fn named(name: &str) -> Option<ShapeRule> {
    BY_NAME.get(name).copied()
}

/// The rule of an op whose outputs have no known shape.
pub(super) fn nothing_known(_: &Call) -> Option<Vec<Fact>> {
    None
}

/// One output of that shape.
fn one(dims: super::Dims) -> Option<Vec<Fact>> {
    Some(vec![dims.into()])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::op;

    #[test]
    fn every_rule_is_of_an_op_and_has_a_name_of_its_own() {
        let names: Vec<&str> = all().map(|rule| rule.name).collect();
        let distinct: HashSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len(), "two rules of one name");
        let used: HashSet<&str> = op::all().into_iter().map(|op| op.shape.name).collect();
        assert_eq!(distinct.difference(&used).collect::<Vec<_>>(), [&""; 0], "no op has these rules");
    }
}
