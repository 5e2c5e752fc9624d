//! The description at the end of a Parquet file, in Thrift's compact protocol. The groups of its schema are counted before the
//! library builds it, which trusts their numbers of parts, and recurses into them.

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::super::source::Source;

/// Bytes of the length of the footer and of the mark after it.
const TAIL: u64 = 8;
/// Most bytes of a footer, which has some hundred for each column in each group of rows.
const MAX_FOOTER: u64 = 1 << 28;
/// Most groups within each other, in a schema or in other values.
const MAX_DEPTH: usize = 64;

/// The bytes of the footer.
///
/// # Errors
/// InvalidArgument if it is cut off or damaged; ResourceExhausted if it is too large.
pub(super) fn read(source: &impl Source) -> Result<Vec<u8>> {
    let cut =
        || Failure::invalid("the Parquet file is truncated, or was not written to its end: its footer is missing");
    let end = source.length().checked_sub(TAIL).ok_or_else(cut)?;
    let mut tail = [0; TAIL as usize];
    source.read(end, &mut tail)?;
    let [a, b, c, d, mark @ ..] = tail;
    match &mark {
        b"PAR1" => {}
        b"PARE" => return Err(Failure::invalid("its footer is encrypted; expected a file without encryption")),
        _ => return Err(cut()),
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > MAX_FOOTER {
        let why = format!("the footer has {length} bytes; the limit is {MAX_FOOTER}");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    let begin = end.checked_sub(length).ok_or_else(cut)?;
    memory::admit(length as usize)?;
    let mut footer = vec![0; length as usize];
    source.read(begin, &mut footer)?;
    match parts(&footer).is_some_and(|parts| are_whole(&parts)) {
        true => Ok(footer),
        false => Err(Failure::invalid("the Parquet file is damaged: its footer has no valid schema")),
    }
}

/// Whether these numbers of parts, of each element before its parts, are those of one group that contains all others.
fn are_whole(parts: &[u32]) -> bool {
    // The parts of each open group that are still to come; the schema is one element.
    let mut open = vec![1];
    for (i, own) in parts.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        let Some(left) = open.last_mut() else { return false };
        *left -= 1;
        if *own as usize > parts.len() - i - 1 || open.len() > MAX_DEPTH {
            return false;
        }
        open.push(*own);
    }
    open.iter().all(|left| *left == 0)
}

/// The kinds of values.
mod kind {
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
}

/// The number of parts of each element of a footer's schema.
fn parts(footer: &[u8]) -> Option<Vec<u32>> {
    /// The fields of the schema in a footer, and of the number of parts in an element.
    const SCHEMA: i64 = 2;
    const PARTS: i64 = 5;
    let (mut reader, mut parts, mut field) = (Reader(footer), None, 0);
    while let Some(kind) = reader.field(&mut field)? {
        if field != SCHEMA || kind != kind::LIST {
            reader.skip(kind, 0)?;
            continue;
        }
        let (elements, kind) = reader.list()?;
        if kind != kind::STRUCT || parts.is_some() {
            return None;
        }
        let mut all = Vec::new();
        for _ in 0..elements {
            let (mut own, mut field) = (0, 0);
            while let Some(kind) = reader.field(&mut field)? {
                match (field, kind) {
                    (PARTS, kind::I16..=kind::I64) => own = u32::try_from(reader.zigzag()?).ok()?,
                    _ => reader.skip(kind, 0)?,
                }
            }
            all.push(own);
        }
        parts = Some(all);
    }
    parts
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(7 * place)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// The kind of the next field of a structure, whose number replaces that of the last one; `None` at the end.
    fn field(&mut self, number: &mut i64) -> Option<Option<u8>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *number = match head >> 4 {
            0 => self.zigzag()?,
            more => number.checked_add(more.into())?,
        };
        Some(Some(head & 0xf))
    }

    /// The number of the elements of a list, and their kind.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Some((count, head & 0xf))
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    /// Skips a value, which is within so many others.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            // As fields, their kind is their value.
            kind::TRUE | kind::FALSE => {}
            kind::BYTE => self.advance(1)?,
            kind::I16..=kind::I64 => _ = self.varint()?,
            kind::DOUBLE => self.advance(8)?,
            kind::BINARY => {
                let bytes = self.varint()?;
                self.advance(bytes)?;
            }
            kind::LIST | kind::SET => {
                let (count, kind) = self.list()?;
                for _ in 0..count {
                    self.element(kind, depth)?;
                }
            }
            kind::MAP => {
                let count = self.varint()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                for _ in 0..count {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 0xf, depth)?;
                }
            }
            kind::STRUCT => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Skips an element of a list, which takes a byte at least.
    fn element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.advance(1),
            _ => self.skip(kind, depth + 1),
        }
    }
}
