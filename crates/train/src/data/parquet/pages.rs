//! The pages of a column: read from the file, checked, and decompressed within a limit.

use std::io::{BufReader, Read};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::memory;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use super::super::Compression as Packed;
use super::super::source::Source;

/// Most bytes of a page, which usually has one million.
const MAX_PAGE: usize = 1 << 28;
/// Most values of a page, which usually has some ten thousand.
const MAX_VALUES: u32 = 1 << 26;
/// Most values of a block of differences, which usually has 128.
const MAX_BLOCK: u64 = 1 << 20;
/// Bytes of a page's head that are read at once.
const HEAD: usize = 1 << 12;
/// Least number of bytes that are decompressed at once.
const CHUNK: usize = 1 << 16;

/// The bytes of a file.
pub(super) struct Bytes<S>(pub Arc<S>);

impl<S: Source> Length for Bytes<S> {
    fn len(&self) -> u64 {
        self.0.length()
    }
}

impl<S: Source> ChunkReader for Bytes<S> {
    type T = BufReader<Rest<S>>;

    /// Heads of pages are read from it.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::with_capacity(HEAD, Rest { source: Arc::clone(&self.0), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.0.length()) {
            return Err(ParquetError::EOF("a page ends outside of the file".to_owned()));
        }
        memory::admit(length).map_err(external)?;
        let mut bytes = vec![0; length];
        self.0.read(start, &mut bytes).map_err(external)?;
        Ok(bytes.into())
    }
}

/// The bytes from an offset on.
pub(super) struct Rest<S> {
    source: Arc<S>,
    at: u64,
}

impl<S: Source> Read for Rest<S> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let rest = self.source.length().saturating_sub(self.at);
        let read = rest.min(to.len() as u64) as usize;
        self.source.read(self.at, &mut to[..read]).map_err(std::io::Error::other)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn external(failure: Failure) -> ParquetError {
    ParquetError::General(failure.message)
}

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(ParquetError::General(why.into()))
}

/// The pages of a column in a group of rows.
pub(super) struct Pages {
    /// The pages as the file has them.
    raw: Box<dyn PageReader>,
    codec: Codec,
    is_optional: bool,
    has_dictionary: bool,
}

#[derive(Clone, Copy)]
enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

impl Pages {
    /// # Errors
    /// The pages are compressed in a way that is not read.
    pub fn of(raw: Box<dyn PageReader>, codec: Compression, levels: i16) -> std::result::Result<Pages, String> {
        let codec = match codec {
            Compression::UNCOMPRESSED => Codec::None,
            Compression::SNAPPY => Codec::Snappy,
            Compression::GZIP(_) => Codec::Gzip,
            Compression::ZSTD(_) => Codec::Zstd,
            other => {
                let name = other.to_string();
                let name = name.split('(').next().unwrap_or_default();
                return Err(format!(
                    "it is compressed by {name}; expected snappy, gzip, zstd or none: write the file so"
                ));
            }
        };
        Ok(Pages { raw, codec, is_optional: levels > 0, has_dictionary: false })
    }

