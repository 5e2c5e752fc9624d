//! The ops of checkpoints: saving, restoring, merging, and the names of shards.
//!
//! All but the last access the disk. They are compiled with the only folder that graphs may access.

use meshtf_checkpoint::{Checkpoint, DataDir, Saved, Slice, merge, save, v1};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::call::{one, output_dtype, take};
use super::{HostKernel, Inputs, KernelNode, OPS, Outputs, Registry};
use crate::files::Folder;

/// Registers the ops on checkpoints and on names of shards.
pub(super) fn register(ops: &mut Registry) {
    ops.insert_on_disk("SaveV2", |node, folder| {
        let dtypes = node.attrs.dtypes("dtypes")?.to_vec();
        within(folder, move |dir, inputs| save_v2(dir, &inputs, &dtypes))
    });
    ops.insert_on_disk("Save", |_, folder| within(folder, |dir, inputs| save_v1("Save", false, dir, inputs)));
    ops.insert_on_disk("SaveSlices", |_, folder| {
        within(folder, |dir, inputs| save_v1("SaveSlices", true, dir, inputs))
    });
    ops.insert_on_disk("Restore", restore_v1);
    ops.insert_on_disk("RestoreSlice", restore_v1);
    ops.insert_on_disk("RestoreV2", restore_v2);
    ops.insert_on_disk("MergeV2Checkpoints", merge_v2);
    ops.insert("ShardedFilespec", |_| {
        Ok(Some(Box::new(|inputs| {
            let [base, shards] = take(inputs)?;
            check_scalars([("basename", &base), ("num_shards", &shards)])?;
            let suffix = format!("-?????-of-{:05}", shards.to_i64()?);
            Ok(one(Tensor::scalar([base.item::<Vec<u8>>()?, suffix.into_bytes()].concat())))
        })))
    });
    ops.insert("ShardedFilename", |_| {
        Ok(Some(Box::new(|inputs| {
            let [base, shard, shards] = take(inputs)?;
            check_scalars([("basename", &base), ("shard", &shard), ("num_shards", &shards)])?;
            let (base, shard, shards) = (base.item::<Vec<u8>>()?, shard.to_i64()?, shards.to_i64()?);
            let suffix = format!("-{shard:05}-of-{shards:05}");
            Ok(one(Tensor::scalar([base, suffix.into_bytes()].concat())))
        })))
    });
}

/// Refuses inputs other than scalars; each has its name in messages.
///
/// # Errors
/// InvalidArgument.
fn check_scalars<const N: usize>(inputs: [(&str, &Tensor); N]) -> Result<()> {
    match inputs.iter().find(|(_, input)| input.rank() > 0) {
        None => Ok(()),
        Some((name, input)) => Err(Failure::invalid(format!("{name} must be a scalar, got shape {}", input.shape()))),
    }
}

/// The kernel of a node whose op reads or writes checkpoints below `folder`; `None` for any other op.
///
/// # Errors
/// InvalidArgument if an attribute is missing.
pub fn on_disk(node: &KernelNode, folder: Folder) -> Result<Option<HostKernel>> {
    OPS.compile_on_disk(node, folder)
}

/// The names of the ops that read or write checkpoints.
pub fn ops() -> impl Iterator<Item = &'static str> {
    OPS.on_disk()
}

/// A kernel that accesses a folder.
fn within(
    folder: Folder,
    mut run: impl FnMut(&DataDir, Inputs) -> Result<Outputs> + Send + 'static,
) -> Result<HostKernel> {
    Ok(Box::new(move |inputs| run(folder.get()?, inputs)))
}

fn restore_v1(node: &KernelNode, folder: Folder) -> Result<HostKernel> {
    let dtype = output_dtype(node, 0)?;
    within(folder, move |dir, inputs| {
        let [name, tensor, rest @ ..] = inputs.as_slice() else {
            return Err(Failure::invalid("Restore takes the name of a file and of a tensor"));
        };
        let part = rest.first().map_or(Ok(None), |text| part(&text.item::<Vec<u8>>()?))?;
        let mut files = v1::Files::open(dir, &name.item::<Vec<u8>>()?)?;
        Ok(one(files.tensor(&tensor.item::<Vec<u8>>()?, dtype, part.as_ref())?))
    })
}

