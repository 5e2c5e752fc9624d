//! Names that are made unique as in TensorFlow: `add`, `add_1`, `add_2`.

use std::collections::{HashMap, HashSet};

/// The names in use in a graph under construction. No two may differ in case alone.
#[derive(Debug, Default)]
pub struct UniqueNames {
    /// In lowercase.
    pub(super) taken: HashSet<String>,
    /// By name in lowercase: a lower bound of the numbers after it that are in use, from 1 on.
    pub(super) numbered: HashMap<String, usize>,
}

impl UniqueNames {
    /// The wanted name, or that name and the least number with which nothing has it; it is in use from now on.
    pub fn unique(&mut self, wanted: &str) -> String {
        let small = wanted.to_lowercase();
        if self.taken.insert(small.clone()) {
            return wanted.to_owned();
        }
        let n = self.numbered.entry(small).or_default();
        loop {
            *n += 1;
            let name = format!("{wanted}_{n}");
            if self.taken.insert(name.to_lowercase()) {
                return name;
            }
        }
    }

    /// Whether a name is in use, maybe with other cases of letters.
    pub fn is_taken(&self, name: &str) -> bool {
        self.taken.contains(&name.to_lowercase())
    }

    /// Puts a name in use.
    pub fn reserve(&mut self, name: &str) {
        self.taken.insert(name.to_lowercase());
    }

    /// Ends the use of a name.
    pub fn release(&mut self, name: &str) {
        self.taken.remove(&name.to_lowercase());
    }
}
