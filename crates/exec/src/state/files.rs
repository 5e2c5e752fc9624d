//! ReadFile, WriteFile, MatchingFiles and samplers by vocabularies, below the folder that the task was given.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_kernels::call::check_text_bytes;
use meshtf_kernels::files::{Compression, Folder, Format, MAX_ENTRIES, Records, Whole, is_match};
use meshtf_kernels::{HostKernel, KernelNode, Unigrams, fixed};
use meshtf_loops::turn::{self, Pace};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::named::Site;
use super::op::{StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ReadFile", |node, site| {
        let folder = site.folder(node);
        simple(move |mut inputs, _| {
            let name = scalar(&inputs.host(0)?, "Input filename tensor")?;
            let record = turn::in_part(|| Records::open(&Format::Whole, &folder, name)?.next())?;
            Ok(one(Tensor::scalar(record.unwrap_or_default().1)))
        })
    });
    ops.insert("WriteFile", |node, site| {
        let folder = site.folder(node);
        simple(move |mut inputs, _| {
            let name = scalar(&inputs.host(0)?, "Input filename tensor")?;
            let contents = inputs.host(1)?;
            scalar(&contents, "Contents tensor").and_then(|bytes| write(&folder, &name, &bytes))?;
            Ok(nothing())
        })
    });
    ops.insert("MatchingFiles", |node, site| {
        let folder = site.folder(node);
        simple(move |mut inputs, _| {
            let patterns = inputs.host(0)?;
            if patterns.rank() > 1 {
                let why =
                    format!("Input patterns tensor must be scalar or vector, but had shape: {}", patterns.shape());
                return Err(Failure::invalid(why));
            }
            let mut names = Vec::new();
            for pattern in patterns.slice::<Vec<u8>>()? {
                turn::in_part(|| matching(&folder, pattern, &mut names))?;
            }
            names.sort();
            check_text_bytes(names.iter().map(|name| name.len() + size_of::<Vec<u8>>()).sum())?;
            Ok(one(Tensor::vector(names)))
        })
    });
    ops.insert_if(has_vocabulary, "FixedUnigramCandidateSampler", by_vocabulary);
}

fn has_vocabulary(node: &KernelNode) -> Result<bool> {
    Ok(!node.attrs.str("vocab_file")?.is_empty())
}

/// Candidates by the weights of a vocabulary: the last fields of its lines, separated by commas.
fn by_vocabulary(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let folder = site.folder(node);
    let unigrams = Unigrams::of(node.attrs)?;
    let (name, attrs) = (node.name.to_owned(), node.attrs.clone());
    let (op, inputs, outputs) = (node.op.to_owned(), node.inputs.to_vec(), node.outputs.to_vec());
    let (generators, mut kernel) = (Arc::clone(&site.generators), None);
    simple(move |mut tokens, _| {
        if kernel.is_none() {
            let own = turn::in_part(|| weights(&folder, attrs.bytes("vocab_file")?, &unigrams))?;
            let node =
                KernelNode { name: &name, op: &op, attrs: &attrs, inputs: &inputs, outputs: &outputs, constants: 0 };
            kernel = Some(fixed(&node, unigrams.weighted(own)?, &generators)?);
        }
        let kernel: &mut HostKernel = kernel.as_mut().ok_or_else(|| Failure::new(Code::Internal, "no sampler"))?;
        let outputs = kernel(tokens.rest(0)?.into())?;
        Ok(outputs.into_iter().map(|tensor| Some(tensor.into())).collect())
    })
}

fn weights(folder: &Folder, name: &[u8], unigrams: &Unigrams) -> Result<Vec<f32>> {
    let format = Format::Lines { header: 0, compression: Compression::None };
    let mut lines = Records::open(&format, folder, name.to_vec())?;
    let mut weights = Vec::new();
    let mut place = 0;
    while let Some((_, line)) = lines.next()? {
        if unigrams.takes(place) {
            let field = line.rsplit(|&byte| byte == b',').next().unwrap_or(&line);
            let weight = std::str::from_utf8(field).ok().and_then(|field| field.trim().parse().ok());
            weights.push(weight.ok_or_else(|| {
                let line = String::from_utf8_lossy(&line);
                Failure::invalid(format!("Wrong vocabulary format at line: {line}"))
            })?);
            memory::grow()?;
        }
        place += 1;
    }
    Ok(weights)
}

fn scalar(tensor: &Tensor, what: &str) -> Result<Vec<u8>> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{what} must be scalar, but had shape: {}", tensor.shape())));
    }
    check_text_bytes(tensor.byte_len())?;
    tensor.item::<Vec<u8>>()
}

/// Writes a file as a whole, with its folders: it has its old content until then.
fn write(folder: &Folder, name: &[u8], contents: &[u8]) -> Result<()> {
    let mut file = Whole::begin(folder.get()?.resolve(name)?, name.to_vec())?;
    file.write(contents)?;
    file.end()
}

/// Adds the names of the files that match a pattern, in the pattern's notation.
pub(super) fn matching(folder: &Folder, pattern: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
    let text = std::str::from_utf8(pattern).map_err(|_| Failure::invalid("a file name is not UTF-8"))?;
    let is_plain = |part: &&str| !part.contains(['*', '?', '[', '\\']);
    let parts: Vec<&str> = text.split('/').collect();
    let plain = parts.iter().take_while(|part| is_plain(part)).count();
    if plain == parts.len() {
        if folder.get()?.resolve(pattern)?.exists() {
            names.push(pattern.to_vec());
        }
        return Ok(());
    }
    let prefix = if plain == 0 { String::new() } else { format!("{}/", parts[..plain].join("/")) };
    let begin = if prefix.is_empty() { "." } else { &prefix };
    let mut found = vec![(folder.get()?.resolve(begin.as_bytes())?, prefix)];
    let mut entries = 0;
    for (i, part) in parts.iter().enumerate().skip(plain) {
        let is_last = i + 1 == parts.len();
        found = expanded(&found, part, is_last, &mut entries)?;
    }
    names.extend(found.into_iter().map(|(_, name)| name.into_bytes()));
    Ok(())
}

/// The entries of folders whose names match a part of a pattern: folders alone, unless it is the last part.
fn expanded(
    folders: &[(PathBuf, String)],
    part: &str,
    is_last: bool,
    entries: &mut usize,
) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut pace = Pace::new();
    for (path, name) in folders {
        let Ok(listed) = fs::read_dir(path) else { continue };
        for entry in listed.flatten() {
            pace.go(5000);
            *entries += 1;
            if *entries > MAX_ENTRIES {
                let why = format!("a pattern is held against more than {MAX_ENTRIES} files, which is the limit");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            let own = entry.file_name();
            // A link may lead out of the folder, so it is not followed.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let Some(own) = own.to_str()
                && (is_last || is_folder)
                && (!own.starts_with('.') || part.starts_with('.'))
                && is_match(part, own)
            {
                let slash = if is_last { "" } else { "/" };
                found.push((Path::join(path, own), format!("{name}{own}{slash}")));
            }
        }
    }
    Ok(found)
}