fn restore_v2(node: &KernelNode, folder: Folder) -> Result<HostKernel> {
    let dtypes = node.attrs.dtypes("dtypes")?.to_vec();
    within(folder, move |dir, inputs| {
        let [prefix, names, parts] = take(inputs)?;
        let (prefix, named) = (prefix.item::<Vec<u8>>()?, named(&names, &parts, dtypes.len())?);
        // Restoring may be cancelled between tensors: nothing is lost.
        let wanted = named.iter().zip(&dtypes).inspect(|_| turn::in_part(turn::look));
        match Checkpoint::open(dir, &prefix) {
            Err(failure) if failure.code == Code::NotFound => {
                let mut files = v1::Files::open(dir, &prefix)?;
                wanted.map(|((name, part), &dtype)| files.tensor(name, dtype, part.as_ref())).collect()
            }
            found => {
                let checkpoint = found?;
                wanted.map(|((name, part), &dtype)| checkpoint.tensor(name, dtype, part.as_ref())).collect()
            }
        }
    })
}

fn merge_v2(node: &KernelNode, folder: Folder) -> Result<HostKernel> {
    let remove_folders = node.attrs.bool("delete_old_dirs")?;
    let allow_missing = node.attrs.bool("allow_missing_files")?;
    within(folder, move |dir, inputs| {
        let [prefixes, destination] = take(inputs)?;
        let prefixes: Vec<&[u8]> = prefixes.slice::<Vec<u8>>()?.iter().map(Vec::as_slice).collect();
        merge(dir, &prefixes, &destination.item::<Vec<u8>>()?, remove_folders, allow_missing)?;
        Ok(Outputs::new())
    })
}

fn save_v2(dir: &DataDir, inputs: &Inputs, dtypes: &[DType]) -> Result<Outputs> {
    let [prefix, names, parts, tensors @ ..] = inputs.as_slice() else {
        return Err(Failure::invalid("SaveV2 takes a prefix, names, slices and tensors"));
    };
    let named = named(names, parts, tensors.len())?;
    let saved = named.iter().zip(tensors).zip(dtypes).map(|(((name, part), tensor), dtype)| Saved {
        name,
        tensor,
        part: part.as_ref(),
        is_encoded: *dtype == DType::Variant,
    });
    save(dir, &prefix.item::<Vec<u8>>()?, &saved.collect::<Vec<_>>())?;
    Ok(Outputs::new())
}

/// Saves in the format of clients before 1.0; `has_parts` specifies whether the op names parts of tensors.
fn save_v1(op: &str, has_parts: bool, dir: &DataDir, inputs: Inputs) -> Result<Outputs> {
    let few = || Failure::invalid(format!("{op} takes a file name, names and tensors"));
    let [file, names, rest @ ..] = inputs.as_slice() else { return Err(few()) };
    let count = rest.len().checked_sub(usize::from(has_parts)).ok_or_else(few)?;
    let (parts, tensors) = rest.split_at(rest.len() - count);
    let whole = Tensor::vector(vec![Vec::<u8>::new(); count]);
    let named = named(names, parts.first().unwrap_or(&whole), count)?;
    let saved = named.iter().zip(tensors).map(|((name, part), tensor)| Saved::new(name, tensor, part.as_ref()));
    v1::save(dir, &file.item::<Vec<u8>>()?, &saved.collect::<Vec<_>>())?;
    Ok(Outputs::new())
}

/// A tensor's name and, if only a part of a whole tensor is meant, the shape of the whole and the part.
type Named<'a> = (&'a [u8], Option<(Shape, Slice)>);

fn named<'a>(names: &'a Tensor, parts: &Tensor, count: usize) -> Result<Vec<Named<'a>>> {
    for (what, tensor) in [("tensor_names", names), ("shape_and_slices", parts)] {
        if tensor.dims() != [count] {
            return Err(Failure::invalid(format!(
                "Input {what} should be 1-D with one element for each of {count} tensors, got shape {}",
                tensor.shape()
            )));
        }
    }
    let names = names.slice::<Vec<u8>>()?.iter().map(Vec::as_slice);
    names.zip(parts.slice::<Vec<u8>>()?).map(|(name, text)| Ok((name, part(text)?))).collect()
}

/// The part of a tensor that a shape_and_slice specifies.
fn part(text: &[u8]) -> Result<Option<(Shape, Slice)>> {
    let text = std::str::from_utf8(text).map_err(|_| Failure::invalid("a shape_and_slice is not UTF-8"))?;
    Slice::parse(text)
}
