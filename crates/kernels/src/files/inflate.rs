//! Compression of files and decompression of files and strings, by GZIP or ZLIB.

use std::io::{BufRead, ErrorKind, Read, Write};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use meshtf_loops::turn::Pace;
use meshtf_tensor::MAX_TEXT_BYTES;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::{Whole, failed};
use serde::{Deserialize, Serialize};

/// The compression of a file or a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    None,
    Gzip,
    Zlib,
}

impl Compression {
    /// # Errors
    /// InvalidArgument for a name that TensorFlow does not know either.
    pub fn named(name: &str) -> Result<Compression> {
        Ok(match name {
            "" => Compression::None,
            "GZIP" => Compression::Gzip,
            "ZLIB" => Compression::Zlib,
            other => {
                let why = format!("Only ZLIB, GZIP or NONE are supported compressions, got: {other}");
                return Err(Failure::invalid(why));
            }
        })
    }

    /// A reader of the decompressed bytes of `from`.
    pub fn reader<'a>(self, from: impl BufRead + Send + 'a) -> Box<dyn Read + Send + 'a> {
        match self {
            Compression::None => Box::new(from),
            Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
            Compression::Zlib => Box::new(ZlibDecoder::new(from)),
        }
    }

    /// A writer that compresses into the file `to`.
    #[inline]
    pub fn writer(self, to: Whole) -> Compressed {
        let name = to.name().to_vec();
        let to = match self {
            Compression::None => Encoder::None(to),
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(to, flate2::Compression::default())),
            Compression::Zlib => Encoder::Zlib(ZlibEncoder::new(to, flate2::Compression::default())),
        };
        Compressed { to, name }
    }
}

/// A compressed file that is being written. It is complete only at its [`end`](Compressed::end).
pub struct Compressed {
    to: Encoder,
    name: Vec<u8>,
}

enum Encoder {
    None(Whole),
    Gzip(GzEncoder<Whole>),
    Zlib(ZlibEncoder<Whole>),
}

impl Compressed {
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let to: &mut dyn Write = match &mut self.to {
            Encoder::None(file) => file,
            Encoder::Gzip(encoder) => encoder,
            Encoder::Zlib(encoder) => encoder,
        };
        to.write_all(bytes).map_err(|error| failed(&self.name, &error))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The system's error; the file is deleted then.
    pub fn end(self) -> Result<()> {
        let file = match self.to {
            Encoder::None(file) => Ok(file),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zlib(encoder) => encoder.finish(),
        };
        file.map_err(|error| failed(&self.name, &error))?.end()
    }
}

/// Decompresses a string.
///
/// # Errors
/// DataLoss if the string is not in this format; ResourceExhausted if the result would be larger than a tensor or the
/// memory budget.
pub fn inflate(bytes: &[u8], compression: Compression) -> Result<Vec<u8>> {
    let mut reader = compression.reader(bytes);
    let mut whole = Vec::new();
    let mut part = vec![0; 64 << 10];
    let mut pace = Pace::new();
    loop {
        let count = match reader.read(&mut part) {
            Ok(count) => count,
            // Truncated data is decompressed up to its end, as in TensorFlow.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !whole.is_empty() => 0,
            Err(error) => {
                let why = format!("cannot decompress {} bytes: {error}", bytes.len());
                return Err(Failure::new(Code::DataLoss, why));
            }
        };
        if count == 0 {
            return Ok(whole);
        }
        pace.go(4 * count);
        if whole.len() + count > MAX_TEXT_BYTES {
            let why = format!("decompressed, a string would exceed the limit of {MAX_TEXT_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if whole.capacity() - whole.len() < count {
            memory::admit(2 * whole.len() + count)?;
        }
        whole.extend_from_slice(&part[..count]);
    }
}
