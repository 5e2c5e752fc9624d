//! Restoring: reads the whole index, then the bytes of the requested tensors.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Shape, Tensor};

use super::bundle::{Entry, Index};
use super::slice::{self, Slice};
use super::write::extend_by_length;
use super::{DataDir, MAX_INDEX_BYTES, crc32c, data_loss, io_failure, table};

/// An existing checkpoint.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    dir: Cow<'a, DataDir>,
    prefix: Cow<'a, [u8]>,
    index: Index,
}

impl<'a> Checkpoint<'a> {
    /// Reads the index of the checkpoint with this prefix.
    ///
    /// # Errors
    /// NotFound if there is none; PermissionDenied if the prefix leads out of `dir`; DataLoss if it is corrupt.
    pub fn open(dir: &'a DataDir, prefix: &'a [u8]) -> Result<Checkpoint<'a>> {
        let path = dir.resolve(&[prefix, b".index"].concat())?;
        let missing = || {
            let message = format!(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {}",
                String::from_utf8_lossy(prefix)
            );
            Failure::new(Code::NotFound, message)
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(io_failure("cannot read", &path, &error)),
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| io_failure("cannot read", &path, &error))?;
        if bytes.len() as u64 > MAX_INDEX_BYTES {
            let message = format!("{} exceeds the limit of {MAX_INDEX_BYTES} bytes per index", path.display());
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let index = Index::decode(&bytes)
            .map_err(|failure| Failure::new(failure.code, format!("{}: {}", path.display(), failure.message)))?;
        Ok(Checkpoint { dir: Cow::Borrowed(dir), prefix: Cow::Borrowed(prefix), index })
    }

    /// The same checkpoint, for a holder that outlives the names by which it was opened.
    pub fn into_owned(self) -> Checkpoint<'static> {
        let Checkpoint { dir, prefix, index } = self;
        Checkpoint { dir: Cow::Owned(dir.into_owned()), prefix: Cow::Owned(prefix.into_owned()), index }
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// Names, dtypes and shapes of its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&[u8], DType, &Shape)> {
        // Keys of parts begin with a zero byte; names do not.
        let named = self.index.entries.iter().filter(|(key, _)| key.first() != Some(&0));
        named.map(|(key, entry)| (key.as_slice(), entry.dtype, &entry.shape))
    }

    /// A tensor, or the given `part` of it. Variants are strings: TensorFlow's encoded protos.
    ///
    /// # Errors
    /// NotFound if there is no such tensor; InvalidArgument if it has another dtype or shape than requested; DataLoss if its
    /// bytes are not those that were saved.
    pub fn tensor(&self, name: &[u8], dtype: DType, part: Option<&(Shape, Slice)>) -> Result<Tensor> {
        let shown = String::from_utf8_lossy(name);
        let entry = self.index.entries.get(name).filter(|_| !name.is_empty());
        let entry =
            entry.ok_or_else(|| Failure::new(Code::NotFound, format!("Key {shown} not found in checkpoint")))?;
        if entry.dtype != dtype {
            return Err(Failure::invalid(format!(
                "tensor_name = {shown}; expected dtype {dtype} does not equal original dtype {}",
                entry.dtype
            )));
        }
        if let Some((shape, _)) = part
            && *shape != entry.shape
        {
            return Err(Failure::invalid(format!(
                "tensor_name = {shown}; shape in shape_and_slice spec {shape} does not match the shape stored in \
                 checkpoint: {}",
                entry.shape
            )));
        }
        let all = Slice::full(entry.shape.rank());
        let wanted = part.map_or(&all, |(_, slice)| slice);
        if entry.slices.is_empty() && wanted.is_full(&entry.shape) {
            return self.read(&shown, entry);
        }
        let mut tensor = Tensor::zeros(dtype, wanted.shape(&entry.shape)?)?;
        let mut found = 0;
        if entry.slices.is_empty() {
            let whole = self.read(&shown, entry)?;
            found += slice::copy(&entry.shape, (&all, &whole), (wanted, &mut tensor))?;
        }
        for stored in &entry.slices {
            let part = self.index.entries.get(&stored.key(name)).filter(|part| part.dtype == dtype);
            let part = part.ok_or_else(|| data_loss(format!("a slice of {shown} is missing from the checkpoint")))?;
            let part = self.read(&shown, part)?;
            found += slice::copy(&entry.shape, (stored, &part), (wanted, &mut tensor))?;
        }
        if found < tensor.len() {
            let message = format!("the checkpoint has only {found} of {} elements of {shown}", tensor.len());
            return Err(Failure::new(Code::NotFound, message));
        }
        Ok(tensor)
    }

    /// Reads the tensor of one entry.
    fn read(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        let count = entry.shape.checked_elements(entry.dtype)?;
        let suffix = format!(".data-{:05}-of-{:05}", entry.shard, self.index.shards);
        let path = self.dir.resolve(&[&self.prefix, suffix.as_bytes()].concat())?;
        let io = |error: std::io::Error| io_failure(&format!("cannot read {name} from"), &path, &error);
        let mut file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        // Checked before memory is allocated for the size in the index.
        if entry.offset.checked_add(entry.size).is_none_or(|end| end > length) {
            return Err(data_loss(format!("{} ends before the end of {name}", path.display())));
        }
        let fits = match entry.dtype.size() {
            Some(size) => entry.size == (count * size) as u64,
            None => entry.size >= count as u64,
        };
        if !fits {
            return Err(data_loss(format!(
                "{name} has {} bytes, which does not match its shape {}",
                entry.size, entry.shape
            )));
        }
        let size = usize::try_from(entry.size).map_err(|_| data_loss("a tensor is larger than the address space"))?;
        // Once as bytes, and once as elements.
        memory::admit(2 * size)?;
        let mut bytes = vec![0; size];
        file.seek(SeekFrom::Start(entry.offset)).map_err(io)?;
        file.read_exact(&mut bytes).map_err(io)?;
        let broken =
            || data_loss(format!("Checksum does not match: {name} in {} is not what was saved", path.display()));
        if entry.dtype == DType::String {
            let strings = decode_strings(&bytes, count, entry.crc32c).ok_or_else(broken)?;
            return Tensor::new(entry.shape.clone(), Data::String(strings));
        }
        if entry.dtype == DType::Variant {
            let variants = decode_variants(&bytes, count, entry.crc32c).ok_or_else(broken)?;
            return Tensor::new(entry.shape.clone(), Data::String(variants));
        }
        if crc32c::mask(crc32c::extend(0, &bytes)) != entry.crc32c {
            return Err(broken());
        }
        Tensor::from_bytes(entry.dtype, entry.shape.clone(), &bytes)
    }
}

