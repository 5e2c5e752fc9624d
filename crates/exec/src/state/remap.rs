//! GenerateVocabRemapping and LoadAndRemapMatrix, which convert a matrix of a checkpoint from an old vocabulary to a new one.
//! Each line of a vocabulary has a row or a column of the matrix.

use std::collections::HashMap;

use meshtf_checkpoint::Checkpoint;
use meshtf_kernels::files::{Compression, Folder, Format, Records};
use meshtf_loops::turn::{self, paced};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::op::{one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("GenerateVocabRemapping", |node, site| {
        let folder = site.folder(node);
        let size = |name: &str| node.attrs.int(name).map(|size| usize::try_from(size).ok());
        let (offset, count) = (size("new_vocab_offset")?.unwrap_or(0), size("num_new_vocab")?.unwrap_or(0));
        let old_size = size("old_vocab_size")?;
        simple(move |mut inputs, _| {
            let new = vocabulary(&folder, &inputs.host(0)?, "new", None)?;
            let old = vocabulary(&folder, &inputs.host(1)?, "old", old_size)?;
            let places = turn::in_part(|| remapping(new, old, offset, count))?;
            let found = places.iter().filter(|&&place| place >= 0).count() as i32;
            Ok([Tensor::vector(places), Tensor::scalar(found)].into_iter().map(|out| Some(out.into())).collect())
        })
    });
    ops.insert("LoadAndRemapMatrix", |node, site| {
        let folder = site.folder(node);
        let (rows, columns) = (node.attrs.int("num_rows")?, node.attrs.int("num_cols")?);
        simple(move |mut inputs, _| {
            let [path, name] = [(0, "ckpt_path"), (1, "old_tensor_name")].map(|(input, what)| {
                let text = inputs.host(input)?;
                let wrong = || format!("The `{what}` tensor must have exactly one element, got tensor of shape");
                match text.slice::<Vec<u8>>()? {
                    [text] => Ok(text.clone()),
                    _ => Err(Failure::invalid(format!("{} {}", wrong(), text.shape()))),
                }
            });
            let rows = Places::of(&inputs.host(2)?, rows, "row_remapping", "num_rows")?;
            let column_places = inputs.host(3)?;
            let columns = match column_places.is_empty() {
                true => Err(columns),
                false => Ok(Places::of(&column_places, columns, "col_remapping", "num_cols")?),
            };
            let initial = inputs.host(4)?;
            let (path, name) = (path?, name?);
            let matrix = turn::in_part(|| Checkpoint::open(folder.get()?, &path)?.tensor(&name, DType::F32, None))?;
            turn::in_part(|| remapped(&matrix, &name, &rows, columns, &initial)).map(one)
        })
    });
}

/// The lines of a vocabulary; at most `size` if that is given, and then no fewer.
fn vocabulary(folder: &Folder, name: &Tensor, which: &str, size: Option<usize>) -> Result<Vec<Vec<u8>>> {
    let [name] = name.slice::<Vec<u8>>()? else {
        let why = format!("{which}_vocab_file should be a single string, but got {}", name.shape());
        return Err(Failure::invalid(why));
    };
    if name.is_empty() {
        return Err(Failure::invalid(format!("{which} vocab filename cannot be empty.")));
    }
    let format = Format::Lines { header: 0, compression: Compression::None };
    let mut records = Records::open(&format, folder, name.clone())?;
    let mut lines = Vec::new();
    while lines.len() < size.unwrap_or(usize::MAX)
        && let Some((_, line)) = turn::in_part(|| records.next())?
    {
        lines.push(line);
        memory::grow()?;
    }
    match size {
        Some(size) if size != lines.len() => Err(Failure::invalid(format!(
            "Invalid vocab_size in {}: expected {size} but got {}",
            String::from_utf8_lossy(name),
            lines.len()
        ))),
        _ => Ok(lines),
    }
}

/// For each of `count` lines of the new vocabulary from `offset` on: the index of the line in the old one, or -1.
fn remapping(new: Vec<Vec<u8>>, old: Vec<Vec<u8>>, offset: usize, count: usize) -> Result<Vec<i64>> {
    let wanted = offset
        .checked_add(count)
        .and_then(|end| new.get(offset..end))
        .ok_or_else(|| Failure::invalid("lookup table size must be larger than last new vocab entry's line number"))?;
    memory::admit(old.len() * 2 * size_of::<(Vec<u8>, i64)>())?;
    let mut lines = HashMap::with_capacity(old.len());
    for (line, text) in (0i64..).zip(paced(old.into_iter(), 128)) {
        if let Some(before) = lines.insert(text, line) {
            return Err(Failure::invalid(format!(
                "HashTable has different value for same key: lines {before} and {line} of the old vocabulary are the same"
            )));
        }
    }
    Ok(paced(wanted.iter(), 128).map(|text| lines.get(text).copied().unwrap_or(-1)).collect())
}

/// The index in the old matrix of each row or column of the new one; `None` for new ones.
struct Places(Vec<Option<usize>>);

