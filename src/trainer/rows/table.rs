//! The lines of a table. The offset of each is held in memory, 8 bytes per line for all placeholders.

use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;
use meshtf_tensor::{Data, Tensor};
use meshtf_train::data::{BadLine, Chosen, Layout, Offsets, Prepared};

use super::lines::piece;
use super::{DataFile, Pieces};

#[derive(Debug)]
pub(in super::super) struct Table {
    file: DataFile,
    layout: Layout,
    chosen: Chosen,
    is_text: bool,
    offsets: Arc<Offsets>,
}

impl Table {
    /// Of a table that was read for its placeholders, with the offsets of its lines.
    pub fn new(file: &DataFile, layout: &Layout, chosen: &Chosen, prepared: &Prepared, is_text: bool) -> Table {
        let offsets = Arc::clone(&prepared.offsets);
        Table { file: file.clone(), layout: layout.clone(), chosen: chosen.clone(), is_text, offsets }
    }
}

impl Pieces for Table {
    fn count(&self) -> usize {
        self.offsets.kept.as_ref().map_or(self.offsets.starts.len().saturating_sub(1), Vec::len)
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let width = if self.is_text { self.chosen.taken().count() } else { self.chosen.width() };
        memory::admit(places.len().saturating_mul(width).saturating_mul(size_of::<f64>()))?;
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        for &place in places {
            let line = self.offsets.kept.as_ref().map_or(place, |kept| kept[place]);
            let bytes = piece(&self.file, &self.offsets.starts, line)?;
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
