//! The checksum of checkpoints: CRC-32 with Castagnoli's polynomial, and the mask it is stored under.

/// The polynomial, lowest power last.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[k][b]`: the checksum of byte `b` followed by `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// The checksum of what `crc` is the checksum of, followed by `bytes`; start with 0.
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc = (0..8).fold(0, |sum, i| sum ^ TABLES[7 - i][(word >> (8 * i) & 0xff) as usize]);
    }
    for &byte in rest {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize];
    }
    !crc
}

/// The form a checksum is stored in, so that bytes that hold checksums have sound checksums themselves.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720, B.4.
    #[test]
    fn known_answers() {
        assert_eq!(extend(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(extend(0, &[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(extend(0, &rising), 0x46dd_794e);
        assert_eq!(extend(0, b"123456789"), 0xe306_9283);
        let (first, second) = rising.split_at(13);
        assert_eq!(extend(extend(0, first), second), 0x46dd_794e);
        assert_eq!(mask(0), 0xa282_ead8);
    }
}
