//! A text of numbers, as `numpy.savetxt` writes it.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result, counted};

use super::{admit_pieces, utf8};

/// Most characters of a field in a message.
const MAX_SHOWN: usize = 40;

/// The numbers of a text: a matrix with a row for each line, or a vector if there is one line, or one number in each. They are
/// int64 if all are whole, else float64. Blank lines, and all after a `#`, are left out; spaces, commas or semicolons lie between
/// numbers.
///
/// # Errors
/// InvalidArgument for a field that is not a number, and for a line of another length, with its number; ResourceExhausted if
/// there are too many.
pub fn read(bytes: &[u8]) -> Result<Tensor> {
    let text = utf8(bytes).map_err(|why| Failure::invalid(format!("it is {why}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_between = |c: char| c.is_whitespace() || c == ',' || c == ';';
    let count = text.bytes().filter(|byte| is_between(char::from(*byte))).count() + 1;
    admit_pieces("numbers", count, size_of::<f64>() + size_of::<i64>(), 0)?;
    let (mut numbers, mut whole) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut rows, mut first) = (0, (0, 0));
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let before = numbers.len();
        for field in content.split(is_between).filter(|field| !field.is_empty()) {
            let number: f64 = field.parse().map_err(|_| {
                let shown: String = field.chars().take(MAX_SHOWN).collect();
                Failure::invalid(format!("line {line}: {shown:?} is not a number"))
            })?;
            numbers.push(number);
            // As long as all are.
            if whole.len() + 1 == numbers.len()
                && let Ok(number) = field.parse::<i64>()
            {
                whole.push(number);
            }
        }
        let own = numbers.len() - before;
        if own == 0 {
            continue;
        }
        if rows == 0 {
            first = (line, own);
        } else if own != first.1 {
            return Err(Failure::invalid(format!(
                "line {line} has {}, and line {} has {}; a matrix has as many in each line",
                counted(own, "number"),
                first.0,
                first.1
            )));
        }
        rows += 1;
    }
    let shape = if rows <= 1 || first.1 == 1 { vec![numbers.len()] } else { vec![rows, first.1] };
    Ok(if whole.len() == numbers.len() && rows > 0 {
        Tensor::from_vec(shape, whole)
    } else {
        Tensor::from_vec(shape, numbers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_numpy_writes_them() {
        let read = |text: &str| read(text.as_bytes());
        assert_eq!(read("1 2 3\n4 5 6\n").unwrap(), Tensor::from_vec([2, 3], vec![1i64, 2, 3, 4, 5, 6]));
        assert_eq!(read("# a b\n1.5, 2\r\n\n-3e1;nan # c\n").unwrap().dims(), [2, 2]);
        assert_eq!(read("0.5\n1\n").unwrap(), Tensor::vector(vec![0.5, 1.0]));
        assert_eq!(read("9007199254740993 1").unwrap(), Tensor::vector(vec![9_007_199_254_740_993i64, 1]));
        assert_eq!(read("").unwrap(), Tensor::vector(Vec::<f64>::new()));
        let refused = |text: &str| read(text).unwrap_err().message;
        assert_eq!(refused("1 2\nx 4"), r#"line 2: "x" is not a number"#);
        assert_eq!(refused("1 2\n\n3"), "line 3 has 1 number, and line 1 has 2; a matrix has as many in each line");
    }
}
