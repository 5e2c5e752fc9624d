//! The saved state of a reader: the file under way and the position in it, the counts, and names that no read has used.
//!
//! A loaded reader opens the file at its next read, and skips the records that were read of it. The file has to be there, and
//! unchanged.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_kernels::files::{Folder, Format};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::super::super::waiting::Answer;
use super::super::{Lasting, Over, ResourceKey, Saved, admit_tensors, check_spec};
use super::Reader;

/// The description of a reader in its node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ReaderSpec {
    op: String,
    format: Format,
    is_from_working_folder: bool,
}

/// All but the spare names, which are the tensors.
#[derive(Serialize, Deserialize)]
struct Form {
    spec: ReaderSpec,
    work: Vec<u8>,
    read: u64,
    started: i64,
    finished: i64,
    produced: i64,
}

impl Lasting for Reader {
    const KIND: &'static str = "reader";

    fn empty(key: &ResourceKey, saved: &Saved, data: Option<Arc<DataDir>>) -> Result<Reader> {
        let Form { spec: ReaderSpec { op, format, is_from_working_folder }, .. } = saved.form(Self::KIND)?;
        if let Format::Fixed { header, record, footer, hop, .. } = format
            && (record == 0
                || hop == 0
                || [header, record, footer, hop].iter().any(|&size| i64::try_from(size).is_err()))
        {
            return Err(saved.malformed("no records have such sizes"));
        }
        Ok(Reader::new(key.name.clone(), format, Folder::new(&op, is_from_working_folder, data)))
    }
}

/// Whether a tensor can be the name of a file.
fn is_name(tensor: &Tensor) -> bool {
    (tensor.dtype(), tensor.rank()) == (DType::String, 0)
}

impl Reader {
    fn spec(&self) -> ReaderSpec {
        let is_from_working_folder = self.folder.is_from_working_folder();
        ReaderSpec { op: self.folder.op().to_owned(), format: self.format.clone(), is_from_working_folder }
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let state = self.hold();
        let (work, read) = (state.work.clone(), state.read);
        let (started, finished, produced) = (state.started, state.finished, state.produced);
        // A name that is on its way to a read belongs to the next one, as if the read had been cancelled.
        let arrived = state.arrived.iter().filter_map(|(_, result)| result.as_ref().ok());
        let names =
            arrived.chain(&state.spare).filter_map(|answer| if let [name] = &answer[..] { Some(name) } else { None });
        let spare = names.filter(|name| is_name(name)).cloned().collect();
        let form = Form { spec: self.spec(), work, read, started, finished, produced };
        Saved::new(Self::KIND, state.version, &form, spare)
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { spec, work, read, started, finished, produced } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec(), &spec)?;
        let counts = [started, finished, produced];
        let is_in_file = started.checked_sub(finished).is_some_and(|files| (0..=1).contains(&files));
        if !is_in_file || counts.iter().any(|count| !(0..=i64::MAX / 2).contains(count)) || read > u64::MAX / 2 {
            return Err(saved.malformed("no reader counts so"));
        }
        if !saved.tensors.iter().all(is_name) {
            return Err(saved.malformed("a name is not a string"));
        }
        admit_tensors(saved.tensors.len())?;
        let name = |name: &Tensor| Answer::from_iter([name.clone()]);
        let state = &mut *self.hold();
        state.version.check(Self::KIND, over)?;
        state.spare = saved.tensors.iter().map(name).collect();
        (state.current, state.work, state.read) = (None, work, read);
        (state.started, state.finished, state.produced) = (started, finished, produced);
        state.version.replace(saved.version);
        Ok(())
    }
}
