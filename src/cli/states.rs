//! The states of a training that a node makes by itself, brought to a folder of this machine.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use meshtf::node::Node;
use meshtf::protocol::SessionId;
use meshtf::protocol::training::{StateFile, TrainingStatus};
use meshtf::trainer::stored::{self, state, states};
use meshtf_checkpoint::{Whole, write_whole};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Code;

use super::Trouble;
use super::detached::{patiently, short_id};

/// The file with the name of the run whose states a folder has.
const OF_RUN: &str = ".meshtf-run";
/// The attempts to fetch a state that is replaced meanwhile.
const ATTEMPTS: usize = 3;
/// The number of states that are kept here, the last ones.
const KEPT: usize = 3;

/// A folder for the states of a run.
pub(super) struct Brought {
    folder: PathBuf,
    run: SessionId,
    /// The steps of the states that were brought.
    steps: Vec<u64>,
}

/// Refuses a folder for states that has those of another training.
///
/// # Errors
/// Bad input.
pub(super) fn check_folder(folder: &Path, run: Option<SessionId>) -> Result<(), Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("--checkpoint {}: {why}", folder.display()));
    if folder.is_file() {
        return Err(at(&"it is a file; expected a folder"));
    }
    let has_states = states(folder).is_ok_and(|all| !all.is_empty()) || folder.join(stored::BEST_FILE).exists();
    let is_own = run.is_some_and(|run| is_of(folder, run));
    match has_states && !is_own {
        true => Err(of_another(folder)),
        false => Ok(()),
    }
}

/// Whether a folder is noted as that of the states of a run.
fn is_of(folder: &Path, run: SessionId) -> bool {
    fs::read_to_string(folder.join(OF_RUN)).is_ok_and(|of| of.trim() == run.to_string())
}

fn of_another(folder: &Path) -> Trouble {
    let why = "it has the saved states of another training; name another folder";
    Trouble::input(format!("--checkpoint {}: {why}", folder.display()))
}

/// A folder that is dedicated to a run, and the content of the note before that.
pub(super) struct Dedicated {
    file: PathBuf,
    before: Option<Vec<u8>>,
}

/// Notes that the states of a run belong into a folder.
pub(super) fn dedicate(folder: &Path, run: SessionId) -> Result<Dedicated, Trouble> {
    let file = folder.join(OF_RUN);
    let before = fs::read(&file).ok();
    let noted = fs::create_dir_all(folder).and_then(|()| write_whole(&file, run.to_string().as_bytes()));
    noted.map_err(|error| Trouble::input(format!("--checkpoint {}: {error}", folder.display())))?;
    Ok(Dedicated { file, before })
}

impl Dedicated {
    /// For a run that has not begun: the folder is that of the run before, which has states there perhaps.
    pub fn undo(self) {
        // A name that stays is that of no run.
        let _stays = match self.before {
            Some(before) => write_whole(&self.file, &before),
            None => fs::remove_file(self.file),
        };
    }
}

/// Makes a folder that of a training here: states of a run are not brought there any more. Returns the name of the run that had
/// it, if one did.
///
/// # Errors
/// Bad input: the name cannot be removed.
pub(super) fn take_over(folder: &Path) -> Result<Option<String>, Trouble> {
    let file = folder.join(OF_RUN);
    let Ok(of) = fs::read_to_string(&file) else { return Ok(None) };
    match fs::remove_file(&file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Trouble::input(format!("--checkpoint {}: {error}", file.display())))
        }
        _ => {
            let run = u64::from_str_radix(of.trim(), 16).map(SessionId);
            Ok(run.ok().map(short_id))
        }
    }
}

impl Brought {
    /// To a folder, which is made if it does not exist.
    pub fn to(folder: &Path, run: SessionId) -> Result<Brought, Trouble> {
        check_folder(folder, Some(run))?;
        let _noted = dedicate(folder, run)?;
        Ok(Brought { folder: folder.to_owned(), run, steps: Vec::new() })
    }

