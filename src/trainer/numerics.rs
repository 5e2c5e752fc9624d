//! The message for a step that failed. For one whose loss is NaN or infinite, it has the first node that had such a value, if the
//! options request it.

use meshtf_tensor::failure::{Failure, Stage};
use meshtf_tensor::{Data, Tensor};
use meshtf_train::job::{CHECK, CHECK_DIFFERENCE, CHECK_GRADIENT};
use meshtf_train::numerics::FiniteCheck;

use super::answers::ancestors;
use super::state::WITH;
use super::{Error, Trainer};
use crate::Session;

impl Trainer {
    /// The error of the training for a failed run of steps of a worker. `number`: the training's step, given that of the run.
    pub(super) async fn explained(
        &self,
        session: &Session,
        failure: Failure,
        worker: usize,
        number: impl Fn(u64) -> u64,
    ) -> Error {
        let Stage::InStep(own) = failure.stage else { return failure.into() };
        let step = number(own);
        let is_by = |check: &str| failure.node.as_ref().is_some_and(|node| node.starts_with(check));
        let what = match () {
            () if is_by(CHECK) => "the loss",
            () if is_by(CHECK_GRADIENT) => "a gradient",
            () if is_by(CHECK_DIFFERENCE) => {
                let what = failure.message.split(':').next().unwrap_or_default().trim_end();
                let found = match &self.numerics {
                    None => format!("; {WITH} which node made it"),
                    Some(_) => String::new(),
                };
                return Error::NotFinite(format!(
                    "{what} after step {step}, though the loss was: a gradient was NaN or infinite, or an update too \
                     large{}{found}. A lower rate, clip_norm or other first values may help",
                    self.saved_from_before()
                ));
            }
            () => {
                return self
                    .saved_before(session, Failure { stage: Stage::InStep(step), ..failure }, step, worker)
                    .await;
            }
        };
        let saved = match (self.save_before(session, step).await, &self.folder) {
            (Ok(true), _) => "; the state before it is saved".to_owned(),
            (Err(error), Some(_)) => format!("; the state before it could not be saved: {error}"),
            _ => self.saved_from_before().to_owned(),
        };
        let found = match &self.numerics {
            None if self.sections.train.backup > 0 => {
                format!("without \"backup\", {WITH} which node made it")
            }
            None => format!("{WITH} which node made it"),
            Some(_) => match self.first_wrong(session, step, worker).await {
                Ok(found) => found,
                Err(error) => format!("which node made it could not be found: {error}"),
            },
        };
        Error::NotFinite(format!(
            "{what} is NaN or infinite in step {step}, which changed nothing{saved}; {found}. A lower rate, clip_norm or \
             other first values may help"
        ))
    }

