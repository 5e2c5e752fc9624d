//! The state of a guarded session on this task: copied for a cut, and put back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_exec::{Edition, Moment, ResourceKey, Saved, changed_by_another};
use meshtf_kernels::Position;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::super::State;
use super::{Expected, Own, RANDOM, chunks};
use crate::protocol::Peer;
use crate::protocol::guard::{Copied, Cut, GuardReport, MAX_COPIED_NAMES, Origin, Parcel};
use crate::runtime::parts::{Incoming, MAX_BYTES, MAX_TENSORS, States, leaves_room};

/// How long a state waits to be put back for the ops of steps that were given up.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

impl State {
    /// Takes a copy of the state here, answers, and sends the copy to the buddy.
    pub(super) fn copy_out(&self, master: &Peer, session: SessionId, (cut, base): (Cut, Option<Cut>), buddy: &Peer) {
        let known = lock(&self.guards).of_master(session, master).map(|guarded| {
            // Those of cuts that were given up.
            let complete = guarded.complete;
            guarded.own.retain(|known, _| Some(*known) == complete || Some(*known) == base);
            base.and_then(|base| guarded.own.get(&base).map(|own| (base, Arc::clone(own))))
        });
        if known.is_ok() {
            self.parcels.drop_cuts(session, cut);
        }
        let taken = known.and_then(|known| {
            let own = self.copy(session, known.as_ref().map(|(_, own)| &**own))?;
            lock(&self.guards).of_master(session, master)?.own.insert(cut, Arc::clone(&own.0));
            Ok((known, own.0, own.1))
        });
        let (known, own, copied) = match taken {
            Ok(taken) => taken,
            Err(failure) => {
                let result = Err(self.here(failure));
                return self.guard_says(master, session, GuardReport::Copied { cut, result });
            }
        };
        self.guard_says(master, session, GuardReport::Copied { cut, result: Ok(copied) });
        if own.states.is_empty() {
            return;
        }
        let (base, before) = known.map_or((None, None), |(base, before)| (Some(base), Some(before)));
        let chunks = chunks(&own.states, before.as_ref().map(|before| &before.states));
        self.send_chunks(session, (buddy, Parcel::Cut(cut)), (cut, base), chunks);
    }

    /// The state of a session here, where the unchanged parts are those of `before`.
    fn copy(&self, session: SessionId, before: Option<&Own>) -> Result<(Arc<Own>, Copied)> {
        let taken = Moment::now();
        let shared = before.and_then(|before| self.resources.changed_by_others(session, before.taken));
        let shared = shared.map(|(key, kind)| format!("{kind} '{}'", key.name));
        let nothing = States::new();
        let (mut states, unsaved) =
            self.resources.save_guarded(session, before.map_or(&nothing, |before| &before.states))?;
        let mut why: Vec<String> = unsaved.iter().map(|one| one.why.clone()).collect();
        let mut keys: BTreeSet<ResourceKey> = unsaved.into_iter().map(|one| one.key).collect();
        states.retain(|key, saved| {
            let fits = saved.tensors.len() < MAX_TENSORS && saved.bytes() < MAX_BYTES;
            if !fits {
                why.push(format!("{} '{}' is too large to be copied", saved.kind, key.name));
                keys.insert(key.clone());
            }
            fits
        });
        for device in self.all_devices() {
            let positions = device.random_positions(session);
            if positions.is_empty() {
                continue;
            }
            let form = postcard::to_stdvec(&positions)
                .map_err(|error| Failure::new(Code::Internal, format!("positions cannot be written: {error}")))?;
            let saved = Saved { kind: RANDOM.to_owned(), version: Edition::default(), form, tensors: Vec::new() };
            states.insert(of_random_numbers(session, device.name()), Arc::new(saved));
        }
        // A step that writes to a tensor whose elements are in a copy copies them first.
        leaves_room(self.resources.budget(), states.values().map(|saved| saved.bytes()).sum())?;
        why.truncate(MAX_COPIED_NAMES);
        let named = states.iter().filter(|(_, saved)| saved.kind != RANDOM);
        let copied = Copied {
            resources: states.len() as u64,
            bytes: states.values().map(|saved| saved.bytes() as u64).sum(),
            names: named.take(MAX_COPIED_NAMES).map(|(key, _)| key.name.clone()).collect(),
            unsaved: why,
            shared,
        };
        Ok((Arc::new(Own { states, unsaved: keys, taken }), copied))
    }

    /// Gets ready to put a session's state back.
    ///
    /// # Errors
    /// NotFound if the copy is not here; FailedPrecondition if another session has changed the state since.
    pub(super) fn expect(&self, master: &Peer, session: SessionId, ask: u64, (cut, from): (Cut, Origin)) -> Result<()> {
        let taken = {
            let mut guards = lock(&self.guards);
            let guarded = guards.of_master(session, master)?;
            let own = guarded.own.get(&cut).map(|own| own.taken);
            let taken = match from {
                Origin::Here => own.ok_or_else(|| not_here(session, cut))?,
                Origin::Buddy(_) | Origin::Nothing => Moment::default(),
            };
            guarded.expected = Some(Expected { ask, cut, from, incoming: Incoming::default() });
            taken
        };
        self.is_only_its_own(session, taken)
    }

