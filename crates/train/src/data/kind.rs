//! The kind of a file by its first bytes, for messages.

use image::ImageFormat;

use super::text::{UTF16, is_utf16};

/// Formats with a fixed beginning.
const BEGINNINGS: &[(&[u8], &str)] = &[
    (b"%PDF", "a PDF document"),
    (b"PK", "a zip archive, or a document in one"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
    (b"PAR1", "a Parquet file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a .npy array"),
    (b"SQLite format 3", "a database of SQLite"),
    (b"ID3", "an audio file"),
    (b"OggS", "an audio or video file"),
    (b"\x1aE\xdf\xa3", "a video"),
];
/// Bytes that are looked at.
const LOOKED_AT: usize = 4096;

/// The kind of a file with these bytes: `a PDF document`, `text`, or `of no known kind`.
pub fn kind_of(bytes: &[u8]) -> String {
    by_beginning(bytes).unwrap_or_else(|| if is_text(bytes) { "text" } else { "of no known kind" }.to_owned())
}

/// The kind of a file, if its first bytes say it; those of text and of other numbers do not.
pub(super) fn by_beginning(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("an empty file".to_owned());
    }
    let start = &bytes[..bytes.len().min(LOOKED_AT)];
    // Files of Apple's photos and of videos begin with a length.
    if start.get(4..8) == Some(b"ftyp") && image::guess_format(start).ok() != Some(ImageFormat::Avif) {
        let is_photo = matches!(start.get(8..12), Some(b"heic" | b"heix" | b"mif1" | b"msf1" | b"heim" | b"heis"));
        return Some(if is_photo { "a HEIC image" } else { "a video" }.to_owned());
    }
    if let Ok(format) = image::guess_format(start) {
        let name = match format {
            ImageFormat::Png => "PNG",
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
            ImageFormat::WebP => "WebP",
            ImageFormat::Tiff => "TIFF",
            ImageFormat::Avif => "AVIF",
            ImageFormat::Ico => "icon (.ico)",
            other => other.extensions_str().first().copied().unwrap_or("image"),
        };
        let article = if name.starts_with(['A', 'i']) { "an" } else { "a" };
        return Some(format!("{article} {name} image"));
    }
    if let Some((_, kind)) = BEGINNINGS.iter().find(|(beginning, _)| start.starts_with(beginning)) {
        return Some((*kind).to_owned());
    }
    text_of(start).filter(|text| text.contains("<svg")).map(|_| "an SVG drawing".to_owned())
}

/// The error for the first bytes of a file that is named as a text, and is none; `None` if it may be a text.
pub(super) fn binary(start: &[u8]) -> Option<String> {
    if is_utf16(start) {
        return Some(format!("expected UTF-8; {UTF16}"));
    }
    let start = &start[..start.len().min(LOOKED_AT)];
    // Names of columns may begin like a file of another kind, with PK or BM; but they are followed by text.
    let is_binary = start.iter().any(|byte| *byte < b' ' && !byte.is_ascii_whitespace() && *byte != 0x0b);
    let kind = by_beginning(start).filter(|_| is_binary && !start.is_empty())?;
    let advice = match start {
        [b'P', b'A', b'R', b'1', ..] => ": let its name end in .parquet",
        [b'P', b'K', ..] => ": export a spreadsheet as .csv, or unpack the archive",
        _ => "",
    };
    Some(format!("by its content this is {kind}, and no text{advice}"))
}

fn is_text(bytes: &[u8]) -> bool {
    text_of(&bytes[..bytes.len().min(LOOKED_AT)]).is_some()
}

/// The beginning of a file as text, if it is text.
fn text_of(start: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => Some(text),
        // The last character may be cut off.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    let is_plain = |text: &&str| !text.contains(|letter: char| letter.is_control() && !letter.is_whitespace());
    text.filter(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_first_bytes() {
        for (bytes, kind) in [
            (&b""[..], "an empty file"),
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"RIFF\x24\0\0\0WEBPVP8 ", "a WebP image"),
            (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image"),
            (b"\0\0\0\x18ftypisom\0\0\0\0", "a video"),
            (b"II*\0\x08\0\0\0", "a TIFF image"),
            (b"%PDF-1.7", "a PDF document"),
            (b"one,two\n1,2\n", "text"),
            ("caf\u{e9}".as_bytes(), "text"),
            (&"é".as_bytes()[..1], "text"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
            (b"\x01\x02\x03\xff", "of no known kind"),
        ] {
            assert_eq!(kind_of(bytes), kind);
        }
    }

    #[test]
    fn a_binary_file_that_is_named_as_a_text_is_known() {
        for (bytes, why) in [
            (
                &b"PAR1\x15\x04\x15"[..],
                "by its content this is a Parquet file, and no text: let its name end in .parquet",
            ),
            (
                b"PK\x03\x04\x14\0\x06\0",
                "a zip archive, or a document in one, and no text: export a spreadsheet as .csv",
            ),
            (b"\x89PNG\r\n\x1a\n", "a PNG image, and no text"),
            (b"\xff\xfea\0,\0", "expected UTF-8; it is UTF-16"),
        ] {
            let told = binary(bytes).unwrap();
            assert!(told.contains(why), "{told}");
        }
        // Tables whose first column begins like the mark of a kind of file, one of them in Latin-1.
        for text in ["PK,name\n1,a\n", "BMI;kg\n22;70\n", "ID3,b\n", "P1,P2\n", "PAR1,PAR2\n1,2\n", ""] {
            assert_eq!(binary(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(binary(b"BM,gr\xf6\xdfe\n"), None);
    }
}
