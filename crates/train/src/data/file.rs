//! A data file by its name, `digits.csv.gz` or `digits.npz:images`, and its contents as a tensor.

use std::io::Read;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{MAX_TEXT_BYTES, Tensor, npy, safetensors};

use super::kind::by_beginning;
use super::{Compression, Csv, Layout, LayoutOptions, Lines, read_idx, read_npz, table_text};

/// The files that are taken.
const TAKEN: &str = "the kinds that are taken are .csv, .tsv, .jsonl, .parquet, .npy, .npz, .safetensors, .txt, .tfrecord and \
                     MNIST's idx, each perhaps compressed by gzip (.gz) or zstd (.zst)";
/// Bytes that are unpacked at a time.
const CHUNK: usize = 1 << 20;

/// A file, and the selected part of it: an array of a .npz file, a tensor of a .safetensors file, columns of a .csv file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilePart {
    /// The path of the file.
    pub file: String,
    /// The name of the part, after the colon.
    pub part: Option<String>,
}

impl FilePart {
    /// The endings of files that have parts, compressed or not.
    const WITH_PARTS: &[&str] = &[".npz", ".safetensors", ".csv", ".tsv", ".jsonl", ".json", PARQUET];

    /// Splits `FILE` or `FILE:PART`.
    pub fn of(text: &str) -> FilePart {
        let parts = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
        let has_parts = |file: &str| {
            is_records(file) || FilePart::WITH_PARTS.iter().any(|ending| uncompressed(file).ends_with(ending))
        };
        match parts.into_iter().find(|(file, _)| has_parts(file)) {
            Some((file, part)) => FilePart { file: file.to_owned(), part: Some(part.to_owned()) },
            None => FilePart { file: text.to_owned(), part: None },
        }
    }

    /// Whether it is a table, whose parts are columns.
    pub fn is_table(&self) -> bool {
        is_table(&self.file)
    }

    /// The error for a file that is of no known kind.
    fn unknown(&self, bytes: &[u8]) -> Failure {
        let kind = by_beginning(bytes).unwrap_or_else(|| match std::path::Path::new(&self.file).extension() {
            Some(ending) => format!("a file .{}", ending.display()),
            None => "a file without an extension".to_owned(),
        });
        let named = if bytes.starts_with(b"PAR1") { ", whose name ends in .parquet" } else { "" };
        Failure::invalid(format!("this is {kind}{named}; {TAKEN}"))
    }

    /// Whether it is a text, whose lines are examples.
    pub fn is_text(&self) -> bool {
        self.ends_with(".txt")
    }

    /// Whether it has TFRecords, by its name: `x.tfrecord`, `x.tfrecords`, a shard such as `x.tfrecord-00000-of-00010`, or a
    /// pattern of any of them, such as `x.tfrecord*`.
    pub fn is_records(&self) -> bool {
        is_records(&self.file)
    }

    /// Whether the file's name has this ending, not counting that of a compressed file.
    pub fn ends_with(&self, ending: &str) -> bool {
        uncompressed(&self.file).ends_with(ending)
    }
}

/// Whether a file has TFRecords, by its name.
fn is_records(file: &str) -> bool {
    let name = uncompressed(file).rsplit('/').next().unwrap_or_default();
    let after = name.rsplit_once(".tfrecord").map(|(_, after)| after.strip_prefix('s').unwrap_or(after));
    after.is_some_and(|after| after.is_empty() || after.starts_with(['-', '*', '?']))
}

/// Whether a file is a table by its name.
pub fn is_table(file: &str) -> bool {
    [".csv", ".tsv", ".jsonl", PARQUET].iter().any(|ending| uncompressed(file).ends_with(ending))
}

/// Whether a file is a spreadsheet by its name.
pub fn is_spreadsheet(file: &str) -> bool {
    let file = file.to_lowercase();
    [".xlsx", ".xlsm", ".xls", ".ods"].iter().any(|ending| file.ends_with(ending))
}

/// The remark on a spreadsheet.
pub const SPREADSHEET: &str = "this is a spreadsheet: export it as .csv";

/// The ending of Parquet files.
const PARQUET: &str = ".parquet";

/// Whether a file is a Parquet file by its name.
pub fn is_parquet(file: &str) -> bool {
    uncompressed(file).ends_with(PARQUET)
}

/// The error of a build that does not read Parquet files.
pub(super) fn no_parquet() -> Failure {
    Failure::invalid(
        "this is a Parquet file; this build reads .csv, .tsv and .jsonl tables: build it with `--features parquet`, or write \
         the table as .csv",
    )
}

/// The name of a file without the ending of its compression.
fn uncompressed(file: &str) -> &str {
    let endings = [".gz", ".zst"];
    endings.iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file)
}

