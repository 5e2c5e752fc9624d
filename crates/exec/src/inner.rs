//! State shared by the parts of a device: its engine, its resources, its sink, and its mailbox.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use meshtf_engine::Engine;
use meshtf_kernels::Generators;
use meshtf_loops::turn::{self, Signal};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{PieceId, SessionId};
use meshtf_tensor::memory;

use super::busy::Busy;
use super::mailbox::Mailbox;
use super::resource::{Resources, on_behalf};
use super::sink::Sink;
use super::step::{Beside, Body, Surroundings, Turn, TurnEnd};
use super::waiting::Wake;

/// State shared by the threads of a device and its handle.
pub(super) struct Inner {
    pub name: DeviceName,
    pub engine: Box<dyn Engine>,
    pub resources: Arc<Resources>,
    pub sink: Arc<dyn Sink>,
    pub mailbox: Mailbox,
    /// The mailbox, for ops that wait.
    pub wake: Arc<dyn Wake>,
    /// Bytes of the values that arrived and that no node has taken yet.
    pub parked: Arc<AtomicUsize>,
    /// The state of each session's random ops, which all pieces of it share.
    pub generators: Mutex<HashMap<SessionId, Arc<Generators>>>,
    pub busy: Busy,
    pub beside: Beside,
    /// Quick steps may run on the threads that deliver messages: the device's kernels compute on this machine's cores, and it
    /// has at least two.
    pub runs_inline: bool,
}

impl Inner {
    /// The surroundings of a step: all that it needs of its device.
    pub fn surroundings<'a>(&'a self, piece: PieceId, signal: &'a Signal) -> Surroundings<'a> {
        Surroundings {
            device: &self.name,
            piece,
            engine: &*self.engine,
            sink: &*self.sink,
            has_message: self.mailbox.has_message(),
            wake: &self.wake,
            signal,
            parked: &self.parked,
            beside: self.beside,
            until: None,
        }
    }

    /// Runs the step of a turn until it waits, is done, fails, has used up its turn, or is asked to make way.
    pub fn run(&self, turn: &mut Turn) -> Result<TurnEnd> {
        self.run_until(None, turn)
    }

    /// As [`Inner::run`], until `until` at most. An op that is under way then is completed.
    pub fn run_until(&self, until: Option<Instant>, turn: &mut Turn) -> Result<TurnEnd> {
        let Turn { id, body, signal, .. } = turn;
        let near = Surroundings { until, ..self.surroundings(*id, signal) };
        let _turn = memory::Turn::begin(self.resources.budget());
        let run = || {
            body.compile(near.engine)?;
            let Body { program, step, .. } = &mut **body;
            turn::within(signal, || on_behalf(id.session, || step.run(program, &near)))
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            Err(match turn::is_stop(&*panic) {
                true => Failure::new(Code::Cancelled, "the step was given up"),
                false => body.step.place(&body.program, Failure::panicked("the kernel", &*panic)),
            })
        })
    }
}
