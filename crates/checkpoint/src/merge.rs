//! Merging: one checkpoint of the parts that several tasks saved.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;

use meshtf_tensor::failure::{Code, Failure, Result};

use super::bundle::Index;
use super::files::{link, make_folder, remove, remove_folder};
use super::write::{commit, free_shards};
use super::{Checkpoint, DataDir, data_path, folder_of, index_path};

/// Makes one checkpoint, `destination`, of those of `prefixes`, which are removed afterwards: their data files become the
/// shards of the new one. Until the new one is on the disk, they stay complete (on a file system with hard links), and so
/// does an existing checkpoint at `destination`. With `remove_folders`, folders left empty are removed.
///
/// # Errors
/// InvalidArgument if one is missing and `allow_missing` is false, or two have a tensor of the same name other than as
/// different parts of it; NotFound if all are missing; else as [`super::save`].
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
            Ok(part) => parts.push((dir.resolve_prefix(prefix)?, part)),
            Err(failure) if failure.code == Code::NotFound => {
                if !allow_missing {
                    let prefix = String::from_utf8_lossy(prefix);
                    let why = format!("allow_missing_files was set to false and {prefix} did not exist");
                    return Err(Failure::invalid(format!("{why}: {}", failure.message)));
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    if parts.is_empty() {
        return Err(Failure::new(Code::NotFound, "there is no checkpoint to merge"));
    }
    let target = dir.resolve_prefix(destination)?;
    let folder = make_folder(&target)?;
    let mut index = Index::default();
    // Data files in use, numbered in the order of first use.
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
                        return Err(Failure::invalid(format!("two of the checkpoints to merge contain {name}")));
                    }
                    have.slices.extend(entry.slices);
                }
            }
        }
    }
    index.shards = free_shards(&target, files.len().max(1) as u32)?;
    for (shard, file) in files.iter().enumerate() {
        let to = data_path(&target, shard as u32, index.shards);
        link(file, &to)?;
    }
    commit(&target, &folder, &index)?;
    for (prefix, _) in &parts {
        // A path is equal to the same path with a `/` at its end.
        if prefix.as_os_str() != target.as_os_str() {
            remove(&index_path(prefix));
        }
    }
    // The new index refers to other files, if a part had the destination's prefix.
    for file in &files {
        remove(file);
    }
    for (prefix, _) in &parts {
        let own = folder_of(prefix);
        if remove_folders && own != folder {
            remove_folder(&own);
        }
    }
    Ok(())
}
