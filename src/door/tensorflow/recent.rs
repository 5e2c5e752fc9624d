//! A table with so many places: where it is full, what was used the longest ago goes first, and is remembered as gone.
//!
//! Unlike the crate lru's, its entries have ranks, and some may not go at all.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Most keys of those that had to go, which are remembered.
const MAX_REMEMBERED: usize = 4096;

pub(super) struct Recent<K, V> {
    most: usize,
    entries: HashMap<K, Entry<V>>,
    /// Counts uses.
    clock: u64,
    gone: VecDeque<K>,
}

struct Entry<V> {
    value: V,
    used: u64,
}

/// No entry may go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    pub fn new(most: usize) -> Self {
        Recent { most, entries: HashMap::new(), clock: 0, gone: VecDeque::new() }
    }

    /// An entry, which is used by that.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(&entry.value)
    }

    /// Whether an entry was evicted for another, and not so long ago that it is forgotten.
    pub fn had_to_go<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.gone.iter().any(|gone| gone.borrow() == key)
    }

    /// Takes entries out until there is a place, and answers them. Those of the lowest rank go first, of these the one used
    /// the longest ago; those without a rank stay.
    ///
    /// # Errors
    /// Where too few may go.
    pub fn evict_for_one_more(&mut self, rank: impl Fn(&V) -> Option<u8>) -> Result<Vec<V>, Full> {
        let mut out = Vec::new();
        while self.entries.len() >= self.most {
            let ranked = self.entries.iter().filter_map(|(key, entry)| Some((rank(&entry.value)?, entry.used, key)));
            let (_, _, key) = ranked.min_by_key(|&(rank, used, _)| (rank, used)).ok_or(Full)?;
            let key = key.clone();
            out.extend(self.remove(&key));
            if self.gone.len() == MAX_REMEMBERED {
                self.gone.pop_front();
            }
            self.gone.push_back(key);
        }
        Ok(out)
    }

    /// Puts an entry in; there must be a place.
    pub fn insert(&mut self, key: K, value: V) {
        self.clock += 1;
        self.entries.insert(key, Entry { value, used: self.clock });
    }

    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key).map(|entry| entry.value)
    }

    /// Takes out what is not to stay.
    pub fn take_unless(&mut self, stays: impl Fn(&V) -> bool) -> Vec<V> {
        self.entries.extract_if(|_, entry| !stays(&entry.value)).map(|(_, entry)| entry.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_of_the_lowest_rank_goes() {
        let mut table = Recent::new(3);
        for (key, rank) in [("a", Some(1)), ("b", Some(0)), ("c", Some(0))] {
            assert_eq!(table.evict_for_one_more(|&rank| rank), Ok(Vec::new()));
            table.insert(key, rank);
        }
        assert!(table.get("b").is_some());
        let mut next = |key: &'static str, rank: Option<u8>, gone: Option<&str>| {
            match (table.evict_for_one_more(|&rank| rank), gone) {
                (Ok(out), Some(gone)) => assert!(out.len() == 1 && table.had_to_go(gone), "{key}"),
                (out, gone) => assert!(out == Err(Full) && gone.is_none(), "{key}: {out:?}"),
            }
            if gone.is_some() {
                table.insert(key, rank);
            }
        };
        next("d", None, Some("c"));
        next("e", None, Some("b"));
        next("f", None, Some("a"));
        next("g", None, None);
        assert_eq!(table.remove("d"), Some(None));
        assert!(!table.had_to_go("d") && table.get("d").is_none() && table.get("e").is_some());
        assert_eq!(table.take_unless(|_| false).len(), 2);
    }

    #[test]
    fn what_had_to_go_is_forgotten_at_last() {
        let mut table = Recent::new(1);
        for key in 0..MAX_REMEMBERED as u32 + 2 {
            table.evict_for_one_more(|()| Some(0)).unwrap();
            table.insert(key, ());
        }
        assert!(!table.had_to_go(&0) && table.had_to_go(&1) && table.had_to_go(&(MAX_REMEMBERED as u32)));
    }
}
