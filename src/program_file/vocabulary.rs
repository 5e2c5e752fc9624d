//! The contents of vocabulary files, as the tables that are initialized from them have them.

use std::path::Path;

use meshtf_graph::Attrs;
use meshtf_graph::op;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Shape, Tensor};

use crate::weight_file;

/// The largest file of a table.
const MAX_FILE: u64 = 1 << 30;
/// The numbers that TensorFlow has for the whole line and for its index, in place of a column.
const WHOLE_LINE: i64 = -2;
const LINE_NUMBER: i64 = -1;

/// Whether an op makes a variable.
pub fn makes_variable(name: &str) -> bool {
    op::lookup(name).is_some_and(|op| op.makes_variable)
}

/// Bytes of memory that a line takes beside its text.
const LINE_BYTES: usize = 160;

/// The keys and the values of a table that is read from a text file, as `InitializeTableFromTextFileV2` reads it.
///
/// # Errors
/// The line with the error; a file that cannot be read.
pub fn filled(attrs: &Attrs, (key, value): (DType, DType), path: &Path) -> Result<(Tensor, Tensor)> {
    let source = weight_file::source(path)?;
    if source.length() > MAX_FILE {
        return Err(Failure::invalid(format!("{}: it has more than {MAX_FILE} bytes", path.display())));
    }
    meshtf_tensor::memory::admit(2 * source.length() as usize)?;
    let mut text = vec![0; source.length() as usize];
    source.read(0, &mut text)?;
    // Of each line, two slices of the file, and two texts at most.
    let most = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
    meshtf_tensor::memory::admit(most.saturating_mul(LINE_BYTES))?;
    let int = |name: &str, default: i64| attrs.int(name).unwrap_or(default);
    let (key_index, value_index) = (int("key_index", WHOLE_LINE), int("value_index", LINE_NUMBER));
    let size = int("vocab_size", -1);
    // It is added to the numbers of lines, and skips none.
    let offset = int("offset", 0);
    let delimiter = attrs.bytes("delimiter").ok().and_then(|text| text.first().copied()).unwrap_or(b'\t');
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    if lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    let lines: Vec<&[u8]> = lines.into_iter().take(usize::try_from(size).unwrap_or(usize::MAX)).collect();
    if size >= 0 && (lines.len() as i64) < size {
        return Err(Failure::invalid(format!(
            "{} has {} lines, fewer than the {size} of the table",
            path.display(),
            lines.len()
        )));
    }
    let column = |index: i64, dtype: DType| -> Result<Tensor> {
        let at = |line: usize, why: &str| Failure::invalid(format!("{}, line {}: {why}", path.display(), line + 1));
        let mut texts = Vec::with_capacity(lines.len());
        for (number, line) in lines.iter().enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            texts.push(match index {
                WHOLE_LINE => line.to_vec(),
                LINE_NUMBER => offset.wrapping_add(number as i64).to_string().into_bytes(),
                index => {
                    let part =
                        usize::try_from(index).ok().and_then(|index| line.split(|&byte| byte == delimiter).nth(index));
                    part.ok_or_else(|| at(number, &format!("it has no column {index}")))?.to_vec()
                }
            });
        }
        let shape = Shape::from(vec![texts.len()]);
        fn numbers<T: std::str::FromStr>(texts: &[Vec<u8>]) -> std::result::Result<Vec<T>, usize> {
            let number = |(line, text): (usize, &Vec<u8>)| {
                std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()).ok_or(line)
            };
            texts.iter().enumerate().map(number).collect()
        }
        let no_number = |line| at(line, &format!("it is no {dtype}"));
        let data = match dtype {
            DType::String => Data::String(texts),
            DType::I64 => Data::I64(numbers(&texts).map_err(no_number)?),
            DType::I32 => Data::I32(numbers(&texts).map_err(no_number)?),
            DType::F32 => Data::F32(numbers(&texts).map_err(no_number)?),
            DType::F64 => Data::F64(numbers(&texts).map_err(no_number)?),
            other => return Err(Failure::invalid(format!("a table of {other} is not read from a file"))),
        };
        Tensor::new(shape, data)
    };
    Ok((column(key_index, key)?, column(value_index, value)?))
}

#[cfg(test)]
mod tests {
    use meshtf_graph::Attr;

    use super::*;

    /// As TensorFlow 2.21 fills such tables: the offset is added to the numbers of lines, of which none is skipped.
    #[test]
    fn an_offset_shifts_the_numbers_of_lines() {
        let folder = temp_dir::TempDir::new().unwrap();
        let path = folder.child("words");
        std::fs::write(&path, "a\nb\nc\nd\n").unwrap();
        let filled = |offset: i64, size: i64, of: [i64; 2], dtypes: (DType, DType)| {
            let mut attrs = Attrs::default();
            for (name, value) in
                [("key_index", of[0]), ("value_index", of[1]), ("offset", offset), ("vocab_size", size)]
            {
                attrs.set(name, Attr::Int(value));
            }
            super::filled(&attrs, dtypes, &path)
        };
        let words = |words: &[&str]| Tensor::vector(words.iter().map(|word| word.as_bytes().to_vec()).collect());
        let of_words = (DType::String, DType::I64);
        let all = words(&["a", "b", "c", "d"]);
        for (offset, numbers) in
            [(0, [0i64, 1, 2, 3]), (1, [1, 2, 3, 4]), (-1, [-1, 0, 1, 2]), (100, [100, 101, 102, 103])]
        {
            let wanted = (all.clone(), Tensor::vector(numbers.to_vec()));
            assert_eq!(filled(offset, -1, [WHOLE_LINE, LINE_NUMBER], of_words).unwrap(), wanted, "{offset}");
        }
        let two = (words(&["a", "b"]), Tensor::vector(vec![1i64, 2]));
        assert_eq!(filled(1, 2, [WHOLE_LINE, LINE_NUMBER], of_words).unwrap(), two);
        let by_number = (Tensor::vector(vec![1i64, 2, 3, 4]), all);
        assert_eq!(filled(1, 4, [LINE_NUMBER, WHOLE_LINE], (DType::I64, DType::String)).unwrap(), by_number);
        let why = filled(1, 5, [WHOLE_LINE, LINE_NUMBER], of_words).unwrap_err().message;
        assert!(why.contains("4 lines, fewer than the 5"), "{why}");
    }
}