    /// Puts a session's state back that is here, or that it has nothing here.
    pub(super) fn return_to(&self, master: &Peer, session: SessionId, ask: u64) -> Result<()> {
        let own = {
            let mut guards = lock(&self.guards);
            let guarded = guards.of_master(session, master)?;
            match guarded.expected.take_if(|expected| expected.ask == ask) {
                Some(Expected { cut, from: Origin::Here, .. }) => {
                    guarded.own.get(&cut).cloned().ok_or_else(|| not_here(session, cut))?
                }
                Some(Expected { from: Origin::Nothing, .. }) => Arc::default(),
                _ => return Err(Failure::invalid(format!("nothing of session {session} is to be put back here"))),
            }
        };
        self.put_state((master, session, ask), &own)
    }

    /// Puts a session's state back that came from a buddy.
    pub(super) fn put_loaded(
        &self,
        master: &Peer,
        (session, ask): (SessionId, u64),
        cut: Cut,
        states: States,
    ) -> Result<()> {
        let own = Arc::new(Own { states, ..Own::default() });
        // Before, so that changes of other sessions meanwhile are not taken for a part of the cut.
        let taken = Moment::now();
        self.put_state((master, session, ask), &own)?;
        let mut guards = lock(&self.guards);
        guards.wants(session, master, ask)?;
        let guarded = guards.of_master(session, master)?;
        let states = own.states.clone();
        guarded.own.insert(cut, Arc::new(Own { states, unsaved: BTreeSet::new(), taken }));
        guarded.complete = Some(cut);
        Ok(())
    }

    /// Puts the session's state here back, once no op of a step that was given up works on it any more. Nothing is put back once
    /// the session is over, or its master has given this up; and nothing over changes of another session.
    fn put_state(&self, (master, session, ask): (&Peer, SessionId, u64), own: &Own) -> Result<()> {
        self.come_to_rest(|| lock(&self.guards).wants(session, master, ask))?;
        // Under the lock, so that the end of the session does not come in between.
        let under_lock = |work: &dyn Fn() -> Result<()>| {
            let guards = lock(&self.guards);
            guards.wants(session, master, ask)?;
            work()
        };
        under_lock(&|| {
            let named = own.states.iter().filter(|(_, saved)| saved.kind != RANDOM).map(|(key, _)| key);
            self.resources.guard_also(session, named);
            self.is_only_its_own(session, own.taken)?;
            let keeps = |key: &ResourceKey| own.states.contains_key(key) || own.unsaved.contains(key);
            self.resources.drop_guarded(session, own.taken, keeps)
        })?;
        // Variables may become older than a mark on them.
        self.marks.clear();
        let put = own
            .states
            .iter()
            .try_for_each(|(key, saved)| under_lock(&|| self.put_one((session, own.taken), key, saved)));
        // One that was set meanwhile, too.
        self.marks.clear();
        put
    }

    /// Puts the state of a resource back, unless another session has changed it since then, be it just now.
    fn put_one(&self, (session, since): (SessionId, Moment), key: &ResourceKey, saved: &Saved) -> Result<()> {
        let device = DeviceName { task: self.task.clone(), kind: key.device.0, index: key.device.1 };
        let device = self.device(&device).ok_or_else(|| {
            Failure::new(
                Code::FailedPrecondition,
                format!("this task has no device {device}, which held '{}'", key.name),
            )
        })?;
        if saved.kind == RANDOM {
            let positions: Vec<(String, Position)> = postcard::from_bytes(&saved.form)
                .map_err(|error| Failure::invalid(format!("positions of random numbers do not decode: {error}")))?;
            device.set_random_positions(session, positions);
        } else if self.resources.version(key) != Some(saved.version) {
            device.put_back(key, session, since, saved)?;
        }
        Ok(())
    }

    /// Whether no other session has changed a resource of this one since then.
    ///
    /// # Errors
    /// FailedPrecondition if one has.
    fn is_only_its_own(&self, session: SessionId, since: Moment) -> Result<()> {
        match self.resources.changed_by_others(session, since) {
            Some((key, kind)) => Err(changed_by_another(kind, &key.name)),
            None => Ok(()),
        }
    }

    /// Waits until no turn of a step that was given up is under way, as long as that is wanted.
    fn come_to_rest(&self, is_wanted: impl Fn() -> Result<()>) -> Result<()> {
        let until = Instant::now() + QUIET_LIMIT;
        for device in self.all_devices() {
            while device.load(1, Duration::from_secs(1)).is_none_or(|load| load.ending > 0) {
                is_wanted()?;
                if Instant::now() >= until {
                    let why = format!("an op of {} did not end within {} s", device.name(), QUIET_LIMIT.as_secs());
                    return Err(Failure::new(Code::DeadlineExceeded, why));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

fn not_here(session: SessionId, cut: Cut) -> Failure {
    Failure::new(Code::NotFound, format!("there is no copy of cut {cut} of session {session} here"))
}

/// The key under which a copy has the positions of random numbers: no resource has it.
fn of_random_numbers(session: SessionId, device: &DeviceName) -> ResourceKey {
    let device = (device.kind, device.index);
    ResourceKey { container: String::new(), name: String::new(), session: Some(session), device }
}
