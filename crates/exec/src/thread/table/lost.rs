//! A panic of the table itself: the step it was about fails, or the device is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::StepId;

use super::super::super::mailbox::DeviceMessage;
use super::super::super::parked;
use super::{StepRange, Table};

impl Table {
    /// Calls `act` on the table. If that panics, the step it was about fails. If the step is not known, or cancelling it panics
    /// too, the device is lost.
    pub(super) fn survive(&mut self, about: Option<StepId>, act: impl FnOnce(&mut Table)) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| act(self))) else { return };
        let failure = Failure::panicked("the device's thread", &*panic);
        let ended = about.map(|step| {
            let fail = || {
                self.abort(step);
                self.report(step, failure.clone());
            };
            catch_unwind(AssertUnwindSafe(fail))
        });
        if !matches!(ended, Some(Ok(()))) {
            self.lose(failure);
        }
    }

    /// Fails every step, now and from now on: the state of the table is unknown.
    fn lose(&mut self, failure: Failure) {
        let message = format!("{} is lost until its node starts anew: {}", self.place.name, failure.message);
        let failure = Failure::new(Code::Internal, message);
        self.lost = Some(failure.clone());
        self.runnable.clear();
        self.ending = 0;
        let mut steps: Vec<StepId> = Vec::new();
        for (id, mut piece) in std::mem::take(&mut self.pieces) {
            // Of each run the step that is under way, or the first to come.
            let to_come = |run: &StepRange| (run.left() > 0).then_some(run.next);
            let of_slots = piece.slots.iter().filter_map(|slot| slot.current.or(slot.run.as_ref().and_then(to_come)));
            let numbers = of_slots.chain(piece.runs.iter().filter_map(to_come));
            steps.extend(numbers.map(|number| StepId { session: id.session, number }));
            for mut slot in piece.slots.drain(..) {
                slot.signal.stop();
                // Dropping the body may be the cause of the panic.
                let _panicked = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(body) = &mut slot.body {
                        body.step.cancel(&body.program.code, &self.place.parked);
                    }
                    drop(slot);
                }));
            }
        }
        self.sessions.clear();
        for step in steps {
            let _panicked = catch_unwind(AssertUnwindSafe(|| self.report(step, failure.clone())));
        }
    }

    /// Answers a message to a device that is lost.
    pub(super) fn refuse(&mut self, message: DeviceMessage) {
        let Some(lost) = self.lost.clone() else { return };
        let answer = || match message {
            DeviceMessage::Register { reply, .. } => {
                let _gone = reply.send(Err(lost));
            }
            DeviceMessage::Start { id, first, .. } => self.report(StepId { session: id.session, number: first }, lost),
            DeviceMessage::Arrive { values, .. } => {
                let bytes: usize = values.iter().map(|pushed| parked::cost(&pushed.value)).sum();
                self.place.parked.fetch_sub(bytes, Ordering::Relaxed);
            }
            DeviceMessage::Release { session } => self.place.resources.release(session),
            DeviceMessage::Count { most, reply } => {
                let _gone = reply.send(self.load(most));
            }
            DeviceMessage::Back { mut turn, .. } => turn.body.step.cancel(&turn.body.program.code, &self.place.parked),
            DeviceMessage::Overflow { .. }
            | DeviceMessage::Unwanted { .. }
            | DeviceMessage::Abort { .. }
            | DeviceMessage::Forget { .. }
            | DeviceMessage::Wake { .. }
            | DeviceMessage::Largest { .. }
            | DeviceMessage::Close => {}
        };
        let _panicked = catch_unwind(AssertUnwindSafe(answer));
    }
}