impl Places {
    fn of(tensor: &Tensor, count: i64, what: &str, of: &str) -> Result<Places> {
        if tensor.rank() != 1 {
            let why = format!("The `{what}` tensor must be 1-D, got shape of size {}", tensor.rank());
            return Err(Failure::invalid(why));
        }
        if tensor.len() as i64 != count {
            let given =
                if of == "num_cols" { "Provided col_remapping, but its size is" } else { "Size of row_remapping is" };
            return Err(Failure::invalid(format!("{given} {} instead of being equal to {of}={count}", tensor.len())));
        }
        let places: Vec<_> = tensor.to_i64s()?.into_iter().map(|place| usize::try_from(place).ok()).collect();
        let mut seen = HashMap::new();
        for (new, old) in paced(places.iter().enumerate(), 128) {
            if let Some(old) = old
                && let Some(before) = seen.insert(old, new)
            {
                let why = format!("Old ID {old} is mapped to both new ID {before} and {new}, which is not supported.");
                return Err(Failure::new(Code::Unimplemented, why));
            }
        }
        Ok(Places(places))
    }
}

/// The new matrix: its elements from the old one, and `initial` for the new elements, row by row. Without indices of columns it
/// has the old ones, as many as `Err` contains.
fn remapped(
    matrix: &Tensor,
    name: &[u8],
    rows: &Places,
    columns: Result<Places, i64>,
    initial: &Tensor,
) -> Result<Tensor> {
    let name = String::from_utf8_lossy(name);
    let &[old_rows, old_columns] = matrix.dims() else {
        let why = format!(
            "Tensor {name} has shape {} of invalid rank {} instead of expected shape of rank 2",
            matrix.shape(),
            matrix.rank()
        );
        return Err(Failure::invalid(why));
    };
    let columns = match columns {
        Ok(Places(columns)) => columns,
        Err(wanted) if wanted == old_columns as i64 => (0..old_columns).map(Some).collect(),
        Err(wanted) => {
            return Err(Failure::invalid(format!(
                "Tensor {name} has shape {}, where the size of its 2nd dimension is {old_columns} instead of being equal \
                 to num_cols={wanted}",
                matrix.shape()
            )));
        }
    };
    let outside = rows.0.iter().flatten().find(|&&row| row >= old_rows).map(|row| ("row", row));
    let outside = outside.or_else(|| columns.iter().flatten().find(|&&at| at >= old_columns).map(|at| ("column", at)));
    if let Some((what, place)) = outside {
        let why = format!("{what} {place} is not one of tensor {name}, which has shape {}", matrix.shape());
        return Err(Failure::invalid(why));
    }
    let (old, initial) = (matrix.slice::<f32>()?, initial.slice::<f32>()?);
    let shape = Shape::from([rows.0.len(), columns.len()]);
    let mut out = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    let mut unused = initial.iter();
    for row in paced(rows.0.iter(), columns.len()) {
        for column in &columns {
            let kept = row.zip(*column).map(|(row, column)| old[row * old_columns + column]);
            let few = || {
                let why = format!("initializing_values contained {} elements, but more are missing", initial.len());
                Failure::invalid(why)
            };
            out.push(kept.or_else(|| unused.next().copied()).ok_or_else(few)?);
        }
    }
    let used = initial.len() - unused.len();
    if used != initial.len() {
        return Err(Failure::invalid(format!(
            "initializing_values contained {} elements, but only {used} elements were used to fill in missing values.",
            initial.len()
        )));
    }
    Ok(Tensor::from_vec(shape, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_tells_where_its_lines_were() {
        let lines = |text: &str| text.split(' ').map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>();
        // TensorFlow's own example: tests of GenerateVocabRemapping.
        let (new, old) = (lines("MISSING knitting flask eminem"), lines("knitting eminem MISSING"));
        assert_eq!(remapping(new.clone(), old.clone(), 0, 4).unwrap(), [2, 0, -1, 1]);
        assert_eq!(remapping(new.clone(), old.clone(), 1, 2).unwrap(), [0, -1]);
        assert_eq!(remapping(new.clone(), lines("knitting"), 0, 2).unwrap(), [-1, 0]);
        assert!(remapping(new.clone(), old, 3, 2).unwrap_err().message.contains("last new vocab entry's line"));
        assert!(remapping(new, lines("a b a"), 0, 1).unwrap_err().message.contains("different value for same key"));
    }

    #[test]
    fn a_matrix_has_its_rows_and_columns_where_they_are_wanted() {
        let old = Tensor::from_vec([2, 3], vec![0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let places =
            |at: &[i64]| Places::of(&Tensor::vector(at.to_vec()), at.len() as i64, "row_remapping", "num_rows");
        let check = |rows: &[i64], columns: Result<&[i64], i64>, initial: &[f32]| {
            let columns = columns.map(|columns| places(columns).unwrap());
            let initial = Tensor::vector(initial.to_vec());
            remapped(&old, b"w", &places(rows)?, columns, &initial).map(|new| new.slice::<f32>().unwrap().to_vec())
        };
        assert_eq!(check(&[1, -1, 0], Ok(&[2, -1]), &[9.0, 8.0, 7.0, 6.0]).unwrap(), [5.0, 9.0, 8.0, 7.0, 2.0, 6.0]);
        assert_eq!(check(&[1], Err(3), &[]).unwrap(), [3.0, 4.0, 5.0]);
        for (rows, columns, initial, why) in [
            (&[0i64][..], Err(2), &[][..], "instead of being equal to num_cols=2"),
            (&[2], Err(3), &[], "row 2 is not one of tensor w"),
            (&[0], Ok(&[3][..]), &[], "column 3 is not one"),
            (&[0, 0], Err(3), &[], "mapped to both new ID 0 and 1"),
            (&[-1], Err(3), &[1.0], "but more are missing"),
            (&[0], Err(3), &[1.0], "only 0 elements were used"),
        ] {
            let message = check(rows, columns, initial).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
    }
}
