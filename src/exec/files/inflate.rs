//! Files and strings compressed by GZIP or ZLIB.

use std::io::{BufRead, ErrorKind, Read};

#[cfg(feature = "exec")]
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use crate::exec::turn::Pace;
use crate::failure::{Code, Failure, Result};
use crate::memory;
use crate::tensor::MAX_TENSOR_BYTES;

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Compression {
    None,
    #[cfg(feature = "exec")]
    Gzip,
    #[cfg(feature = "exec")]
    Zlib,
}

impl Compression {
    /// # Errors
    /// InvalidArgument for a name that TensorFlow does not have either.
    pub fn named(name: &str) -> Result<Compression> {
        Ok(match name {
            "" => Compression::None,
            #[cfg(feature = "exec")]
            "GZIP" => Compression::Gzip,
            #[cfg(feature = "exec")]
            "ZLIB" => Compression::Zlib,
            other => {
                let why = format!("Only ZLIB, GZIP or NONE are supported compressions, got: {other}");
                return Err(Failure::invalid(why));
            }
        })
    }

    /// What the reader's bytes are, decompressed.
    pub fn reader<'a>(self, from: impl BufRead + Send + 'a) -> Box<dyn Read + Send + 'a> {
        match self {
            Compression::None => Box::new(from),
            #[cfg(feature = "exec")]
            Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
            #[cfg(feature = "exec")]
            Compression::Zlib => Box::new(ZlibDecoder::new(from)),
        }
    }
}

/// A string, decompressed.
///
/// # Errors
/// DataLoss if it is not compressed so; ResourceExhausted if it would be larger than a tensor or the memory budget.
pub(in crate::exec) fn inflate(bytes: &[u8], compression: Compression) -> Result<Vec<u8>> {
    let mut reader = compression.reader(bytes);
    let mut whole = Vec::new();
    let mut part = vec![0; 64 << 10];
    let mut pace = Pace::new();
    loop {
        let count = match reader.read(&mut part) {
            Ok(count) => count,
            // What is cut off is decompressed as far as it goes, as in TensorFlow.
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
        if whole.len() + count > MAX_TENSOR_BYTES {
            let why = format!("decompressed, a string would exceed the limit of {MAX_TENSOR_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if whole.capacity() - whole.len() < count {
            memory::admit(2 * whole.len() + count)?;
        }
        whole.extend_from_slice(&part[..count]);
    }
}
