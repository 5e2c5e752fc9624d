//! The ends of a training whose workers may come and go, other than that after its last step.

use meshtf_tensor::failure::Reason;

use super::super::state::blocking;
use super::super::{Ended, Error, How, Observer, Trainer};
use super::once::Once;
use super::{Copy, Course};

impl Trainer {
    /// The end of a training that is stopped between two teams.
    pub(super) async fn stopped(&self, course: &Course, observer: &mut Once<'_>) -> Result<Ended, Error> {
        let Some(copy) = &course.copy else {
            let saved = || self.folder.as_ref().filter(|_| self.resume)?.newest().ok()?;
            let start = course.start.or_else(saved).unwrap_or(0);
            return Ok(Ended { start, step: start, how: How::Stopped });
        };
        let step = self.save_copy(copy, true, observer).await?;
        if self.folder.is_none() {
            observer.noted(&format!(
                "the variables of the tasks do not have the values of step {step}: tasks are missing"
            ))?;
        }
        let (start, how) = (course.start.unwrap_or(step), course.ended.unwrap_or(How::Stopped));
        Ok(Ended { start, step, how })
    }

    /// The end of a training by an error: the state that it has is saved, unless no state is to be saved then. Only the
    /// variables of the tasks may be without the values of the last step.
    pub(super) async fn ended_by(
        &self,
        error: Error,
        course: &Course,
        observer: &mut Once<'_>,
    ) -> Result<Ended, Error> {
        let mut error = error;
        let is_over = match &error {
            Error::NotFinite(_) | Error::Observer(_) => true,
            // Another training has the folder by now, if it is the same.
            Error::Failed(failure) => failure.reason == Some(Reason::Superseded),
            Error::Sections(_) | Error::Input(_) => false,
        };
        let Some(copy) = course.copy.as_ref().filter(|_| self.folder.is_some()) else { return Err(error) };
        if let (Some(how), false) = (course.ended, matches!(error, Error::Observer(_))) {
            let step = copy.step;
            observer.noted(&format!("the variables of the tasks do not have the values of step {step}: {error}"))?;
            return Ok(Ended { start: course.start.unwrap_or(step), step, how });
        }
        if is_over {
            return Err(error);
        }
        // A file that cannot be written may be the error.
        let is_patient = matches!(error, Error::Failed(_));
        let told = match self.save_copy(copy, is_patient, observer).await {
            Ok(step) => format!("; the state after step {step} is saved"),
            Err(error) => format!("; the state after step {} could not be saved: {error}", copy.step),
        };
        match &mut error {
            Error::Failed(failure) => failure.message += &told,
            // It may say so itself.
            Error::Input(message) | Error::Sections(message) if !message.ends_with(&told) => *message += &told,
            _ => {}
        }
        Err(error)
    }

    /// Saves a copy of the state, if states are saved and none as new is; returns the number of steps behind the newest.
    /// `is_patient`: the observer decides whether to try again if it cannot be written.
    async fn save_copy(&self, copy: &Copy, is_patient: bool, observer: &mut Once<'_>) -> Result<u64, Error> {
        let newest = self.folder.as_ref().map(|folder| folder.newest()).transpose()?.flatten();
        if let Some(newest) = newest.filter(|newest| *newest >= copy.step) {
            return Ok(newest);
        }
        let values = self.finite(copy.step, copy.values.clone())?;
        let step = copy.step;
        match &self.folder {
            Some(folder) if !is_patient => {
                let folder = folder.clone();
                let file = blocking(move || folder.save(step, values)).await??;
                observer.saved(step, &file)?;
            }
            _ => _ = self.save_values(step, values, true, observer).await?,
        }
        Ok(step)
    }
}
