//! The lines of a table. The offset of each is held in memory, 8 bytes per line.

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;
use meshtf_tensor::{Data, Tensor};
use meshtf_train::data::{BadLine, Chosen, Layout, Prepared};

use super::lines::Starts;
use super::{DataFile, Pieces};

#[derive(Debug)]
pub(super) struct Table {
    file: DataFile,
    layout: Layout,
    chosen: Chosen,
    is_text: bool,
    /// Of all lines, and the places of the examples among them; `None`: all.
    starts: Starts,
    kept: Option<Vec<usize>>,
}

impl Table {
    /// Finds the lines of a table that was read for its placeholders.
    ///
    /// # Errors
    /// Those of reading.
    pub fn index(
        file: &DataFile,
        layout: &Layout,
        chosen: &Chosen,
        prepared: &Prepared,
        is_text: bool,
    ) -> Result<Table> {
        let mut starts = Starts::default();
        let scanned = layout.scan(file.reader(), &mut |record| starts.push(record.begin))?;
        starts.push(scanned.end)?;
        let kept = prepared.kept.as_ref().map(|kept| {
            let places = kept.iter().enumerate().filter(|(_, is_kept)| **is_kept);
            places.map(|(place, _)| place).collect::<Vec<_>>()
        });
        Ok(Table { file: file.clone(), layout: layout.clone(), chosen: chosen.clone(), is_text, starts, kept })
    }
}

impl Pieces for Table {
    fn count(&self) -> usize {
        self.kept.as_ref().map_or(self.starts.count(), Vec::len)
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let width = if self.is_text { self.chosen.taken().count() } else { self.chosen.width() };
        memory::admit(places.len().saturating_mul(width).saturating_mul(size_of::<f64>()))?;
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        for &place in places {
            let line = self.kept.as_ref().map_or(place, |kept| kept[place]);
            let bytes = self.starts.read(&self.file, line)?;
            // The numbers of lines are no longer known.
            self.layout.first(&bytes, self.chosen.names(), &mut |fields| {
                let read = match self.is_text {
                    true => self.chosen.texts(place + 1, fields, &mut texts),
                    false => self.chosen.numbers(place + 1, fields, &mut numbers),
                };
                read.map_err(BadLine::failure)
            })?;
        }
        match self.is_text {
            true => Tensor::vector(texts).reshaped([places.len(), width]),
            false => Tensor::new([places.len(), width], Data::F64(numbers)),
        }
    }
}
