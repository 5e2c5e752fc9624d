//! The claim of a training to the variables that other sessions see, while its teams train variables of their own.

use std::time::Duration;

use meshtf_tensor::failure::{Failure, Reason};
use tokio::sync::Mutex;

use super::super::Trainer;
use super::is_loss_of_state;
use crate::{Client, Session, SessionOptions};

/// The interval of looks for another training that has claimed the variables.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// The claim, which is lost with the master of its session.
pub(super) struct Claim<'t, C> {
    trainer: &'t Trainer,
    client: &'t C,
    session: Mutex<Session>,
}

impl<'t, C: Client> Claim<'t, C> {
    /// Claims the variables: other trainings of them end.
    pub async fn of(trainer: &'t Trainer, client: &'t C) -> Result<Claim<'t, C>, Failure> {
        let session = Mutex::new(open(trainer, client, trainer.claimed()).await?);
        Ok(Claim { trainer, client, session })
    }

    /// Claims the variables again, and others, unless another training has claimed them since.
    ///
    /// # Errors
    /// With the reason Superseded, if one has.
    pub async fn renew(&self, others: Vec<String>) -> Result<(), Failure> {
        let names = [self.trainer.claimed(), others].concat();
        let mut session = self.session.lock().await;
        match session.claim(names.clone()).await {
            Err(failure) if is_loss_of_state(&failure) => *session = open(self.trainer, self.client, names).await?,
            claimed => claimed?,
        }
        Ok(())
    }

    /// Returns once another training has claimed the variables.
    pub async fn superseded(&self) -> Failure {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            match self.renew(Vec::new()).await {
                Err(failure) if failure.reason == Some(Reason::Superseded) => return failure,
                // Tasks may be down for a while.
                _ => {}
            }
        }
    }

    /// Gives it up.
    pub async fn end(self) {
        let _ = self.session.into_inner().close().await;
    }
}

async fn open(trainer: &Trainer, client: &impl Client, names: Vec<String>) -> Result<Session, Failure> {
    let session = client.session(trainer.graph().clone(), None, SessionOptions::default()).await?;
    session.claim(names).await?;
    Ok(session)
}
