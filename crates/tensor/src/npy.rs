//! NumPy's .npy format: a header that is a Python dict of dtype, order and shape, then the elements in their memory layout.
//!
//! Read: every dtype of a tensor, in either byte order and in C or Fortran order; `S` and `U` strings of fixed width. bfloat16,
//! which NumPy itself lacks, is `V2`, as its extension modules save it; a quantised dtype is a record of one field that has its
//! name, as TensorFlow's arrays are. Written: little-endian, C order. The size stated by a
//! header is checked against the file's length before anything is allocated. Pickles are never opened.
//!
//! The crates npyz and ndarray-npy are not used: both parse the header with py_literal, whose time doubles with every opening
//! brace (twenty take most of an hour), accept a header that claims a length of 4 GiB, and lack bfloat16.

use std::borrow::Cow;

use super::{DType, Data, Shape, Tensor};
use crate::failure::{Failure, Result};
use crate::memory;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read; NumPy reads 10,000 bytes.
const MAX_HEADER: usize = 1 << 16;

/// Reads the bytes of a .npy file.
///
/// # Errors
/// InvalidArgument if they are not a .npy file, are shorter or longer than the header states, or hold a dtype that tensors
/// lack; ResourceExhausted if the tensor would exceed the limit.
pub fn read(bytes: &[u8]) -> Result<Tensor> {
    let (header, data) = split(bytes).map_err(bad)?;
    let Header { descr, fortran_order, shape } = Header::parse(header).map_err(bad)?;
    tensor(&descr, fortran_order, Shape::from(shape), data)
}

/// The dtype and the shape of a file that begins with these bytes.
///
/// # Errors
/// InvalidArgument for a header that [`read`] refuses.
pub fn described(start: &[u8]) -> Result<(DType, Vec<usize>)> {
    let header = Header::parse(split(start).map_err(bad)?.0).map_err(bad)?;
    Ok((Item::parse(&header.descr).map_err(bad)?.dtype, header.shape))
}

/// The offset of the elements of a file that begins with these bytes.
///
/// # Errors
/// InvalidArgument if they are not the complete header of a .npy file.
pub fn begin(start: &[u8]) -> Result<usize> {
    split(start).map(|(_, data)| start.len() - data.len()).map_err(bad)
}

/// The tensor of elements in the layout of a file.
fn tensor(descr: &str, fortran_order: bool, shape: Shape, data: &[u8]) -> Result<Tensor> {
    let item = Item::parse(descr).map_err(bad)?;
    let n = shape.checked_elements(item.dtype)?;
    let wanted = n.checked_mul(item.size);
    if wanted != Some(data.len()) {
        let wanted = wanted.map_or_else(|| "more than memory holds".to_owned(), |n| n.to_string());
        return Err(bad(format!(
            "shape {shape} of {descr} takes {wanted} bytes, but {} follow the header",
            data.len()
        )));
    }
    let data = in_our_order(data, &item, fortran_order, shape.dims())?;
    match item.text {
        None => Tensor::from_bytes(item.dtype, shape, &data).map_err(|failure| bad(failure.message)),
        Some(text) => {
            let strings = data.chunks_exact(item.size).map(|element| text.string(element)).collect::<Result<_, _>>();
            Tensor::new(shape, Data::String(strings.map_err(bad)?))
        }
    }
}

/// The header of a file whose examples, along the first dimension, are contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    descr: String,
    shape: Vec<usize>,
    /// The offset of the elements.
    begin: u64,
    example_bytes: usize,
}

impl Head {
    /// Reads the beginning of a file of `length` bytes; `None` if it is not a .npy file, or not in C order.
    ///
    /// # Errors
    /// InvalidArgument if the header is damaged, or the file's length is not the one that it implies.
    pub fn read(start: &[u8], length: u64) -> Result<Option<Head>> {
        if !start.starts_with(MAGIC) {
            return Ok(None);
        }
        let (header, data) = split(start).map_err(bad)?;
        let Header { descr, fortran_order, shape } = Header::parse(header).map_err(bad)?;
        let item = Item::parse(&descr).map_err(bad)?;
        let Some((&count, example)) = shape.split_first() else { return Ok(None) };
        if fortran_order && shape.len() > 1 {
            return Ok(None);
        }
        let too_much = || bad(format!("shape {} of {descr} takes more than memory holds", Shape::from(shape.clone())));
        let example_bytes = example.iter().try_fold(item.size, |bytes, &size| bytes.checked_mul(size));
        let example_bytes = example_bytes.ok_or_else(too_much)?;
        let wanted = example_bytes.checked_mul(count).ok_or_else(too_much)? as u64;
        let begin = (start.len() - data.len()) as u64;
        if length.checked_sub(begin) != Some(wanted) {
            return Err(bad(format!(
                "shape {} of {descr} takes {wanted} bytes, but {} follow the header",
                Shape::from(shape.clone()),
                length.saturating_sub(begin)
            )));
        }
        Ok(Some(Head { descr, shape, begin, example_bytes }))
    }

