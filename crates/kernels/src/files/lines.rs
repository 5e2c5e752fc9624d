//! The lines of a text file.

use std::io::{self, BufRead};

use meshtf_loops::turn::Pace;
use meshtf_tensor::MAX_TEXT_BYTES;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

/// Reads a file line by line; ends with an error or at the end of the file.
pub struct Lines<R> {
    reader: R,
    pace: Pace,
}

impl<R: BufRead> Lines<R> {
    #[inline]
    pub fn new(reader: R) -> Lines<R> {
        Lines { reader, pace: Pace::new() }
    }

    /// The next line, without its end; `None` at the end of the file.
    ///
    /// # Errors
    /// ResourceExhausted if the line is too long for a tensor or the memory budget; `failed` of an error of the system.
    pub fn next(&mut self, failed: impl Fn(&io::Error) -> Failure) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let part = self.reader.fill_buf().map_err(|error| failed(&error))?;
            if part.is_empty() {
                return Ok((!line.is_empty()).then_some(line));
            }
            let end = part.iter().position(|&byte| byte == b'\n');
            let count = end.unwrap_or(part.len());
            if line.len() + count > MAX_TEXT_BYTES {
                let why = format!("a line is longer than {MAX_TEXT_BYTES} bytes, which is the limit of a text");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            if line.capacity() - line.len() < count {
                memory::admit(2 * line.len() + count)?;
            }
            line.extend_from_slice(&part[..count]);
            self.pace.go(200 + count);
            self.reader.consume(count + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_end_where_the_file_says() {
        let check = |text: &str, wanted: &[&str]| {
            for size in [1, 3, 100] {
                let mut lines = Lines::new(BufReader::with_capacity(size, text.as_bytes()));
                let mut got = Vec::new();
                while let Some(line) = lines.next(|error| panic!("{error}")).unwrap() {
                    got.push(String::from_utf8(line).unwrap());
                }
                assert_eq!(got, wanted, "{text:?}");
            }
        };
        check("", &[]);
        check("\n", &[""]);
        check("one\ntwo\n", &["one", "two"]);
        check("one\n\n\rthree", &["one", "", "\rthree"]);
    }
}
