//! Datasets of the records of files of comma-separated values.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use meshtf_kernels::files::{Compression, Folder, failed};
use meshtf_kernels::{push_default, push_field};
use meshtf_loops::turn::{self, Pace};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, MAX_TEXT_BYTES, Shape, Tensor};

use super::{Element, Elements, Parts, Pull, UNKNOWN};
use crate::token::Token;

/// The format of the records of files, and the wanted fields.
pub(crate) struct Csv {
    pub names: Vec<Vec<u8>>,
    pub compression: Compression,
    /// The first line of each file names the columns and is not a record.
    pub has_header: bool,
    pub delimiter: u8,
    pub quotes: bool,
    /// The text of a field without a value.
    pub missing: Vec<u8>,
    pub columns: Columns,
    /// For each wanted field its dtype, and the default for one without a value: one element or none.
    pub fields: Vec<(DType, Tensor)>,
    pub folder: Folder,
}

/// The indices of the wanted fields.
pub(crate) enum Columns {
    All,
    Only(Vec<u64>),
    AllBut(Vec<u64>),
}

/// The records, one file after the other.
pub(crate) fn csv(csv: Csv) -> Parts {
    let csv = Arc::new(csv);
    Parts::new(UNKNOWN, move |_| Ok(Box::new(Reading { csv: Arc::clone(&csv), at: 0, open: None })))
}

struct Reading {
    csv: Arc<Csv>,
    /// The index of the file that is read, or of the next one.
    at: usize,
    open: Option<Text>,
}

/// A file that is open.
struct Text {
    reader: BufReader<Box<dyn Read + Send>>,
    name: Vec<u8>,
    pace: Pace,
}

/// The end of a field.
#[derive(PartialEq)]
enum End {
    Field,
    Record,
}

impl Elements for Reading {
    fn next(&mut self, _: &Pull) -> Result<Option<Element>> {
        while let Some(name) = self.csv.names.get(self.at) {
            turn::look();
            if let Some(text) = &mut self.open {
                // After a failure, the next record follows.
                if let Some(record) = text.record(&self.csv)? {
                    return record.map(Some);
                }
                self.open = None;
                self.at += 1;
                continue;
            }
            let file = self.csv.folder.open(name).inspect_err(|_| self.at += 1)?;
            let reader = self.csv.compression.reader(BufReader::with_capacity(256 << 10, file));
            let text = Text { reader: BufReader::new(reader), name: name.clone(), pace: Pace::new() };
            let text = self.open.insert(text);
            if self.csv.has_header && !matches!(text.header(&self.csv), Ok(Some(()))) {
                return Err(Failure::invalid("Can't read header of file"));
            }
        }
        Ok(None)
    }
}

impl Text {
    /// The next byte, which stays unread.
    fn peek(&mut self) -> Result<Option<u8>> {
        let failing = |error: io::Error| failed(&self.name, &error);
        Ok(self.reader.fill_buf().map_err(failing)?.first().copied())
    }

    /// Skips a record; `None` at the end of the file.
    fn header(&mut self, csv: &Csv) -> Result<Option<()>> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let mut whole = Ok(());
        loop {
            let (field, end) = self.field(csv)?;
            whole = whole.and(field.map(drop));
            if end == End::Record {
                return whole.map(Some);
            }
        }
    }

    /// The next record, or its error; `None` at the end of the file.
    fn record(&mut self, csv: &Csv) -> Result<Option<Result<Element>>> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let (mut element, mut number) = (Element::new(), 0);
        let mut wrong = None;
        loop {
            let (field, end) = self.field(csv)?;
            let is_wanted = match &csv.columns {
                Columns::All => true,
                Columns::Only(these) => these.binary_search(&number).is_ok(),
                Columns::AllBut(these) => these.binary_search(&number).is_err(),
            };
            // The first error is reported, and the rest of the record skipped.
            if wrong.is_none() {
                let made = field.and_then(|field| is_wanted.then(|| csv.value(element.len(), &field)).transpose());
                match made {
                    Ok(value) => element.extend(value.map(Token::from)),
                    Err(failure) => wrong = Some(failure),
                }
            }
            number += 1;
            if end == End::Record {
                break;
            }
        }
        if let Some(failure) = wrong {
            return Ok(Some(Err(failure)));
        }
        let (wanted, got) = (csv.fields.len(), element.len());
        Ok(Some(if wanted == got {
            Ok(element)
        } else {
            Err(Failure::invalid(format!("Expect {wanted} fields but have {got} in record")))
        }))
    }

    /// The next field, or its error.
    fn field(&mut self, csv: &Csv) -> Result<(Result<Vec<u8>>, End)> {
        let mut field = Vec::new();
        let is_quoted = csv.quotes && self.peek()? == Some(b'"');
        if is_quoted {
            self.reader.consume(1);
        }
        let mut wrong = None;
        // Within quotes.
        let mut inside = is_quoted;
        let end = loop {
            let Some(byte) = self.peek()? else {
                if inside {
                    let why = "Reached end of file without closing quoted field in record";
                    wrong.get_or_insert(why);
                }
                break End::Record;
            };
            self.reader.consume(1);
            self.pace.go(3);
            match byte {
                b'"' if inside => inside = false,
                _ if inside => push(&mut field, byte)?,
                byte if byte == csv.delimiter => break End::Field,
                b'\n' => break End::Record,
                b'\r' => {
                    if self.peek()? == Some(b'\n') {
                        self.reader.consume(1);
                    }
                    break End::Record;
                }
                // Two quotes stand for one quote in the field.
                b'"' if is_quoted => {
                    push(&mut field, byte)?;
                    inside = true;
                }
                _ if is_quoted => {
                    wrong.get_or_insert("Quote inside a string has to be escaped by another quote");
                    inside = true;
                }
                b'"' if csv.quotes => {
                    wrong.get_or_insert("Unquoted fields cannot have quotes inside");
                }
                byte => push(&mut field, byte)?,
            }
        };
        Ok((wrong.map_or(Ok(field), |why| Err(Failure::invalid(why))), end))
    }
}

fn push(field: &mut Vec<u8>, byte: u8) -> Result<()> {
    if field.len() == MAX_TEXT_BYTES {
        let why = format!("a field is longer than {MAX_TEXT_BYTES} bytes, which is the limit of a text");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    if field.len() == field.capacity() {
        memory::admit(2 * field.len())?;
    }
    field.push(byte);
    Ok(())
}

impl Csv {
    /// Component `i` of an element, from its field.
    fn value(&self, i: usize, field: &[u8]) -> Result<Tensor> {
        let Some((dtype, default)) = self.fields.get(i) else {
            let count = self.fields.len();
            return Err(Failure::invalid(format!("Expect {count} fields but have more in record")));
        };
        let mut value = Data::zeros(*dtype, 0);
        if field.is_empty() || field == self.missing {
            if default.len() != 1 {
                return Err(Failure::invalid(format!("Field {i} is required but missing in record!")));
            }
            push_default(&mut value, default)?;
        } else if !push_field(&mut value, field) {
            let name = match dtype {
                DType::F32 => "float",
                DType::F64 => "double",
                other => other.name(),
            };
            let text = String::from_utf8_lossy(field);
            return Err(Failure::invalid(format!("Field {i} in record is not a valid {name}: {text}")));
        }
        Tensor::new(Shape::scalar(), value)
    }
}
