//! The lines of a table. The offset of each is held in memory, 8 bytes per line for all placeholders.

use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;
use meshtf_tensor::{Data, Tensor};
use meshtf_train::data::{BadLine, Chosen, Layout, Offsets, Prepared};

use super::lines::pieces;
use super::{DataFile, Pieces};

/// Maximum number of bytes of several lines that are read at once.
const MAX_AT_ONCE: u64 = 1 << 20;

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

impl Table {
    /// The line of an example.
    fn line(&self, place: usize) -> usize {
        self.offsets.kept.as_ref().map_or(place, |kept| kept[place])
    }

    /// The number of the first examples whose lines follow each other in the file, and are read at once.
    fn run(&self, places: &[usize]) -> usize {
        let Some(first) = places.first().map(|&place| self.line(place)) else { return 0 };
        let is_next = |(i, place): &(usize, &usize)| {
            let bytes = |last: usize| self.offsets.starts[last + 1] - self.offsets.starts[first];
            let line = self.line(**place);
            line == first + i && (*i == 0 || bytes(line) <= MAX_AT_ONCE)
        };
        (0..).zip(places).take_while(is_next).count()
    }
}

impl Pieces for Table {
    fn count(&self) -> usize {
        self.offsets.kept.as_ref().map_or(self.offsets.starts.len().saturating_sub(1), Vec::len)
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let width = if self.is_text { self.chosen.taken().count() } else { self.chosen.width() };
        memory::admit(places.len().saturating_mul(width).saturating_mul(size_of::<f64>()))?;
        let (mut numbers, mut texts, mut rest) = (Vec::new(), Vec::new(), places);
        while !rest.is_empty() {
            let (some, after) = rest.split_at(self.run(rest));
            rest = after;
            let (first, starts) = (self.line(some[0]), &self.offsets.starts);
            let bytes = pieces(&self.file, starts, first..first + some.len())?;
            self.layout.records(&bytes, self.chosen.names(), some.len(), &mut |i, fields| {
                // The numbers of lines are no longer known.
                let read = match self.is_text {
                    true => self.chosen.texts(some[i] + 1, fields, &mut texts),
                    false => self.chosen.numbers(some[i] + 1, fields, &mut numbers),
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
