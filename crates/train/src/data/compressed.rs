//! Files that are compressed by gzip or zstd, recognised by their first bytes.

use std::io::{self, BufRead, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use meshtf_tensor::failure::Failure;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// The number of first bytes by which a compression is recognised.
    pub const MAGIC: usize = 4;

    /// That of a file with these first bytes, if it is compressed.
    pub fn of(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// The decompressed bytes.
    pub fn reader<'r>(self, from: impl BufRead + 'r) -> Box<dyn Read + 'r> {
        match self {
            Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
            Compression::Zstd => Box::new(Frames { source: Some(from), frame: None }),
        }
    }

    /// A failure of decompression, with its name.
    pub fn failure(self, failure: Failure) -> Failure {
        let name = match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        Failure { message: format!("{name}: {}", failure.message), ..failure }
    }
}

/// A frame whose first bytes were read.
type Frame<R> = StreamingDecoder<Chain<Cursor<Vec<u8>>, R>, FrameDecoder>;

/// The frames of a zstd file, one after the other.
struct Frames<R: Read> {
    /// The file, between two frames.
    source: Option<R>,
    frame: Option<Frame<R>>,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame; `false` at the end of the file.
    fn next(&mut self, mut source: R) -> io::Result<bool> {
        loop {
            let mut magic = Vec::new();
            source.by_ref().take(Compression::MAGIC as u64).read_to_end(&mut magic)?;
            if magic.is_empty() {
                return Ok(false);
            }
            // A skippable frame: its length, and bytes that another program reads.
            if let [0x50..=0x5f, 0x2a, 0x4d, 0x18] = magic[..] {
                let mut length = [0; 4];
                source.read_exact(&mut length)?;
                let length = u64::from(u32::from_le_bytes(length));
                if io::copy(&mut source.by_ref().take(length), &mut io::sink())? < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            let frame = StreamingDecoder::new(Cursor::new(magic).chain(source)).map_err(io::Error::other)?;
            self.frame = Some(frame);
            return Ok(true);
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(to)?;
                if read > 0 || to.is_empty() {
                    return Ok(read);
                }
                let stated = frame.decoder.get_checksum_from_data();
                if stated.is_some() && stated != frame.decoder.get_calculated_checksum() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of a frame differs"));
                }
                self.source = self.frame.take().map(|frame| frame.into_inner().into_inner().1);
            }
            let Some(source) = self.source.take() else { return Ok(0) };
            if !self.next(source)? {
                return Ok(0);
            }
        }
    }
}
