//! Nodes of graphs in a message. Their names, devices and attributes repeat, so more than a few of them travel compressed, by
//! zlib: the graph of a training takes about a seventh of its bytes.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

/// Fewer bytes are not worth the work.
const MIN_PACKED_BYTES: usize = 1 << 10;
/// Most bytes that are compressed, and most that a receiver makes of what is.
const MAX_PACKED_BYTES: usize = 64 << 20;

/// A receiver makes at most so many bytes of one: what is made of them takes more memory still. Graphs give about seven.
const MAX_RATIO: usize = 64;

/// A value in a message, for `#[serde(with = "…")]`: whether it is compressed, and its bytes.
pub mod value {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        let plain = postcard::to_allocvec(value).map_err(S::Error::custom)?;
        let is_used = |packed: &Vec<u8>| packed.len() < plain.len() && plain.len() <= most(packed);
        let packed = packed(&plain).filter(is_used);
        (packed.is_some(), Bytes::new(packed.as_ref().unwrap_or(&plain))).serialize(serializer)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let (is_packed, bytes) = <(bool, ByteBuf)>::deserialize(deserializer)?;
        let bytes = if is_packed { unpacked(&bytes).map_err(D::Error::custom)? } else { bytes.into_vec() };
        postcard::from_bytes(&bytes).map_err(D::Error::custom)
    }
}

/// Pieces in a message: their ids, and then the pieces as a [`value`].
pub mod pieces {
    use meshtf_graph::plan::Piece;
    use meshtf_tensor::ids::PieceId;

    use super::*;

    #[derive(Serialize)]
    struct Of<'p>(#[serde(with = "value")] Vec<&'p Piece>);

    #[derive(Deserialize)]
    struct Own(#[serde(with = "value")] Vec<Piece>);

    pub fn serialize<S: Serializer>(pieces: &[(PieceId, Piece)], serializer: S) -> Result<S::Ok, S::Error> {
        let ids: Vec<PieceId> = pieces.iter().map(|(id, _)| *id).collect();
        (ids, Of(pieces.iter().map(|(_, piece)| piece).collect())).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(PieceId, Piece)>, D::Error> {
        let (ids, Own(pieces)) = <(Vec<PieceId>, Own)>::deserialize(deserializer)?;
        match ids.len() == pieces.len() {
            true => Ok(ids.into_iter().zip(pieces).collect()),
            false => Err(D::Error::custom(format!("{} ids of {} pieces", ids.len(), pieces.len()))),
        }
    }
}

/// Compressed bytes; `None` if they are too few or too many.
fn packed(plain: &[u8]) -> Option<Vec<u8>> {
    if !(MIN_PACKED_BYTES..=MAX_PACKED_BYTES).contains(&plain.len()) {
        return None;
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).ok()?;
    encoder.finish().ok()
}

/// Most bytes that are made of compressed ones.
fn most(packed: &[u8]) -> usize {
    packed.len().saturating_mul(MAX_RATIO).min(MAX_PACKED_BYTES)
}

/// The bytes that were compressed. Memory is allocated as they come.
fn unpacked(packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let most = most(packed);
    let read = ZlibDecoder::new(packed).take(most as u64 + 1).read_to_end(&mut plain);
    read.map_err(|error| format!("compressed nodes: {error}"))?;
    match plain.len() <= most {
        true => Ok(plain),
        false => Err(format!("{} bytes of compressed nodes are more than {most} bytes", packed.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Message {
        before: u8,
        #[serde(with = "value")]
        names: Vec<String>,
        after: u8,
    }

    #[test]
    fn what_repeats_takes_few_bytes_and_comes_back() {
        for (count, most) in [(0, 5), (1, 60), (10, 600), (1000, 5000)] {
            let name = |k: usize| format!("replica_1/train/gradients/MatMul_grad/MatMul_{k}");
            let message = Message { before: 1, names: (0..count).map(name).collect(), after: 2 };
            let bytes = postcard::to_allocvec(&message).unwrap();
            assert!(bytes.len() <= most, "{count}: {}", bytes.len());
            assert_eq!(postcard::from_bytes::<Message>(&bytes).unwrap(), message);
        }
        // Compressed bytes are zlib's: they begin with 0x78, the method and its window.
        let plain: Vec<u8> = (0..MIN_PACKED_BYTES).map(|i| (i / 16) as u8).collect();
        assert_eq!(packed(&plain).unwrap()[0], 0x78);
        assert_eq!((packed(&plain[1..]), unpacked(&packed(&plain).unwrap())), (None, Ok(plain.clone())));
    }

    #[test]
    fn what_is_no_graph_is_refused() {
        let read = |is_packed: bool, bytes: &[u8]| {
            let bytes = postcard::to_allocvec(&(1u8, is_packed, Bytes::new(bytes), 2u8)).unwrap();
            postcard::from_bytes::<Message>(&bytes).is_ok()
        };
        let one = postcard::to_allocvec(&vec!["a"]).unwrap();
        assert!(read(false, &one) && !read(true, &one) && !read(false, &one[..1]));
        let names: Vec<String> = (0..MIN_PACKED_BYTES).map(|k| format!("MatMul_{k}")).collect();
        let large = packed(&postcard::to_allocvec(&names).unwrap()).unwrap();
        assert!(read(true, &large) && !read(true, &large[..large.len() / 2]) && !read(false, &large));
        // A few bytes that would fill the memory.
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        (0..=MAX_PACKED_BYTES >> 20).for_each(|_| encoder.write_all(&[0; 1 << 20]).unwrap());
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < 1 << 17);
        assert!(unpacked(&bomb).unwrap_err().contains("more than"));
        // Names that are all the same are not compressed, since the receiver would refuse them.
        let message = Message { before: 1, names: vec![String::new(); 1 << 16], after: 2 };
        let bytes = postcard::to_allocvec(&message).unwrap();
        assert!(bytes.len() > 1 << 16);
        assert_eq!(postcard::from_bytes::<Message>(&bytes).unwrap(), message);
    }
}