/// The strings that [`super::write`] encoded as these bytes; `None` if they are invalid.
fn decode_strings(bytes: &[u8], count: usize, stored: u32) -> Option<Vec<Vec<u8>>> {
    let mut rest = bytes;
    let mut lengths = Vec::with_capacity(count);
    let mut crc = 0;
    for _ in 0..count {
        let length = usize::try_from(table::take_varint(&mut rest).ok()?).ok()?;
        crc = extend_by_length(crc, length);
        lengths.push(length);
    }
    let (checksum, mut rest) = rest.split_first_chunk::<4>()?;
    if *checksum != crc32c::mask(crc).to_le_bytes() {
        return None;
    }
    crc = crc32c::extend(crc, checksum);
    let strings = lengths
        .into_iter()
        .map(|length| {
            let (string, after) = rest.split_at_checked(length)?;
            rest = after;
            crc = crc32c::extend(crc, string);
            Some(string.to_vec())
        })
        .collect::<Option<_>>()?;
    (rest.is_empty() && crc32c::mask(crc) == stored).then_some(strings)
}

/// The variants that [`super::write`] wrote as these bytes, still encoded; `None` if they are invalid.
fn decode_variants(bytes: &[u8], count: usize, stored: u32) -> Option<Vec<Vec<u8>>> {
    let mut rest = bytes;
    let mut crc = 0;
    let mut next = || {
        let length = usize::try_from(table::take_varint(&mut rest).ok()?).ok()?;
        let (variant, after) = rest.split_at_checked(length)?;
        let (checksum, after) = after.split_first_chunk::<4>()?;
        rest = after;
        crc = crc32c::extend(extend_by_length(crc, length), variant);
        let is_right = *checksum == crc32c::mask(crc).to_le_bytes();
        crc = crc32c::extend(crc, checksum);
        is_right.then(|| variant.to_vec())
    };
    let variants = (0..count).map(|_| next()).collect::<Option<_>>()?;
    (rest.is_empty() && crc32c::mask(crc) == stored).then_some(variants)
}
