//! The checksum of checkpoints: CRC-32C, with Castagnoli's polynomial, and the mask with which it is stored.

/// Extends `crc`, the checksum of some bytes, by `bytes`; start with 0.
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The form in which a checksum is stored, so that data that contains checksums can be checksummed safely.
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