    /// The header of a file of another format, whose elements begin at this byte; `None` if they are a scalar, or larger than
    /// `usize` can count.
    pub fn of(dtype: DType, is_big_endian: bool, shape: &[usize], begin: u64) -> Option<Head> {
        let (&count, example) = shape.split_first()?;
        let example_bytes = example.iter().try_fold(dtype.size()?, |bytes, &size| bytes.checked_mul(size))?;
        example_bytes.checked_mul(count)?;
        let descr = descr(dtype).replace('<', if is_big_endian { ">" } else { "<" });
        Some(Head { descr, shape: shape.to_vec(), begin, example_bytes })
    }

    /// The same header, if the file is embedded in another at this offset.
    pub fn behind(self, bytes: u64) -> Head {
        Head { begin: self.begin + bytes, ..self }
    }

    /// The number of examples.
    pub fn count(&self) -> usize {
        self.shape[0]
    }

    /// The bytes of an example.
    pub fn example_bytes(&self) -> usize {
        self.example_bytes
    }

    /// The shape of all elements; its first size is the number of examples.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype of the elements, and whether they are little-endian; `None` for strings.
    pub fn elements(&self) -> Option<(DType, bool)> {
        let item = Item::parse(&self.descr).ok()?;
        item.text.is_none().then_some((item.dtype, !item.big_endian))
    }

    /// The offset of an example in the file.
    pub fn offset(&self, place: usize) -> u64 {
        self.begin + place as u64 * self.example_bytes as u64
    }

    /// The tensor of some examples, from their bytes in the file.
    ///
    /// # Errors
    /// InvalidArgument if the bytes are not those of `count` examples; ResourceExhausted if there is no memory for it.
    pub fn examples(&self, count: usize, data: &[u8]) -> Result<Tensor> {
        let shape = Shape::from([&[count][..], &self.shape[1..]].concat());
        tensor(&self.descr, false, shape, data)
    }
}

/// Writes a .npy file.
///
/// # Errors
/// InvalidArgument for strings.
pub fn write(tensor: &Tensor) -> Result<Vec<u8>> {
    let Some(bytes) = tensor.bytes() else { return Err(Failure::invalid(NO_STRINGS)) };
    let header = header(tensor.dtype(), tensor.dims())?;
    let mut file = Vec::with_capacity(header.len() + bytes.len());
    file.extend_from_slice(&header);
    file.extend_from_slice(bytes);
    Ok(file)
}

/// The reason why other records than those of quantised numbers are refused.
const RECORDS: &str = "its elements are records, which tensors cannot hold";

/// The reason why strings are refused.
const NO_STRINGS: &str = "strings are not written as .npy; ask for them as JSON";

/// The beginning of a .npy file, which the elements follow: little-endian, in C order.
///
/// # Errors
/// InvalidArgument for strings.
pub fn header(dtype: DType, dims: &[usize]) -> Result<Vec<u8>> {
    if dtype.size().is_none() {
        return Err(Failure::invalid(NO_STRINGS));
    }
    let descr = match dtype.is_quantized() {
        true => descr(dtype),
        false => format!("'{}'", descr(dtype)),
    };
    let rank = dims.len();
    let dims: String = dims.iter().map(|d| format!("{d}, ")).collect();
    let dims = if rank == 1 { dims.trim_end().to_owned() } else { dims.trim_end_matches(", ").to_owned() };
    let mut header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ({dims}), }}");
    // Padded with spaces and a line feed, so that the elements begin at a multiple of 64.
    let before = MAGIC.len() + 4;
    let padded = (before + header.len() + 1).next_multiple_of(64) - before;
    header.extend(std::iter::repeat_n(' ', padded - header.len() - 1));
    header.push('\n');
    // Only an unrealistic rank makes the header longer than 65,535 bytes.
    let length = u16::try_from(header.len()).map_err(|_| Failure::invalid("the shape does not fit a .npy header"))?;
    let mut start = Vec::with_capacity(before + header.len());
    start.extend_from_slice(MAGIC);
    start.extend_from_slice(&[1, 0]);
    start.extend_from_slice(&length.to_le_bytes());
    start.extend_from_slice(header.as_bytes());
    Ok(start)
}

