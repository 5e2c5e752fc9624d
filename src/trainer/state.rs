//! The values of a training's variables: the first ones, the saved ones, and saving.

use std::collections::BTreeMap;
use std::time::Duration;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_train::{GLOBAL_STEP, Variable};

use super::{Error, Observer, Trainer};
use crate::Session;

/// Bytes of variables that are fetched or set in one step, unless one is larger.
const STATE_BYTES: usize = 256 << 20;
/// The advice for finding the source of a value that is not finite.
pub(super) const WITH: &str = "check_numerics (on the command line --check-numerics) says";
/// The delay before the last state is written again.
pub(super) const SAVE_AGAIN: Duration = Duration::from_secs(1);
/// The interval of the checks whether the last step is done.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Runs work that may wait for a disk, on a thread that no other task needs: a node in this process has to answer its peers
/// meanwhile. If the future is dropped, the work is done nevertheless.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Failure::new(Code::Cancelled, "the process ends").into()),
        },
    }
}

impl Trainer {
    /// Gives all variables their values; returns the number of steps behind them.
    pub(super) async fn begin(&self, session: &Session, observer: &mut dyn Observer) -> Result<u64, Error> {
        if self.resume {
            let saved = self.folder.as_ref().map(|folder| folder.last(&self.job.variables)).transpose()?.flatten();
            let Some(saved) = saved else {
                let at =
                    self.folder.as_ref().map_or_else(String::new, |folder| format!("{}: ", folder.path().display()));
                return Err(Error::input(format!("{at}there is no saved state to resume from")));
            };
            self.set(session, &saved.values).await?;
            observer.noted(&format!("continuing after step {} from {}", saved.step, saved.file.display()))?;
            return Ok(saved.step);
        }
        let init: Vec<&str> = self.sections.init.iter().map(String::as_str).collect();
        if !init.is_empty() {
            session.run().targets(&init).await?;
        }
        // The slots of the optimizer may begin with the values of variables.
        if let Some(weights) = &self.weights {
            weights.set(session).await?;
        }
        session.run().target(&self.job.init).await?;
        Ok(0)
    }

    /// Gives all variables these values, which are in their order.
    async fn set(&self, session: &Session, values: &[Tensor]) -> Result<(), Error> {
        for group in self.groups() {
            let feeds: Vec<(&str, Tensor)> =
                group.iter().map(|&i| (self.job.restores[i].0.as_str(), values[i].clone())).collect();
            let targets: Vec<&str> = group.iter().map(|&i| self.job.restores[i].1.as_str()).collect();
            session.run().feeds(&feeds).targets(&targets).await?;
        }
        Ok(())
    }

    /// Gives all variables the values that those of these names had, perhaps on other workers.
    pub(super) async fn restore(&self, session: &Session, values: &[(String, Tensor)]) -> Result<(), Error> {
        let by_name: BTreeMap<&str, &Tensor> = values.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let of = |variable: &Variable| {
            let missing = || Failure::new(Code::Internal, format!("the copy of the state lacks {}", variable.name));
            by_name.get(variable.name.as_str()).map(|&value| value.clone()).ok_or_else(missing)
        };
        let values = self.job.variables.iter().map(of).collect::<Result<Vec<Tensor>, Failure>>()?;
        self.set(session, &values).await
    }

    /// The number of updates so far, as counted by the variable that is saved with the others.
    pub(super) async fn counted(&self, session: &Session) -> Result<u64, Error> {
        let counts = |variable: &&Variable| variable.name == GLOBAL_STEP;
        let Some(variable) = self.job.variables.iter().find(counts) else { return Ok(0) };
        let name = self.job.graph.tensor_name(variable.value);
        Ok(u64::try_from(session.run().fetch(&name).await?[0].to_i64()?).unwrap_or(0))
    }

    /// Waits until this many updates have been made.
    pub(super) async fn reach(&self, session: &Session, updates: u64) -> Result<(), Error> {
        while self.counted(session).await? < updates {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// The variables in groups that fit a message.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
        let mut bytes = 0;
        for (i, variable) in self.job.variables.iter().enumerate() {
            let own = variable.shape.elements().unwrap_or(0).saturating_mul(variable.dtype.size().unwrap_or(1));
            if bytes > 0 && bytes + own > STATE_BYTES {
                groups.push(Vec::new());
                bytes = 0;
            }
            bytes += own;
            groups.last_mut().expect("there is one").push(i);
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// The values of all variables after a step, by name.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if an element of a trained variable is NaN or infinite: a training cannot continue from such a
    /// state, and it would replace a better one.
    pub(super) async fn whole(&self, session: &Session, step: u64) -> Result<Vec<(String, Tensor)>, Error> {
        let values = self.values(session, |_| true).await?;
        self.finite(step, values)
    }

    /// These values of all variables after a step.
    ///
    /// # Errors
    /// As [`whole`](Trainer::whole).
    pub(super) fn finite(&self, step: u64, values: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>, Error> {
        let trained = self.job.variables.iter().zip(&values).filter(|(variable, _)| variable.trainable);
        let is_odd = |tensor: &Tensor| {
            let mut numbers = tensor.numbers().filter(|_| tensor.dtype().is_float()).into_iter().flatten();
            numbers.any(|number| !number.is_finite())
        };
        let odd = trained.map(|(_, value)| value).find(|(_, tensor)| is_odd(tensor)).map(|(name, _)| name);
        odd.map_or(Ok(()), |name| {
            Err(Error::NotFinite(format!(
                "variable {name} contains NaN or infinity after step {step}, whose state is not saved; {WITH} which node made \
                 it"
            )))
        })?;
        Ok(values)
    }

    /// Saves the state after a step, if states are saved. If it cannot be written, the observer decides: the training continues
    /// without, and the result is `false`; or, after its last step, the state is written again until that succeeds.
    pub(super) async fn save(
        &self,
        session: &Session,
        step: u64,
        is_last: bool,
        observer: &mut dyn Observer,
    ) -> Result<bool, Error> {
        if self.folder.is_none() {
            return Ok(true);
        }
        let values = self.whole(session, step).await?;
        self.save_values(step, values, is_last, observer).await
    }

    /// As [`save`](Trainer::save), with these values of all variables.
    pub(super) async fn save_values(
        &self,
        step: u64,
        values: Vec<(String, Tensor)>,
        is_last: bool,
        observer: &mut dyn Observer,
    ) -> Result<bool, Error> {
        let Some(folder) = &self.folder else { return Ok(true) };
        loop {
            let (folder, values) = (folder.clone(), values.clone());
            let error = match blocking(move || folder.save(step, values)).await? {
                Ok(file) => return observer.saved(step, &file).map(|()| true).map_err(Error::Observer),
                Err(error) => error,
            };
            if !observer.save_failed(step, &error, is_last) {
                return Err(error);
            }
            if !is_last {
                return Ok(false);
            }
            tokio::time::sleep(SAVE_AGAIN).await;
        }
    }

    /// The values of variables, by name.
    pub(super) async fn values(
        &self,
        session: &Session,
        wanted: impl Fn(&Variable) -> bool,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let mut tensors = Vec::with_capacity(self.job.variables.len());
        for group in self.groups() {
            let variables: Vec<_> =
                group.iter().map(|&i| &self.job.variables[i]).filter(|variable| wanted(variable)).collect();
            let names: Vec<String> =
                variables.iter().map(|variable| self.job.graph.tensor_name(variable.value)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let values = if names.is_empty() { Vec::new() } else { session.run().fetches(&names).await?.values };
            tensors.extend(variables.iter().map(|variable| variable.name.clone()).zip(values));
        }
        Ok(tensors)
    }
}