    /// Brings the last state, unless it is here already; at the end of the run, the best weights, too. The last step that is
    /// here then.
    ///
    /// # Errors
    /// Bad input: a file cannot be written, or the folder is that of another training by now. Those of the node.
    pub async fn bring(&mut self, node: &Node, task: &Task, has: TrainingStatus) -> Result<Option<u64>, Trouble> {
        if let Some(step) = has.saved.filter(|step| !self.steps.contains(step)) {
            self.check_owner()?;
            let file = state(&self.folder, step);
            if file.exists() || self.fetch(node, task, StateFile::Step(step), &file).await? {
                self.steps.push(step);
            }
            self.check_owner()?;
            let here = states(&self.folder).unwrap_or_default();
            // A file that cannot be removed is merely superfluous.
            here.iter().rev().skip(KEPT).for_each(|old| _ = fs::remove_file(old));
        }
        if has.has_best {
            self.check_owner()?;
        }
        if has.has_best && !self.fetch(node, task, StateFile::Best, &self.folder.join(stored::BEST_FILE)).await? {
            let id = short_id(self.run);
            return Err(Trouble::input(format!("the best weights of run {id} are not kept any more")));
        }
        Ok(has.saved.filter(|step| self.steps.contains(step)))
    }

    /// A training here may have taken the folder over: then its files stay as they are.
    fn check_owner(&self) -> Result<(), Trouble> {
        match is_of(&self.folder, self.run) {
            true => Ok(()),
            false => Err(of_another(&self.folder)),
        }
    }

    /// Fetches a state; `false` if the node does not have it any more, but later ones.
    async fn fetch(&self, node: &Node, task: &Task, of: StateFile, path: &Path) -> Result<bool, Trouble> {
        let at = |error: std::io::Error| Trouble::input(format!("cannot write {}: {error}", path.display()));
        let mut file = Whole::begin(path).map_err(at)?;
        let (mut offset, mut first, mut attempts) = (0, None, 0);
        loop {
            let part = patiently(async || node.state_part(task, (self.run, of), offset).await).await;
            let (bytes, stamp, part) = match part {
                Ok(part) => part,
                Err(failure) if failure.code == Code::NotFound => return Ok(false),
                Err(failure) => return Err(failure.into()),
            };
            if *first.get_or_insert((bytes, stamp)) != (bytes, stamp) {
                // It was replaced meanwhile.
                (file, offset, first) = (Whole::begin(path).map_err(at)?, 0, None);
                attempts += 1;
                if attempts < ATTEMPTS {
                    continue;
                }
                return Ok(false);
            }
            let part = part.slice::<u8>()?;
            file.write_all(part).map_err(at)?;
            offset += part.len() as u64;
            if offset >= bytes {
                break;
            }
            if part.is_empty() {
                let id = short_id(self.run);
                return Err(Trouble::mesh(format!("{} ended the state of run {id} too soon", task.short())));
            }
        }
        self.check_owner()?;
        file.sync().and_then(|()| file.end()).map_err(at)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_states_of_one_run() {
        let folder = temp_dir::TempDir::new().unwrap();
        let own = SessionId(5);
        check_folder(folder.path(), None).unwrap();
        check_folder(&folder.child("none"), Some(own)).unwrap();
        let noted = dedicate(folder.path(), own).unwrap();
        check_folder(folder.path(), Some(SessionId(6))).unwrap();
        // Runs that do not begin leave it as it was.
        dedicate(folder.path(), SessionId(6)).unwrap().undo();
        assert_eq!(fs::read_to_string(folder.child(OF_RUN)).unwrap(), own.to_string());
        noted.undo();
        assert!(!folder.child(OF_RUN).exists());
        let _noted = dedicate(folder.path(), own).unwrap();
        fs::write(state(folder.path(), 3), "").unwrap();
        check_folder(folder.path(), Some(own)).unwrap();
        for other in [None, Some(SessionId(6))] {
            let why = check_folder(folder.path(), other).unwrap_err().to_string();
            assert!(why.contains("the saved states of another training"), "{why}");
        }
        // A training here that continues from those states: what the run saves later is not of it.
        assert_eq!(take_over(folder.path()).unwrap(), Some(short_id(own)));
        assert!(check_folder(folder.path(), Some(own)).is_err());
        assert_eq!(take_over(folder.path()).unwrap(), None);
        assert_eq!(take_over(&folder.child("none")).unwrap(), None);
        fs::write(folder.child("file"), "").unwrap();
        assert!(check_folder(&folder.child("file"), None).unwrap_err().to_string().contains("expected a folder"));
    }
}
