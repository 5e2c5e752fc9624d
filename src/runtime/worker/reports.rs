//! The reports of a worker's devices: values for other devices, and the ends of steps, which masters are notified of.

use std::time::Duration;

use meshtf_exec::{Pushed, Sink};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, StepId};

use super::State;
use crate::protocol::{Envelope, PushedValue, ToMaster, ToWorker};

impl State {
    /// The time since it began.
    pub(super) fn now(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// A step is given up or has failed: the steps that were started with it do not end.
    pub(super) fn none_is_together(&self, step: StepId) {
        let mut sessions = self.sessions();
        let pieces = sessions.get_mut(&step.session).into_iter().flat_map(|session| session.pieces.values_mut());
        pieces.flatten().for_each(|piece| piece.together.over(step.number));
    }

    /// Reports something about a step to its session's master, together with the other messages of a device's turn. If it
    /// cannot be sent, the step fails, since the master waits for it.
    fn report(&self, step: StepId, message: impl Into<Envelope>) {
        let Some(master) = self.master(step.session) else { return };
        if let Err(failure) = self.router.send_soon(&master, message.into())
            && failure.code != Code::Unavailable
        {
            let failure = failure.on_task(&self.task.to_string());
            let _gone = self.router.send_soon(&master, ToMaster::Failed { step, failure }.into());
        }
    }
}

impl Sink for State {
    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>) {
        if to.task == self.task {
            if let Some(device) = self.device(to) {
                device.arrive(step, values);
            }
            return;
        }
        let mut tensors = Vec::with_capacity(values.len());
        let carry = |Pushed { transfer, iterations, value }: Pushed| {
            let is_dead = value.is_none();
            tensors.extend(value);
            PushedValue { transfer, iterations, is_dead }
        };
        let values = values.into_iter().map(carry).collect();
        let envelope = Envelope::new(ToWorker::Push { step, to: to.clone(), values }, tensors);
        let sent = match self.router.cluster().member(&to.task) {
            Some(member) => self.router.send_soon(&member.peer, envelope),
            None => Err(Failure::new(Code::Unavailable, format!("{} cannot reach {}", self.task, to.task))),
        };
        if let Err(failure) = sent {
            self.failed(step, failure.on_task(&to.task.to_string()));
        }
    }

    fn fetched(&self, piece: PieceId, step: StepId, place: u32, value: Tensor) {
        let message = ToMaster::PartialFetch { piece, step: step.number, place };
        self.report(step, Envelope::new(message, vec![value]));
    }

    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>) {
        let now = self.now();
        let count = {
            let mut sessions = self.sessions();
            let registered =
                sessions.get_mut(&piece.session).and_then(|session| session.pieces.get_mut(&piece)?.as_mut());
            registered.map_or(Some(1), |piece| piece.together.ran(step.number, !fetches.is_empty(), now))
        };
        if let Some(count) = count {
            let message = ToMaster::Done { piece, step: step.number, count };
            self.report(step, Envelope::new(message, fetches));
        }
    }

    fn failed(&self, step: StepId, failure: Failure) {
        self.none_is_together(step);
        self.report(step, ToMaster::Failed { step, failure: failure.on_task(&self.task.to_string()) });
    }

    fn flush(&self) {
        self.router.flush();
    }
}
