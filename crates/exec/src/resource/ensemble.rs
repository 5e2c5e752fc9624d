//! Ensembles of boosted trees, which steps grow and predict with. A handle exists before its ensemble: that is made by an op of
//! its own.

use std::sync::{Arc, Mutex};

use meshtf_checkpoint::DataDir;
use meshtf_kernels::trees::Ensemble;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version};

pub(crate) struct TreeEnsemble {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    version: Version,
}

/// An ensemble. Predictions share it, and continue with theirs while it grows.
#[derive(Clone)]
pub(crate) struct Held {
    pub ensemble: Arc<Ensemble>,
    /// A number that each change raises, for clients.
    pub stamp: i64,
}

impl State {
    fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.ensemble.bytes())
    }
}

impl Resource for TreeEnsemble {
    fn wanted() -> &'static str {
        "ensemble of trees"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes())
    }

    fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        Look {
            dtypes: Vec::new(),
            shape: PartialShape::UNKNOWN,
            bytes: state.as_ref().map(|state| state.bytes()),
            length: state.as_ref().map(|state| state.held.as_ref().map_or(0, |held| held.ensemble.len())),
            version: None,
        }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.state).map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        let (held, version) = {
            let state = lock(&self.state);
            (state.held.clone(), state.version)
        };
        let form = Form { stamp: held.as_ref().map(|held| held.stamp) };
        let written = held.map(|held| held.ensemble.written()).transpose()?;
        Saved::new(Self::KIND, version, &form, written.map(Tensor::scalar).into_iter().collect())
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { stamp } = saved.form(Self::KIND)?;
        let held = match (stamp, &saved.tensors[..]) {
            (None, []) => None,
            (Some(stamp), [written]) => {
                let bytes = written.slice::<Vec<u8>>()?;
                let ([bytes], 0) = (bytes, written.rank()) else {
                    return Err(saved.malformed("its ensemble is not one string"));
                };
                Some(Held { ensemble: Arc::new(Ensemble::read(bytes)?), stamp })
            }
            _ => return Err(saved.malformed("it has a stamp and an ensemble, or neither")),
        };
        let state = &mut *lock(&self.state);
        state.version.check(Self::KIND, over)?;
        state.held = held;
        state.version.replace(saved.version);
        Ok(())
    }
}

impl Lasting for TreeEnsemble {
    const KIND: &'static str = "ensemble of trees";

    fn empty(key: &ResourceKey, _saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<TreeEnsemble> {
        Ok(TreeEnsemble::new(key.name.clone()))
    }
}

/// The saved state but for the serialised ensemble, which is a tensor; no stamp if there is no ensemble.
#[derive(Serialize, Deserialize)]
struct Form {
    stamp: Option<i64>,
}

impl TreeEnsemble {
    /// A handle without an ensemble.
    pub fn new(name: String) -> TreeEnsemble {
        TreeEnsemble { name, state: Mutex::default() }
    }

    fn missing(&self) -> Failure {
        let why = format!("Resource {} does not exist: run BoostedTreesCreateEnsemble first", self.name);
        Failure::new(Code::NotFound, why)
    }

    /// Whether there is an ensemble.
    pub fn is_made(&self) -> bool {
        lock(&self.state).held.is_some()
    }

    /// Makes the ensemble that was serialised so, unless there is one.
    ///
    /// # Errors
    /// InvalidArgument if it is none; ResourceExhausted if there is no memory for it.
    pub fn make(&self, serialized: &[u8], stamp: i64) -> Result<()> {
        let ensemble = Arc::new(Ensemble::read(serialized)?);
        let state = &mut *lock(&self.state);
        if state.held.is_none() {
            state.held = Some(Held { ensemble, stamp });
            state.version.raise();
        }
        Ok(())
    }

    /// Replaces the ensemble with the one that was serialised so.
    ///
    /// # Errors
    /// NotFound if there is no ensemble; otherwise as [`TreeEnsemble::make`]. Then nothing has changed.
    pub fn replace(&self, serialized: &[u8], stamp: i64) -> Result<()> {
        let ensemble = Arc::new(Ensemble::read(serialized)?);
        let state = &mut *lock(&self.state);
        let held = state.held.as_mut().ok_or_else(|| self.missing())?;
        *held = Held { ensemble, stamp };
        state.version.raise();
        Ok(())
    }

    /// The ensemble as it is now.
    ///
    /// # Errors
    /// NotFound if there is none.
    pub fn held(&self) -> Result<Held> {
        lock(&self.state).held.clone().ok_or_else(|| self.missing())
    }

    /// Changes the ensemble. Its stamp is raised whether or not the change succeeds, as in TensorFlow.
    ///
    /// # Errors
    /// NotFound if there is none; ResourceExhausted if there is no memory for a copy; those of the change.
    pub fn change<T>(&self, change: impl FnOnce(&mut Ensemble) -> Result<T>) -> Result<T> {
        let state = &mut *lock(&self.state);
        let held = state.held.as_mut().ok_or_else(|| self.missing())?;
        if Arc::strong_count(&held.ensemble) > 1 {
            // A prediction uses it, which keeps its copy.
            memory::admit(held.ensemble.bytes())?;
        }
        held.stamp = held.stamp.wrapping_add(1);
        state.version.raise();
        change(Arc::make_mut(&mut held.ensemble))
    }
}