    /// The hint at the last saved state, if there is one.
    fn saved_from_before(&self) -> &'static str {
        match &self.folder {
            Some(folder) if folder.has_states().unwrap_or(false) => "; the last saved state is from before that",
            _ => "",
        }
    }

    /// The failure of a step, whose state is saved first if the step changed nothing: its loss could not be computed, and no
    /// variable is updated without that.
    async fn saved_before(&self, session: &Session, failure: Failure, step: u64, worker: usize) -> Error {
        let graph = &self.job.graph;
        let failed = failure.node.as_ref().and_then(|node| graph.find(node));
        let loss = self.job.steps.get(worker).and_then(|nodes| graph.output(&nodes.loss).ok());
        let changed_nothing = match (failed, loss) {
            (Some(failed), Some(loss)) => {
                let needed = ancestors(graph, loss.node);
                needed.contains(&failed) && !needed.iter().any(|&id| graph.node(id).op.assigns)
            }
            _ => false,
        };
        let saved = match changed_nothing {
            true => self.save_before(session, step).await,
            false => return failure.into(),
        };
        let message = match saved {
            Ok(true) => format!("{}; the state before this step is saved", failure.message),
            Ok(false) => return failure.into(),
            Err(error) => format!("{}; the state before this step could not be saved: {error}", failure.message),
        };
        Failure { message, ..failure }.into()
    }

    /// Saves the state before a step that failed, if states are saved and the variables are as that step found them. Before the
    /// first step nothing was trained.
    async fn save_before(&self, session: &Session, step: u64) -> Result<bool, Error> {
        let is_whole = self.folder.is_some()
            && step > 1
            && self.job.steps.len() == 1
            && self.job.rounds.is_none()
            && self.job.beside.is_empty()
            && self.counted(session).await? == step.saturating_sub(1);
        if is_whole {
            self.save(session, step.saturating_sub(1), true, &mut ()).await?;
        }
        Ok(is_whole)
    }

    /// The first value of a step that is not finite: the step is computed again with its batch and the same variables.
    async fn first_wrong(&self, session: &Session, step: u64, worker: usize) -> Result<String, Error> {
        let Some(numerics) = &self.numerics else { return Ok(String::new()) };
        let batch = self.order.clone().of_step(step.saturating_sub(1));
        let epoch = self.order.epoch(step.saturating_sub(1));
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let is_shared = self.job.steps.len() == 1;
        let mut feeds = self.beside_batches();
        for (i, names) in numerics.taken.iter().enumerate() {
            let own = if is_shared { batch.get(i * rows..(i + 1) * rows) } else { Some(&batch[..]) };
            let is_own = is_shared && self.job.rounds.is_none() || i == worker;
            let Some(own) = own.filter(|_| is_own) else { continue };
            let tensors = self.taken(session, 0, &self.examples, own, epoch).await?;
            for ((name, part), tensor) in names.iter().zip(self.examples.names()).zip(tensors) {
                if let Some(row) = odd_row(&tensor) {
                    return Ok(format!(
                        "the data for {part} contains NaN or infinity, in example {} of those to train with",
                        own[row] + 1
                    ));
                }
                feeds.push((name.as_str(), tensor));
            }
        }
        let checks = &numerics.steps[worker];
        let fetches: Vec<&str> = checks.iter().map(|check| check.is_finite.as_str()).collect();
        let flags = session.run().feeds(&feeds).fetches(&fetches).await?.values;
        let mut first = None;
        for (check, flag) in checks.iter().zip(flags) {
            if !flag.item::<bool>()? {
                first = Some(check);
                break;
            }
        }
        Ok(first.map_or_else(
            || {
                "computed again, it contains no NaN or infinity: they came from random numbers, or from within a loop or a branch"
                    .to_owned()
            },
            |check| self.described(check),
        ))
    }

    fn described(&self, check: &FiniteCheck) -> String {
        let graph = &self.job.graph;
        let node = graph.node(check.node);
        let device = if node.device.is_empty() { String::new() } else { format!(" on {}", node.device) };
        if self.job.variables.iter().any(|variable| variable.value.node == check.node) {
            return format!("variable {}{device} has contained NaN or infinity since an earlier step", node.name);
        }
        let inputs: Vec<String> = node.inputs.iter().map(|&input| graph.tensor_name(input)).collect();
        let inputs = if inputs.is_empty() { String::new() } else { format!(", of {}", inputs.join(" and ")) };
        format!(
            "the first node whose output contains NaN or infinity is {}, a {}{device}{inputs}",
            check.tensor, node.op.name
        )
    }
}

/// The first row of a tensor of floats that has an element which is not finite.
fn odd_row(tensor: &Tensor) -> Option<usize> {
    let place = match tensor.data() {
        Data::F32(values) => values.iter().position(|value| !value.is_finite()),
        Data::F64(values) => values.iter().position(|value| !value.is_finite()),
        Data::F16(values) => values.iter().position(|value| !value.is_finite()),
        Data::BF16(values) => values.iter().position(|value| !value.is_finite()),
        _ => None,
    };
    let row = tensor.len() / tensor.dims().first().copied().unwrap_or(1).max(1);
    place.map(|place| place / row.max(1))
}