    /// The contents of a page, of which the first `plain` bytes are not compressed.
    fn unpacked(&self, packed: &bytes::Bytes, plain: usize) -> Result<bytes::Bytes> {
        let failed =
            |error: &dyn std::fmt::Display| ParquetError::General(format!("a page cannot be unpacked: {error}"));
        let too_large = || wrong(format!("a page has more than {MAX_PAGE} bytes, the limit"));
        let Some((levels, rest)) = packed.split_at_checked(plain) else { return wrong("a page is too short") };
        let mut all = levels.to_vec();
        match self.codec {
            Codec::None => return Ok(packed.clone()),
            // A page of missing values alone.
            _ if rest.is_empty() => {}
            Codec::Snappy => {
                let length = snap::raw::decompress_len(rest).map_err(|error| failed(&error))?;
                if length > MAX_PAGE {
                    return too_large();
                }
                memory::admit(length).map_err(external)?;
                all.resize(plain + length, 0);
                snap::raw::Decoder::new().decompress(rest, &mut all[plain..]).map_err(|error| failed(&error))?;
            }
            Codec::Gzip | Codec::Zstd => {
                let mut from: Box<dyn Read + '_> = match self.codec {
                    Codec::Gzip => Box::new(MultiGzDecoder::new(rest)),
                    _ => Packed::Zstd.reader(rest),
                };
                loop {
                    // A vector grows by doubling.
                    let more = all.len().max(CHUNK);
                    memory::admit(more).map_err(external)?;
                    let read = from.by_ref().take(more as u64).read_to_end(&mut all).map_err(|error| failed(&error))?;
                    if all.len() > plain + MAX_PAGE {
                        return too_large();
                    }
                    if read == 0 {
                        break;
                    }
                }
            }
        }
        Ok(all.into())
    }

    /// The page, decompressed and checked.
    fn page(&mut self, page: Page) -> Result<Page> {
        if page.num_values() > MAX_VALUES {
            return wrong(format!("a page has {} values; the limit is {MAX_VALUES}", page.num_values()));
        }
        let is_of_dictionary = matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        if page.is_data_page() && is_of_dictionary && !self.has_dictionary {
            return wrong("its dictionary is missing");
        }
        let page = match page {
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics } => {
                let buf = self.unpacked(&buf, 0)?;
                let levels = match (self.is_optional, def_level_encoding) {
                    (false, _) => 0,
                    (true, Encoding::RLE) => match buf.first_chunk::<4>() {
                        Some(length) => (u32::from_le_bytes(*length) as usize).saturating_add(4),
                        None => return wrong("a page is too short"),
                    },
                    (true, _) => (num_values as usize).div_ceil(8),
                };
                check_values(&buf, levels, encoding, num_values)?;
                Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics }
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                statistics,
            } => {
                let levels = (def_levels_byte_len as usize).saturating_add(rep_levels_byte_len as usize);
                let buf = if is_compressed { self.unpacked(&buf, levels)? } else { buf };
                check_values(&buf, levels, encoding, num_values)?;
                Page::DataPageV2 {
                    buf,
                    num_values,
                    encoding,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed: false,
                    statistics,
                }
            }
            Page::DictionaryPage { buf, num_values, encoding, is_sorted } => {
                let buf = self.unpacked(&buf, 0)?;
                if num_values as usize > buf.len() {
                    return wrong("a dictionary states more values than it has");
                }
                self.has_dictionary = true;
                Page::DictionaryPage { buf, num_values, encoding, is_sorted }
            }
        };
        Ok(page)
    }
}

/// Checks that values begin within a page, at this offset; and the number of differences between them, of which as many are
/// reserved in memory; and the bytes of texts that repeat the beginnings of others.
fn check_values(page: &[u8], begin: usize, encoding: Encoding, values: u32) -> Result<()> {
    let Some(rest) = page.get(begin..) else { return wrong("a page is too short") };
    let is_sound = match encoding {
        // All values are missing.
        _ if rest.is_empty() => true,
        Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY => {
            differences(rest, values, |_| {}).is_some()
        }
        // The lengths of common beginnings, and those of the rests.
        Encoding::DELTA_BYTE_ARRAY => {
            let mut repeated = 0u64;
            let end = differences(rest, values, |length| {
                repeated = repeated.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
            });
            let is_sound = end.is_some_and(|end| differences(&rest[end..], values, |_| {}).is_some());
            if is_sound && repeated > MAX_PAGE as u64 {
                return wrong(format!("the texts of a page have {repeated} bytes; the limit is {MAX_PAGE}"));
            }
            if is_sound {
                memory::admit(repeated as usize).map_err(external)?;
            }
            is_sound
        }
        _ => true,
    };
    if is_sound { Ok(()) } else { wrong("a page states more values than it has") }
}

