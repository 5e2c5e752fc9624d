//! Merging: the checkpoints that several tasks saved, each a part, become one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::fs;

use super::bundle::Index;
use super::write::{commit, free_shards, make_folder};
use super::{Checkpoint, DataDir, data_path, index_path, io_failure};
use crate::failure::{Code, Failure, Result};

/// Makes one checkpoint, `destination`, of those of `prefixes`, which are gone afterwards: their data files are the
/// new one's shards. Folders left empty are removed where `remove_folders`.
///
/// # Errors
/// NotFound if one is missing (unless `allow_missing`, and not all are); InvalidArgument where two have a tensor
/// of the same name, other than as different parts of it; else as [`super::save`].
pub fn merge(
    dir: &DataDir,
    prefixes: &[&[u8]],
    destination: &[u8],
    remove_folders: bool,
    allow_missing: bool,
) -> Result<()> {
    let mut parts = Vec::new();
    for prefix in prefixes {
        match Checkpoint::open(dir, prefix) {
            Ok(part) => parts.push((dir.resolve(prefix)?, part)),
            Err(failure) if allow_missing && failure.code == Code::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    if parts.is_empty() {
        return Err(Failure::new(Code::NotFound, "there is no checkpoint to merge"));
    }
    let target = dir.resolve(destination)?;
    let folder = make_folder(&target)?;
    let mut index = Index::default();
    // Data files in use, in the order they are come upon, which numbers them.
    let mut files = Vec::new();
    for (prefix, part) in &parts {
        let mut numbers = BTreeMap::new();
        for (key, entry) in &part.index().entries {
            let mut entry = entry.clone();
            if entry.slices.is_empty() {
                entry.shard = *numbers.entry(entry.shard).or_insert_with(|| {
                    files.push(data_path(prefix, entry.shard, part.index().shards));
                    files.len() as u32 - 1
                });
            }
            match index.entries.entry(key.clone()) {
                Place::Vacant(place) => {
                    place.insert(entry);
                }
                Place::Occupied(mut place) => {
                    let have = place.get_mut();
                    let are_parts = !have.slices.is_empty() && !entry.slices.is_empty();
                    if !are_parts || have.dtype != entry.dtype || have.shape != entry.shape {
                        let name = String::from_utf8_lossy(key);
                        return Err(Failure::invalid(format!("two of the checkpoints to merge have {name}")));
                    }
                    have.slices.extend(entry.slices);
                }
            }
        }
    }
    index.shards = free_shards(&target, files.len().max(1) as u32)?;
    for (shard, file) in files.iter().enumerate() {
        let to = data_path(&target, shard as u32, index.shards);
        fs::rename(file, &to).map_err(|error| io_failure("cannot move", file, &error))?;
    }
    commit(&target, &folder, &index)?;
    for (prefix, _) in &parts {
        if *prefix != target {
            let _ = fs::remove_file(index_path(prefix));
        }
        if let Some(own) = prefix.parent().filter(|own| remove_folders && *own != folder) {
            // Refused by the system where something is left in it.
            let _ = fs::remove_dir(own);
        }
    }
    Ok(())
}