/// The header's code for a dtype, little-endian.
fn descr(dtype: DType) -> String {
    if dtype.is_quantized() {
        return format!("[('{dtype}', '{}')]", descr(dtype.stored_as()));
    }
    let descr = match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::I16 => "<i2",
        DType::U16 => "<u2",
        DType::I32 => "<i4",
        DType::U32 => "<u4",
        DType::I64 => "<i8",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::BF16 => "<V2",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        DType::String | DType::Resource | DType::Variant => unreachable!("handles have no bytes"),
        DType::QI8 | DType::QU8 | DType::QI16 | DType::QU16 | DType::QI32 => unreachable!("handled above"),
    };
    descr.to_owned()
}

fn bad(why: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("bad .npy: {why}"))
}

/// The header's text, and the elements' bytes.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin with \\x93NUMPY")?;
    let cut_off = || "it is cut off within its header".to_owned();
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(cut_off)?;
    let (length, rest) = match version {
        [1, 0] => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(cut_off)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        [2 | 3, 0] => {
            let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        [major, minor] => return Err(format!("its version is {major}.{minor}; 1.0, 2.0 and 3.0 are known")),
    };
    if length > MAX_HEADER {
        return Err(format!("its header is {length} bytes long; the limit is {MAX_HEADER}"));
    }
    let (header, data) = rest.split_at_checked(length).ok_or_else(cut_off)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    Ok((header, data))
}

#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, with the keys in any order.
    fn parse(text: &str) -> Result<Header, String> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        let mut rest = text.trim().strip_prefix('{').ok_or("its header is not a dict")?.trim_start();
        while !rest.starts_with('}') {
            let (key, after) =
                quoted(rest).ok_or("its header is not a dict of 'descr', 'fortran_order' and 'shape'")?;
            let value = after.trim_start().strip_prefix(':').ok_or("a key of its header has no value")?.trim_start();
            rest = match key {
                "descr" => {
                    let record = || value.starts_with('[').then(|| value.find(']'))?.map(|end| value.split_at(end + 1));
                    let (text, rest) = quoted(value).or_else(record).ok_or(RECORDS)?;
                    descr = Some(text.to_owned());
                    rest
                }
                "fortran_order" => {
                    let (value, rest) = value
                        .strip_prefix("True")
                        .map(|rest| (true, rest))
                        .or_else(|| value.strip_prefix("False").map(|rest| (false, rest)))
                        .ok_or("'fortran_order' is neither True nor False")?;
                    order = Some(value);
                    rest
                }
                "shape" => {
                    let (sizes, rest) = value
                        .strip_prefix('(')
                        .and_then(|value| value.split_once(')'))
                        .ok_or("'shape' is not a tuple of sizes")?;
                    shape = Some(sizes_of(sizes)?);
                    rest
                }
                other => return Err(format!("its header has an unknown key {other:?}")),
            }
            .trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return Err("its header does not end".into()),
            };
        }
        match (descr, order, shape, rest) {
            (Some(descr), Some(fortran_order), Some(shape), "}") => Ok(Header { descr, fortran_order, shape }),
            (_, _, _, "}") => Err("its header lacks one of 'descr', 'fortran_order' and 'shape'".into()),
            _ => Err("something follows the dict in its header".into()),
        }
    }
}

/// The text of the Python string (without escapes) at the beginning, and the rest after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, rest) = text[1..].split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, rest))
}

fn sizes_of(text: &str) -> Result<Vec<usize>, String> {
    let text = text.trim();
    let items = text.strip_suffix(',').unwrap_or(text);
    if items.is_empty() {
        return if text.is_empty() { Ok(Vec::new()) } else { Err("'shape' is not a tuple of sizes".into()) };
    }
    items
        .split(',')
        // Python 2 wrote long integers as 3L.
        .map(|size| {
            size.trim().trim_end_matches('L').parse().map_err(|_| format!("{:?} in 'shape' is not a size", size.trim()))
        })
        .collect()
}

/// The layout of one element in the file.
struct Item {
    dtype: DType,
    /// Bytes per element.
    size: usize,
    /// Bytes that are reversed together in the other byte order.
    unit: usize,
    big_endian: bool,
    text: Option<Text>,
}

/// The encoding of a string of fixed width in the file, padded with zeros.
#[derive(Clone, Copy)]
enum Text {
    Bytes,
    Ucs4,
}

