//! DecodeCSV: the fields of comma-separated records, one output per field. Without csv-core, which accepts any input:
//! TensorFlow rejects quotes within a field, and text after a quoted field.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Tensor};

use super::super::call::check_text_bytes;
use super::super::{HostKernel, Inputs, KernelNode, Outputs};

/// The format of records.
struct Format {
    delimiter: u8,
    quotes: bool,
    /// The representation of a field without a value.
    missing: Vec<u8>,
    /// The requested fields, in order; all if empty.
    columns: Vec<usize>,
}

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let &[delimiter] = node.attrs.bytes("field_delim")? else {
        return Err(Failure::invalid("field_delim should be only 1 char"));
    };
    let types = node.attrs.dtypes("OUT_TYPE")?.to_vec();
    let columns: Vec<usize> = node
        .attrs
        .ints("select_cols")?
        .iter()
        .map(|&column| {
            let negative = || Failure::invalid("select_cols should be non-negative indices");
            usize::try_from(column).map_err(|_| negative())
        })
        .collect::<Result<_>>()?;
    if !columns.is_empty() && columns.len() != types.len() {
        return Err(Failure::invalid("select_cols should match output size"));
    }
    if !columns.is_sorted_by(|a, b| a < b) {
        return Err(Failure::invalid("select_cols should be strictly increasing indices"));
    }
    let format = Format {
        delimiter,
        quotes: node.attrs.bool("use_quote_delim")?,
        missing: node.attrs.bytes("na_value")?.to_vec(),
        columns,
    };
    Ok(Box::new(move |inputs| decode(&inputs, &types, &format)))
}

/// Checks that each default can replace a field without a value.
///
/// # Errors
/// InvalidArgument.
pub fn check_defaults(defaults: &[Tensor]) -> Result<()> {
    for (i, default) in defaults.iter().enumerate() {
        if default.rank() > 1 {
            return Err(Failure::invalid("Each record default should be at most rank 1"));
        }
        if default.len() > 1 {
            let why = format!("There should only be 1 default per field but field {i} has {}", default.len());
            return Err(Failure::invalid(why));
        }
    }
    Ok(())
}

fn decode(inputs: &Inputs, types: &[DType], format: &Format) -> Result<Outputs> {
    let [records, defaults @ ..] = inputs.as_slice() else { return Err(Failure::invalid("there are no records")) };
    check_defaults(defaults)?;
    let texts = records.slice::<Vec<u8>>()?;
    for &dtype in types {
        records.shape().checked_elements(dtype)?;
    }
    check_text_bytes(texts.iter().map(Vec::len).sum())?;
    let mut outputs: Vec<Data> = types.iter().map(|&dtype| Data::zeros(dtype, 0)).collect();
    let mut pace = Pace::new();
    for (i, record) in texts.iter().enumerate() {
        pace.go(200 + 4 * record.len());
        let fields = format.fields(record)?;
        if fields.len() != types.len() {
            let why = format!("Expect {} fields but have {} in record {i}", types.len(), fields.len());
            return Err(Failure::invalid(why));
        }
        for (f, (field, (output, default))) in fields.into_iter().zip(outputs.iter_mut().zip(defaults)).enumerate() {
            if field.is_empty() || field == format.missing {
                if default.is_empty() {
                    return Err(Failure::invalid(format!("Field {f} is required but missing in record {i}!")));
                }
                push_default(output, default)?;
            } else if !push_field(output, &field) {
                let (dtype, text) = (output.dtype(), String::from_utf8_lossy(&field));
                let name = dtype.proto_name().to_lowercase();
                return Err(Failure::invalid(format!("Field {f} in record {i} is not a valid {name}: {text}")));
            }
        }
    }
    outputs.into_iter().map(|data| Tensor::new(records.shape().clone(), data)).collect()
}

/// Appends the field as an element of `output`'s dtype. False if it cannot be parsed as that dtype.
pub fn push_field(output: &mut Data, field: &[u8]) -> bool {
    let text = || std::str::from_utf8(field).map_or("", str::trim);
    match output {
        Data::String(texts) => {
            texts.push(field.to_vec());
            true
        }
        Data::I32(all) => text().parse().map(|one| all.push(one)).is_ok(),
        Data::I64(all) => text().parse().map(|one| all.push(one)).is_ok(),
        Data::F32(all) => text().parse().map(|one| all.push(one)).is_ok(),
        Data::F64(all) => text().parse().map(|one| all.push(one)).is_ok(),
        _ => false,
    }
}

/// Appends the one element of a field's default.
///
/// # Errors
/// InvalidArgument if the default has another dtype.
pub fn push_default(output: &mut Data, default: &Tensor) -> Result<()> {
    match (output, default.data()) {
        (Data::String(all), Data::String(one)) => all.push(one[0].clone()),
        (Data::I32(all), Data::I32(one)) => all.push(one[0]),
        (Data::I64(all), Data::I64(one)) => all.push(one[0]),
        (Data::F32(all), Data::F32(one)) => all.push(one[0]),
        (Data::F64(all), Data::F64(one)) => all.push(one[0]),
        (output, _) => {
            let why = format!("a field of {} has a default of {}", output.dtype(), default.dtype());
            return Err(Failure::invalid(why));
        }
    }
    Ok(())
}

impl Format {
    /// The requested fields of a record.
    fn fields(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut fields = Vec::new();
        let (mut at, mut number) = (0, 0);
        let is_wanted =
            |number: usize, found: usize| self.columns.is_empty() || self.columns.get(found) == Some(&number);
        while at < record.len() {
            if matches!(record[at], b'\n' | b'\r') {
                at += 1;
                continue;
            }
            let field = if self.quotes && record[at] == b'"' {
                at += 1;
                self.quoted(record, &mut at)?
            } else {
                self.bare(record, &mut at)?
            };
            if is_wanted(number, fields.len()) {
                fields.push(field);
                if fields.len() == self.columns.len() {
                    return Ok(fields);
                }
            }
            number += 1;
        }
        if record.last() == Some(&self.delimiter) && is_wanted(number, fields.len()) {
            fields.push(Vec::new());
        }
        Ok(fields)
    }

    /// The unquoted field at `at`, which is advanced to the next field.
    fn bare(&self, record: &[u8], at: &mut usize) -> Result<Vec<u8>> {
        let rest = &record[*at..];
        let field = &rest[..rest.iter().position(|&byte| byte == self.delimiter).unwrap_or(rest.len())];
        if field.iter().any(|&byte| matches!(byte, b'\n' | b'\r') || byte == b'"' && self.quotes) {
            return Err(Failure::invalid("Unquoted fields cannot have quotes/CRLFs inside"));
        }
        *at += field.len() + 1;
        Ok(field.to_vec())
    }

    /// As [`bare`](Format::bare), for a field whose opening quote is just before `at`.
    fn quoted(&self, record: &[u8], at: &mut usize) -> Result<Vec<u8>> {
        let mut field = Vec::new();
        while *at + 1 < record.len() && (record[*at] != b'"' || record[*at + 1] != self.delimiter) {
            if record[*at] != b'"' {
                field.push(record[*at]);
                *at += 1;
            } else if record[*at + 1] == b'"' {
                field.push(b'"');
                *at += 2;
            } else {
                return Err(Failure::invalid("Quote inside a string has to be escaped by another quote"));
            }
        }
        let ends = record.get(*at) == Some(&b'"') && record.get(*at + 1).is_none_or(|&next| next == self.delimiter);
        if !ends {
            return Err(Failure::invalid("Quoted field has to end with quote followed by delim or end"));
        }
        *at += 2;
        Ok(field)
    }
}
