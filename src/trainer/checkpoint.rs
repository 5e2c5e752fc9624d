//! A training's state in a folder: one file of safetensors for each saved step, written whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_tensor::Tensor;
use meshtf_tensor::safetensors::Contents;
use meshtf_train::Variable;
use meshtf_train::file::Sections;

use super::options::differences;
use super::rounds::described;
use super::stored::{self, BEST_FILE, FITS, IMPORTED, MODEL, STEP, Which, states};
use super::{Error, Fits, Observer};

/// The keys of a file's metadata.
const BATCH: &str = "meshtf.batch";
const SHUFFLE: &str = "meshtf.shuffle";
const EXAMPLES: &str = "meshtf.examples";
const OPTIONS: &str = "meshtf.options";
/// That of mode local, whose state is one of its workers, and of their exchange.
const LOCAL: &str = "meshtf.local";
pub(super) const BEST: &str = "meshtf.best";
pub(super) const BEST_OF: &str = "meshtf.best_of";

/// A folder of states.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _made: Arc<Made>,
    keep: usize,
    /// Identifies the order of the data.
    order: BTreeMap<String, String>,
    /// The metadata of the model.
    kept: BTreeMap<String, String>,
}

/// The folders that were made for the states, the innermost first: a training that saves nothing, since it fails, leaves none of
/// them.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes a folder, and those around it that do not exist.
    fn folder(path: &Path) -> std::io::Result<Made> {
        let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let made = Made(missing.map(Path::to_owned).collect());
        fs::create_dir_all(path)?;
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The system removes no folder that has something in it.
        let _kept = self.0.iter().try_for_each(fs::remove_dir);
    }
}

/// The metadata that are kept with the weights of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<'a> {
    /// The names of the model's variables.
    pub model: &'a [String],
    /// The measurements of tables and texts.
    pub fits: &'a Fits,
    /// The options of the sources of examples, in JSON.
    pub options: &'a str,
}

/// A state that was saved.
#[derive(Debug)]
pub(super) struct Saved {
    pub file: PathBuf,
    pub step: u64,
    /// The values of the variables, in their order.
    pub values: Vec<Tensor>,
}

