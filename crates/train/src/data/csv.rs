//! A table that is held in memory as text.

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{MAX_TEXT_BYTES, Tensor};

use super::{Also, BadLine, Chosen, Layout, Prepared, TableOptions, Wanted};

/// The text of a table, from which columns are taken.
#[derive(Clone, Debug)]
pub struct Csv {
    layout: Layout,
    text: Vec<u8>,
}

impl Csv {
    /// The text of a file, whose fields may be quoted; a quote within such a field is doubled. Blank lines are skipped.
    pub fn new(layout: Layout, text: Vec<u8>) -> Csv {
        Csv { layout, text }
    }

    /// Its text.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Reads it for some placeholders, and measures it. `trains` says which of so many examples are trained with.
    ///
    /// # Errors
    /// Those of [`Prepared::scan`] and of [`Prepared::measure`].
    pub fn prepare(&self, wanted: &[Wanted<'_>], trains: impl FnOnce(usize) -> Vec<bool>) -> Result<Prepared> {
        let open = || Ok(&self.text[..]);
        let mut prepared = Prepared::scan(&self.layout, wanted, Also::default(), open)?;
        let trains = trains(prepared.count);
        prepared.measure(&self.layout, wanted, open, &trains)?;
        Ok(prepared)
    }

    /// The columns of one placeholder of a prepared table: numbers, float64, or strings, `[examples, columns]`.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for them.
    pub fn tensor(&self, prepared: &Prepared, chosen: &Chosen, is_text: bool) -> Result<Tensor> {
        let width = if is_text { chosen.taken().count() } else { chosen.width() };
        let elements = prepared.count.saturating_mul(width);
        let bytes = elements.saturating_mul(if is_text { size_of::<Vec<u8>>() } else { size_of::<f64>() });
        if bytes > MAX_TEXT_BYTES {
            let why = format!("it has {elements} fields, which take more than {MAX_TEXT_BYTES} bytes, the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::admit(bytes.saturating_add(if is_text { self.text.len() } else { 0 }))?;
        let (mut numbers, mut texts, mut line) = (Vec::new(), Vec::new(), 0);
        self.layout.scan(&self.text[..], &mut |record| {
            let is_kept = prepared.kept.as_ref().is_none_or(|kept| kept[line]);
            line += 1;
            let read = match (is_kept, is_text) {
                (false, _) => Ok(()),
                (true, true) => chosen.texts(record.line, record.fields, &mut texts),
                (true, false) => chosen.numbers(record.line, record.fields, &mut numbers),
            };
            read.map_err(BadLine::failure)
        })?;
        match is_text {
            true => Tensor::vector(texts).reshaped([prepared.count, width]),
            false => Ok(Tensor::from_vec([prepared.count, width], numbers)),
        }
    }

    /// Columns of a file as numbers, `[lines, columns]`, float64; all if `columns` is empty.
    ///
    /// # Errors
    /// InvalidArgument for a column that does not exist, and for a field that is not a number, with its line.
    pub fn numbers(layout: Layout, text: Vec<u8>, columns: &[String]) -> Result<Tensor> {
        let table = Csv::new(layout, text);
        let options = TableOptions::default();
        let wanted = Wanted { columns, except: &[], options: &options, is_text: false, fit: None };
        let prepared = table.prepare(&[wanted], |_| Vec::new())?;
        table.tensor(&prepared, &prepared.chosen[0], false)
    }
}