/// The number of bytes of up to so many numbers that are packed as differences, after each number was given to `each`; `None` if
/// they state more, or are truncated.
fn differences(bytes: &[u8], most: u32, mut each: impl FnMut(i64)) -> Option<usize> {
    let mut rest = bytes;
    let (block, parts, all, first) = (varint(&mut rest)?, varint(&mut rest)?, varint(&mut rest)?, varint(&mut rest)?);
    if block > MAX_BLOCK || parts == 0 || parts > block || all > most.into() {
        return None;
    }
    let in_part = block / parts;
    let mut number = signed(first);
    if all > 0 {
        each(number);
    }
    let mut left = all.saturating_sub(1);
    while left > 0 {
        // The least difference, and the bits of each one in every part.
        let least = signed(varint(&mut rest)?);
        let (bits, after) = rest.split_at_checked(parts as usize)?;
        rest = after;
        for bits in bits {
            // Parts after the last number have none.
            let size = if left > 0 { u64::from(*bits) * in_part / 8 } else { 0 };
            let (part, after) = rest.split_at_checked(size as usize)?;
            rest = after;
            for i in 0..in_part.min(left) {
                number = number.wrapping_add(least).wrapping_add(packed(part, *bits, i));
                each(number);
            }
            left = left.saturating_sub(in_part);
        }
    }
    Some(bytes.len() - rest.len())
}

/// The number at an index of a part whose numbers have so many bits each, the lowest first.
fn packed(part: &[u8], bits: u8, i: u64) -> i64 {
    let begin = i * u64::from(bits);
    let mut bytes = [0; 16];
    let from = part.get((begin / 8) as usize..).unwrap_or_default();
    let from = &from[..from.len().min(16)];
    bytes[..from.len()].copy_from_slice(from);
    let mask = if bits < 64 { (1 << bits) - 1 } else { u128::from(u64::MAX) };
    (u128::from_le_bytes(bytes) >> (begin % 8) & mask) as u64 as i64
}

/// A number from its form without a sign: 0, -1, 1, -2, …
fn signed(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// A number of seven bits in each byte.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for place in 0..10 {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.raw.get_next_page()? {
            Some(page) => self.page(page).map(Some),
            None => Ok(None),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.raw.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.raw.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.raw.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_their_differences() {
        // The example of Parquet's description of the encoding: 7, then the differences -2 + (0, 0, 0, 3, 3, 3, 3).
        let bytes = [8, 1, 8, 14, 3, 2, 0b1100_0000, 0b0011_1111];
        let mut all = Vec::new();
        assert_eq!(differences(&bytes, 8, |number| all.push(number)), Some(bytes.len()));
        assert_eq!(all, [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(differences(&bytes, 7, |_| {}), None);
        assert_eq!(differences(&bytes[..7], 8, |_| {}), None);
        assert_eq!([0, 1, 2, 3].map(signed), [0, -1, 1, -2]);
        assert_eq!(packed(&[0xff; 8], 64, 0), -1);
        assert_eq!(packed(&[0b1010_0000, 0b0000_0101], 3, 3), 0b010);
    }

    /// Each text repeats a mebibyte of the one before it.
    #[test]
    fn texts_that_repeat_too_much_are_refused() {
        // 900 times the same number: eight blocks of 128 differences without bits.
        let numbers = |number: [u8; 4]| [&[0x80, 1, 1, 0x84, 7][..], &number, &[0; 16]].concat();
        let (mebibyte, none) = (numbers([0x80, 0x80, 0x80, 1]), numbers([0x80, 0x80, 0x80, 0]));
        let check = |page: &[u8]| check_values(page, 0, Encoding::DELTA_BYTE_ARRAY, 900);
        let failure = check(&[&mebibyte[..], &none].concat()).unwrap_err().to_string();
        assert!(failure.contains("the texts of a page have 943718400 bytes; the limit is 268435456"), "{failure}");
        check(&[&none[..], &none].concat()).unwrap();
    }
}