impl Folder {
    /// A folder of the last `keep` states, for a training with `examples` examples.
    pub fn new(
        path: &Path,
        keep: usize,
        sections: &Sections,
        kept: Kept<'_>,
        examples: usize,
    ) -> Result<Folder, Error> {
        if path.is_file() {
            return Err(Error::input(format!("{}: it is a file; expected a folder", path.display())));
        }
        let made = Made::folder(path).map_err(|error| Error::input(format!("{}: {error}", path.display())))?;
        let model = serde_json::json!(kept.model).to_string();
        let mut metadata = BTreeMap::from([(MODEL.to_owned(), model), (OPTIONS.to_owned(), kept.options.to_owned())]);
        if !kept.fits.is_empty() {
            metadata.insert(FITS.to_owned(), serde_json::json!(kept.fits).to_string());
        }
        metadata.extend(described(&sections.train).map(|local| (LOCAL.to_owned(), local)));
        let shuffle = sections.data.shuffle.map_or_else(|| "no".to_owned(), |seed| seed.to_string());
        let batch = sections.train.drawn(sections.data.batch)?;
        let order = [(BATCH, batch.to_string()), (SHUFFLE, shuffle), (EXAMPLES, examples.to_string())];
        let order = order.map(|(key, value)| (key.to_owned(), value)).into();
        Ok(Folder { path: path.to_owned(), _made: Arc::new(made), keep: keep.max(1), order, kept: metadata })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Saves a state, and then removes the oldest of the others if there are too many; returns the file.
    pub fn save(&self, step: u64, tensors: Vec<(String, Tensor)>) -> Result<PathBuf, Error> {
        let path = stored::state(&self.path, step);
        let metadata = self.metadata(step);
        stored::write(&path, &Contents { tensors, metadata })?;
        let mut others = self.files()?;
        others.retain(|file| *file != path);
        let extra = (others.len() + 1).saturating_sub(self.keep);
        for old in others.iter().take(extra) {
            // A file that cannot be removed is merely superfluous.
            let _ = fs::remove_file(old);
        }
        Ok(path)
    }

    /// Saves the state with the best weights so far: those with this value of the watched metric, such as `greatest accuracy`.
    pub fn save_best(&self, step: u64, value: f64, of: &str, tensors: Vec<(String, Tensor)>) -> Result<(), Error> {
        let mut metadata = self.metadata(step);
        metadata.insert(BEST.to_owned(), value.to_string());
        metadata.insert(BEST_OF.to_owned(), of.to_owned());
        stored::write(&self.path.join(BEST_FILE), &Contents { tensors, metadata })
    }

    fn metadata(&self, step: u64) -> BTreeMap<String, String> {
        let step = (STEP.to_owned(), step.to_string());
        self.order.iter().chain(&self.kept).map(|(key, value)| (key.clone(), value.clone())).chain([step]).collect()
    }

    /// The best saved value of this metric, and its step. A saved value of another metric is reported to the observer.
    pub fn best(&self, of: &str, observer: &mut dyn Observer) -> Result<Option<(f64, u64)>, Error> {
        let path = self.path.join(BEST_FILE);
        if !path.try_exists().map_err(|error| Error::input(format!("{}: {error}", path.display())))? {
            return Ok(None);
        }
        let (_, Contents { metadata, .. }) = stored::read(&path, Which::Last)?;
        let own = metadata.get(BEST_OF).map_or("something that it does not name", String::as_str);
        if own != of {
            let path = path.display();
            let text = format!(
                "{path} holds the weights with the best {own}; the next evaluation will replace it with those with the best {of}"
            );
            observer.noted(&text)?;
            return Ok(None);
        }
        let value = metadata.get(BEST).and_then(|value| value.parse().ok());
        let step = metadata.get(STEP).and_then(|step| step.parse().ok());
        let wrong = || Error::input(format!("{}: it does not say how good its weights are", path.display()));
        value.zip(step).map(Some).ok_or_else(wrong)
    }

    /// Removes the partial files of interrupted saves.
    pub fn clean(&self) {
        let is_part = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let own = name.strip_suffix(".part").map(|name| name.trim_start_matches('.')).unwrap_or_default();
            stored::is_of_state(own)
        };
        let entries = fs::read_dir(&self.path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        // A file that cannot be removed takes disk space, nothing else.
        entries.filter(is_part).for_each(|part| _ = fs::remove_file(part));
    }

    /// Whether it has a state.
    pub fn has_states(&self) -> Result<bool, Error> {
        Ok(!self.files()?.is_empty())
    }

    /// Refuses a folder with the states of another training or, unless they are to be replaced, its best weights: they would be
    /// mistaken for those of this training.
    pub fn begin_anew(&self, replaces_best: bool) -> Result<(), Error> {
        let path = self.path.display();
        if self.has_states()? {
            return Err(Error::input(format!(
                "{path} has the saved states of a training: continue it with --resume, or name another folder with --checkpoint"
            )));
        }
        match !replaces_best && self.path.join(BEST_FILE).exists() {
            false => Ok(()),
            true => Err(Error::input(format!(
                "{path} has {BEST_FILE}, the best weights of another training: move them, or name another folder with \
                 --checkpoint"
            ))),
        }
    }

    /// The number of steps behind the last state, by the name of its file.
    pub fn newest(&self) -> Result<Option<u64>, Error> {
        Ok(self.files()?.pop().and_then(|file| stored::step_of(&file)))
    }

    /// The files of states, the oldest first.
    fn files(&self) -> Result<Vec<PathBuf>, Error> {
        states(&self.path).map_err(|error| Error::input(format!("{}: {error}", self.path.display())))
    }

    /// The last state; its training must have had these variables, and the same data in the same order.
    ///
    /// # Errors
    /// The modes, if one is mode local, and what of it differs; the variables that differ, if it is of another model; else the
    /// first difference of the data.
    pub fn last(&self, variables: &[Variable]) -> Result<Option<Saved>, Error> {
        let Some(file) = self.files()?.pop() else { return Ok(None) };
        let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", file.display()));
        let (_, Contents { tensors, metadata }) = stored::read(&file, Which::Last)?;
        let [saved, own] = [&metadata, &self.kept].map(|of| of.get(LOCAL));
        if saved != own && !metadata.contains_key(IMPORTED) {
            let name = |local: Option<&String>| local.map_or("another mode", String::as_str).to_owned();
            return Err(at(&format!(
                "it was saved in {}, and this training is of {}: a state of mode local continues with the same mode, workers \
                 and exchange; or take its weights alone (--weights)",
                name(saved),
                name(own)
            )));
        }
        let values = stored::values(&tensors, variables, true)
            .map_err(|differ| Error::input(format!("{} is of another model: {differ}", file.display())))?;
        for (key, wanted) in &self.order {
            let what = key.strip_prefix("meshtf.").unwrap_or(key);
            match metadata.get(key) {
                Some(found) if found == wanted => {}
                Some(found) => {
                    return Err(at(&format!("it was saved with {what} {found}, and this training has {wanted}")));
                }
                None if metadata.contains_key(IMPORTED) => {}
                None => {
                    return Err(at(&format!("it does not record {what}, so another program wrote it")));
                }
            }
        }
        if metadata.get(FITS) != self.kept.get(FITS) && !metadata.contains_key(IMPORTED) {
            let why = "the columns, labels, vocabularies or measured numbers of its data are not those of this training: a file or \
                       its options have changed since";
            return Err(at(&why));
        }
        // States of earlier versions have no options.
        let both = metadata.get(OPTIONS).zip(self.kept.get(OPTIONS));
        if let Some(differ) = both.and_then(|(saved, own)| differences(saved, own)) {
            return Err(at(&format!(
                "the options of its data are not those of this training: {differ}; state those of the saved training to continue \
                 it, or begin anew in another folder (--checkpoint DIR)"
            )));
        }
        let step = metadata.get(STEP).and_then(|step| step.parse().ok());
        let step = step.ok_or_else(|| at(&"it does not say after which step it was saved"))?;
        Ok(Some(Saved { file, step, values }))
    }
}
