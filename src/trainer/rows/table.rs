//! The lines of a table. The offset of each is held in memory, 8 bytes per line.

use std::io::BufRead;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Data, Tensor};
use meshtf_train::data::{Chosen, CsvRecords, EMPTY, names_of};
use meshtf_train::file::DataSource;

use super::super::source::columns;
use super::lines::Starts;
use super::{DataFile, Pieces};

#[derive(Debug)]
pub(super) struct Table {
    file: DataFile,
    starts: Starts,
    chosen: Chosen,
}

impl Table {
    /// Finds the lines of a file, each of which has numbers in the columns that are taken.
    ///
    /// # Errors
    /// The fault, with the line.
    pub fn index(file: &DataFile, source: &DataSource) -> Result<Table> {
        let (mut chosen, mut starts, mut numbers) = (None, Starts::default(), Vec::new());
        let mut each = |line: usize, begin: u64, record: &[&str]| -> Result<()> {
            match &chosen {
                None => {
                    let names = names_of(record)?;
                    let wanted = columns(&names, source).map_err(Failure::invalid)?;
                    chosen = Some(Chosen::of(names, &wanted)?);
                    Ok(())
                }
                Some(chosen) => {
                    numbers.clear();
                    chosen.numbers(line, record, &mut numbers)?;
                    starts.push(begin)
                }
            }
        };
        let (mut from, mut records) = (file.reader(), CsvRecords::default());
        loop {
            let block = from.fill_buf().map_err(|error| Failure::invalid(error.to_string()))?;
            records.add(block, &mut each)?;
            let read = block.len();
            if read == 0 {
                break;
            }
            from.consume(read);
        }
        let chosen = chosen.ok_or_else(|| Failure::invalid(EMPTY))?;
        starts.push(records.end())?;
        Ok(Table { file: file.clone(), starts, chosen })
    }
}

impl Pieces for Table {
    fn count(&self) -> usize {
        self.starts.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let width = self.chosen.count();
        memory::admit(places.len().saturating_mul(width).saturating_mul(size_of::<f64>()))?;
        let (mut numbers, mut records) = (Vec::with_capacity(places.len() * width), CsvRecords::default());
        for &place in places {
            let bytes = self.starts.read(&self.file, place)?;
            records.all(&bytes, |line, _, record| self.chosen.numbers(line, record, &mut numbers))?;
        }
        Tensor::new([places.len(), width], Data::F64(numbers))
    }
}
