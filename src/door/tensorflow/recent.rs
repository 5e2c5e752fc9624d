//! A table of limited size: if it is full, the least recently used entry is evicted, and remembered as evicted.
//!
//! Unlike those of the crate lru, its entries have ranks, and some cannot be evicted at all.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Maximum number of keys of evicted entries that are remembered.
const MAX_REMEMBERED: usize = 4096;

pub(super) struct RecentlyUsed<K, V> {
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

/// No entry can be evicted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<K: Hash + Eq + Clone, V> RecentlyUsed<K, V> {
    pub fn new(most: usize) -> Self {
        RecentlyUsed { most, entries: HashMap::new(), clock: 0, gone: VecDeque::new() }
    }

    /// An entry, which becomes the most recently used.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(&entry.value)
    }

    /// Whether an entry was evicted recently enough to be remembered.
    pub fn was_evicted<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.gone.iter().any(|gone| gone.borrow() == key)
    }

    /// Evicts entries until a slot is free, and returns them. Those with the lowest rank are evicted first, among these the
    /// least recently used; those without a rank stay.
    ///
    /// # Errors
    /// If too few can be evicted.
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

    /// Inserts an entry; a slot must be free.
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

    /// Removes and returns the entries that `stays` rejects.
    pub fn take_unless(&mut self, stays: impl Fn(&V) -> bool) -> Vec<V> {
        self.entries.extract_if(|_, entry| !stays(&entry.value)).map(|(_, entry)| entry.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_of_the_lowest_rank_goes() {
        let mut table = RecentlyUsed::new(3);
        for (key, rank) in [("a", Some(1)), ("b", Some(0)), ("c", Some(0))] {
            assert_eq!(table.evict_for_one_more(|&rank| rank), Ok(Vec::new()));
            table.insert(key, rank);
        }
        assert!(table.get("b").is_some());
        let mut next = |key: &'static str, rank: Option<u8>, gone: Option<&str>| {
            match (table.evict_for_one_more(|&rank| rank), gone) {
                (Ok(out), Some(gone)) => assert!(out.len() == 1 && table.was_evicted(gone), "{key}"),
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
        assert!(!table.was_evicted("d") && table.get("d").is_none() && table.get("e").is_some());
        assert_eq!(table.take_unless(|_| false).len(), 2);
    }

    #[test]
    fn evicted_keys_are_forgotten_eventually() {
        let mut table = RecentlyUsed::new(1);
        for key in 0..MAX_REMEMBERED as u32 + 2 {
            table.evict_for_one_more(|()| Some(0)).unwrap();
            table.insert(key, ());
        }
        assert!(!table.was_evicted(&0) && table.was_evicted(&1) && table.was_evicted(&(MAX_REMEMBERED as u32)));
    }
}