/// The bytes of a file, decompressed if it is one of gzip or zstd.
///
/// # Errors
/// InvalidArgument if it is truncated or damaged; ResourceExhausted if the decompressed bytes exceed the limit of a tensor.
pub fn unpacked(bytes: Vec<u8>) -> Result<Vec<u8>> {
    match Compression::of(&bytes) {
        None => Ok(bytes),
        Some(compression) => all_of(compression.reader(&bytes[..])).map_err(|failure| compression.failure(failure)),
    }
}

/// All bytes of a reader, within the limit of a tensor.
pub(super) fn all_of(mut from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        // A vector grows by doubling.
        memory::admit(bytes.len().max(CHUNK))?;
        let before = bytes.len();
        let read = from.by_ref().take(CHUNK as u64).read_to_end(&mut bytes);
        read.map_err(|error| Failure::invalid(error.to_string()))?;
        if bytes.len() == before {
            return Ok(bytes);
        }
        if bytes.len() > MAX_TEXT_BYTES {
            let why = format!("it unpacks to more than {MAX_TEXT_BYTES} bytes, which is the limit");
            return Err(Failure::new(meshtf_tensor::failure::Code::ResourceExhausted, why));
        }
    }
}

/// The tensor in a file's bytes: .npy, .npz, .safetensors, a table, text or idx, compressed by gzip or zstd or not.
///
/// One selected column of a table is a vector; several, or all if none is selected, are a matrix `[lines, columns]` of
/// float64. A text is a vector of strings.
///
/// # Errors
/// InvalidArgument if the bytes are of no such file, or have no such part.
pub fn read_tensor(named: &FilePart, bytes: Vec<u8>) -> Result<Tensor> {
    let part = named.part.as_deref();
    if named.is_table() {
        let layout = Layout::of(named, &LayoutOptions::default())?.plain();
        let text = table_text(&named.file, bytes)?;
        let columns: Vec<String> =
            part.into_iter().flat_map(|part| part.split(',')).map(|name| name.trim().to_owned()).collect();
        let numbers = Csv::numbers(layout, text, &columns)?;
        let is_vector = part.is_some() && numbers.dims()[1] == 1;
        let lines = numbers.dims()[0];
        return if is_vector { numbers.reshaped([lines]) } else { Ok(numbers) };
    }
    let bytes = unpacked(bytes)?;
    if is_spreadsheet(&named.file) {
        return Err(Failure::invalid(SPREADSHEET));
    }
    if bytes.starts_with(b"PK") || named.ends_with(".npz") {
        return read_npz(&bytes, part);
    }
    if named.ends_with(".safetensors") {
        return tensor_of(safetensors::read(&bytes)?.tensors, part);
    }
    if named.is_records() {
        let why = "a feature of TFRecords is read as the section \"data\" of a model says, which feeds this tensor from no \
                   TFRecords: add it there, as {\"file\": \"x.tfrecord\", \"feature\": NAME}, or feed another kind of file";
        return Err(Failure::invalid(why));
    }
    if let Some(part) = part {
        return Err(Failure::invalid(format!("this kind of file has no parts, so there is no {part} in it")));
    }
    match bytes.starts_with(b"\x93NUMPY") || named.ends_with(".npy") {
        true => npy::read(&bytes),
        false if named.is_text() => Ok(Lines::read(&bytes)?.into_tensor()),
        false if bytes.starts_with(&[0, 0]) => read_idx(&bytes),
        false => Err(named.unknown(&bytes)),
    }
}

fn tensor_of(tensors: Vec<(String, Tensor)>, part: Option<&str>) -> Result<Tensor> {
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    let place = chosen(&names, part, "tensor")?;
    Ok(tensors.into_iter().nth(place).map(|(_, tensor)| tensor).expect("it is one of them"))
}

/// The index of the selected part: the one of that name, or the only one.
///
/// # Errors
/// InvalidArgument with the names that exist.
pub fn chosen(names: &[&str], part: Option<&str>, what: &str) -> Result<usize> {
    /// Most names in a message.
    const MAX_NAMES: usize = 8;
    let all = || {
        let more = names.len().saturating_sub(MAX_NAMES);
        let shown = names[..names.len() - more].join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    match (part, names) {
        (_, []) => Err(Failure::invalid(format!("there is no {what} in it"))),
        (None, [_]) => Ok(0),
        (None, [first, ..]) => {
            Err(Failure::invalid(format!("say which {what} is meant, as in FILE:{first}; there are {}", all())))
        }
        (Some(part), _) => names.iter().position(|name| *name == part).ok_or_else(|| {
            let hint = match nearest(part, names.iter().copied()).first() {
                Some(near) => format!("did you mean {near}?"),
                None => format!("there are {}", all()),
            };
            Failure::invalid(format!("there is no {what} {part} in it; {hint}"))
        }),
    }
}
