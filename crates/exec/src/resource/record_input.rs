//! Records of TFRecord files in random order, epoch after epoch, for RecordInput: a buffer is kept full from the files, and each
//! record taken is one of the buffer's at random. Within an epoch each record comes once.

use std::sync::Mutex;

use meshtf_kernels::Dice;
use meshtf_kernels::files::{Folder, Format, Records};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use super::Resource;
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;

/// As the node states them.
#[derive(Clone)]
pub(crate) struct RecordFiles {
    pub folder: Folder,
    pub pattern: Vec<u8>,
    pub format: Format,
    /// The part of the shuffled files that goes to the end of the list.
    pub shift: f64,
    /// Records that the buffer holds.
    pub buffered: usize,
}

pub(crate) struct RecordInput {
    of: RecordFiles,
    /// Finds the files of the pattern.
    list: fn(&RecordFiles) -> Result<Vec<Vec<u8>>>,
    state: Mutex<State>,
}

struct State {
    dice: Dice,
    /// The files of the epoch that are left, the next one last.
    files: Vec<Vec<u8>>,
    open: Option<Records>,
    buffer: Vec<Vec<u8>>,
    bytes: usize,
}

impl Resource for RecordInput {
    fn wanted() -> &'static str {
        "record input"
    }

    fn kind(&self) -> &'static str {
        "record input"
    }

    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes)
    }

    fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        Look {
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.buffer.len()),
            ..Look::default()
        }
    }

    fn unsaved(&self) -> &'static str {
        "its files are read anew"
    }
}

impl RecordInput {
    /// Nothing is read yet. `list` finds the files of the pattern, in every epoch.
    pub fn new(of: RecordFiles, seed: u64, list: fn(&RecordFiles) -> Result<Vec<Vec<u8>>>) -> RecordInput {
        let state = State { dice: Dice::seeded(seed, 0), files: Vec::new(), open: None, buffer: Vec::new(), bytes: 0 };
        RecordInput { of, list, state: Mutex::new(state) }
    }

    /// The next records.
    ///
    /// # Errors
    /// NotFound if no file matches the pattern, OutOfRange if no file has a record, the errors of reading. Records that were
    /// taken before the error are lost, as with TensorFlow.
    pub fn take(&self, count: usize) -> Result<Vec<Vec<u8>>> {
        let state = &mut *lock(&self.state);
        (0..count).map(|_| self.next(state)).collect()
    }

    fn next(&self, state: &mut State) -> Result<Vec<u8>> {
        self.fill(state)?;
        if state.buffer.is_empty() {
            self.begin(state)?;
            self.fill(state)?;
        }
        let record = state.buffer.pop().ok_or_else(|| {
            let pattern = String::from_utf8_lossy(&self.of.pattern);
            Failure::new(Code::OutOfRange, format!("no file at {pattern} has a record"))
        })?;
        state.bytes -= record.capacity();
        Ok(record)
    }

    /// Begins an epoch.
    fn begin(&self, state: &mut State) -> Result<()> {
        let mut files = (self.list)(&self.of)?;
        if files.is_empty() {
            let pattern = String::from_utf8_lossy(&self.of.pattern);
            return Err(Failure::new(Code::NotFound, format!("Found no files at {pattern}")));
        }
        for last in (1..files.len()).rev() {
            files.swap(last, state.dice.throw(last + 1));
        }
        if (0.0..1.0).contains(&self.of.shift) {
            let shift = self.of.shift * files.len() as f64;
            files.rotate_left(shift as usize);
        }
        files.reverse();
        state.files = files;
        Ok(())
    }

    /// Reads until the buffer is full, or the epoch's files are.
    fn fill(&self, state: &mut State) -> Result<()> {
        while state.buffer.len() < self.of.buffered && state.bytes < MAX_QUEUE_BYTES {
            let Some(open) = &mut state.open else {
                let Some(file) = state.files.pop() else { return Ok(()) };
                state.open = Some(Records::open(&self.of.format, &self.of.folder, file)?);
                continue;
            };
            let read = open.next();
            let Some((_, record)) = read.inspect_err(|_| state.open = None)? else {
                state.open = None;
                continue;
            };
            memory::grow()?;
            state.bytes += record.capacity();
            state.buffer.push(record);
            let (last, place) = (state.buffer.len() - 1, state.dice.throw(state.buffer.len()));
            state.buffer.swap(last, place);
        }
        Ok(())
    }
}