impl Item {
    fn parse(descr: &str) -> Result<Item, String> {
        if descr.starts_with('[') {
            return Item::quantized(descr).ok_or_else(|| RECORDS.to_owned());
        }
        let no_tensor = |why: &str| Err(format!("its elements are {descr:?}{why}"));
        let (order, rest) = match descr.split_at_checked(1) {
            Some((order @ ("<" | ">" | "=" | "|"), rest)) => (order, rest),
            _ => ("=", descr),
        };
        let Some((kind, Ok(width))) = rest.split_at_checked(1).map(|(kind, width)| (kind, width.parse::<usize>()))
        else {
            let why =
                if rest == "O" { ", pickled Python objects, which are never opened" } else { ", which is not a dtype" };
            return no_tensor(why);
        };
        let fixed = |dtype: DType| Item { dtype, size: width, unit: width, big_endian: order == ">", text: None };
        let item = match (kind, width) {
            ("b", 1) => fixed(DType::Bool),
            ("i", 1) => fixed(DType::I8),
            ("i", 2) => fixed(DType::I16),
            ("i", 4) => fixed(DType::I32),
            ("i", 8) => fixed(DType::I64),
            ("u", 1) => fixed(DType::U8),
            ("u", 2) => fixed(DType::U16),
            ("u", 4) => fixed(DType::U32),
            ("u", 8) => fixed(DType::U64),
            ("f", 2) => fixed(DType::F16),
            ("f", 4) => fixed(DType::F32),
            ("f", 8) => fixed(DType::F64),
            ("c", 8) => Item { unit: 4, ..fixed(DType::C64) },
            ("c", 16) => Item { unit: 8, ..fixed(DType::C128) },
            ("V", 2) => fixed(DType::BF16),
            ("S" | "a" | "U", 0) => return no_tensor(", strings of width 0"),
            ("S" | "a", size) => {
                Item { dtype: DType::String, size, unit: 1, big_endian: false, text: Some(Text::Bytes) }
            }
            ("U", letters) => {
                let size = letters.checked_mul(4).ok_or("its strings are wider than memory")?;
                Item { dtype: DType::String, size, unit: 4, big_endian: order == ">", text: Some(Text::Ucs4) }
            }
            ("c", _) => return no_tensor(", complex numbers that are neither complex64 nor complex128"),
            ("m" | "M", _) => return no_tensor(", times, for which meshtf has no dtype"),
            _ => return no_tensor(", for which meshtf has no dtype"),
        };
        Ok(item)
    }
}

impl Item {
    /// Parses `[('qint8', '|i1')]`, TensorFlow's dtypes for arrays of quantised numbers.
    fn quantized(descr: &str) -> Option<Item> {
        let (name, rest) = quoted(descr.strip_prefix('[')?.trim_start().strip_prefix('(')?.trim_start())?;
        let (elements, rest) = quoted(rest.trim_start().strip_prefix(',')?.trim_start())?;
        let end = rest.trim_start().strip_prefix(')')?.trim_start();
        let dtype = DType::from_name(name).filter(|dtype| dtype.is_quantized())?;
        let is_simple = !elements.starts_with('[') && matches!(end, "]" | ",]");
        let item = Item::parse(elements).ok().filter(|item| is_simple && item.dtype == dtype.stored_as())?;
        Some(Item { dtype, ..item })
    }
}

impl Text {
    /// The string in an element, its bytes in little-endian order.
    fn string(self, element: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Text::Bytes => {
                let end = element.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
                Ok(element[..end].to_vec())
            }
            Text::Ucs4 => {
                let (codes, _) = element.as_chunks::<4>();
                let text: Option<String> = codes.iter().map(|code| char::from_u32(u32::from_le_bytes(*code))).collect();
                let text = text.ok_or("a string holds a code that is not a character")?;
                Ok(text.trim_end_matches('\0').as_bytes().to_vec())
            }
        }
    }
}

/// The elements little-endian and in C order: those of the file, or a copy if the file's layout differs.
fn in_our_order<'a>(data: &'a [u8], item: &Item, fortran_order: bool, dims: &[usize]) -> Result<Cow<'a, [u8]>> {
    let (swapped, turned) = (item.big_endian && item.unit > 1, fortran_order && dims.len() > 1);
    if !swapped && !turned {
        return Ok(Cow::Borrowed(data));
    }
    memory::admit(data.len())?;
    let mut data = if turned { to_c_order(data, dims, item.size) } else { data.to_vec() };
    if swapped {
        data.chunks_exact_mut(item.unit).for_each(<[u8]>::reverse);
    }
    Ok(Cow::Owned(data))
}

/// Converts elements from Fortran order (the first index varies fastest) to C order (the last does).
fn to_c_order(data: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let mut strides = Vec::with_capacity(dims.len());
    dims.iter().fold(size, |stride, &d| {
        strides.push(stride);
        stride * d
    });
    let mut index = vec![0; dims.len()];
    while out.len() < data.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        out.extend_from_slice(&data[at..at + size]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests;
