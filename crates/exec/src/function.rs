//! Functions that ops call themselves: those of datasets, for each element.
//!
//! A function is compiled as a piece of one device, and runs like one, to its end, on the thread of the op that calls it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use meshtf_engine::Engine;
use meshtf_graph::op;
use meshtf_graph::plan::{PieceOp, Signature, plan_body};
use meshtf_graph::{Function, Graph};
use meshtf_loops::turn::Signal;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::lock::lock;

use super::dataset::{self, Element, Pull, dtype_of};
use super::program;
use super::sink::{Pushed, Sink};
use super::state::Site;
use super::step::{Beside, Body, Surroundings};
use super::token::Token;

/// Most bodies that are kept for later calls.
const MAX_SPARE: usize = 16;
/// Most calls under way on one thread, each made by the function of the one before.
const MAX_DEPTH: usize = 32;

thread_local! {
    /// The number of calls under way on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A call under way.
struct Level;

impl Level {
    /// # Errors
    /// ResourceExhausted if [`MAX_DEPTH`] are under way already.
    fn enter(name: &str) -> Result<Level> {
        if DEPTH.get() >= MAX_DEPTH {
            let why =
                format!("function {name}: functions call each other more than {MAX_DEPTH} deep, which is the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        DEPTH.set(DEPTH.get() + 1);
        Ok(Level)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// A function that an op of a site holds.
pub(super) fn callee(function: &Function, site: &Site) -> Arc<dyn dataset::Callee> {
    Arc::new(Callee { function: function.clone(), site: site.apart(), spare: Mutex::default() })
}

struct Callee {
    function: Function,
    site: Site,
    /// Bodies compiled before and not in use.
    spare: Mutex<Vec<Body>>,
}

/// A function with its state and its captured values.
struct Instance {
    callee: Arc<Callee>,
    body: Option<Body>,
    captured: Vec<Token>,
    /// Its nodes keep no state from call to call.
    is_pure: bool,
}

impl dataset::Callee for Callee {
    fn instance(self: Arc<Self>, captured: Vec<Token>, pull: &Pull) -> Result<Box<dyn dataset::Instance>> {
        let spare = lock(&self.spare).pop();
        let body = match spare {
            Some(body) => body,
            None => self.compile(pull.engine)?,
        };
        let is_pure = body.program.code.nodes.iter().all(|node| op::lookup(&node.op).is_none_or(|op| !op.has_effect()));
        Ok(Box::new(Instance { callee: self, body: Some(body), captured, is_pure }))
    }
}

impl Callee {
    fn compile(&self, engine: &dyn Engine) -> Result<Body> {
        let named = |failure: Failure| Failure {
            message: format!("function {}: {}", self.function.name, failure.message),
            ..failure
        };
        let mut nodes = self.function.nodes.clone();
        // The whole function runs on the calling device.
        nodes.iter_mut().for_each(|node| node.device.clear());
        let graph = Graph::new(nodes).map_err(|error| named(Failure::invalid(error.to_string())))?;
        let signature = Signature {
            feeds: self.function.args.iter().map(|(name, _)| name.clone()).collect(),
            fetches: self.function.results.iter().map(|(tensor, _)| tensor.clone()).collect(),
            targets: self.function.effects.clone(),
            ..Signature::default()
        };
        let piece = plan_body(&graph, &here(), &signature).map_err(|error| named(Failure::from(error)))?;
        let waits = piece.nodes.iter().find(|node| match &node.op {
            PieceOp::Op(name) => op::lookup(name).is_some_and(|op| op.waits),
            _ => false,
        });
        if let Some(node) = waits {
            let why =
                format!("node {} may have to wait for another step, which a function of a dataset cannot", node.name);
            return Err(named(Failure::new(Code::Unimplemented, why)));
        }
        // The random numbers are those of this body alone.
        program::compile(&piece, &self.site.apart(), engine).map(Body::new).map_err(named)
    }
}

impl dataset::Instance for Instance {
    fn call(&mut self, mut args: Element, pull: &Pull) -> Result<Element> {
        let _level = Level::enter(&self.callee.function.name)?;
        args.extend(self.captured.iter().cloned());
        let formal = &self.callee.function.args;
        let is_right = |(arg, (_, dtype)): (&Token, &(String, _))| dtype_of(arg) == *dtype;
        if args.len() != formal.len() || !args.iter().zip(formal).all(is_right) {
            let names = |dtypes: Vec<&str>| dtypes.join(", ");
            return Err(Failure::invalid(format!(
                "function {} takes {} ({}), but {} given ({})",
                self.callee.function.name,
                counted(formal.len(), "argument"),
                names(formal.iter().map(|(_, dtype)| dtype.name()).collect()),
                if args.len() == 1 { "1 is".to_owned() } else { format!("{} are", args.len()) },
                names(args.iter().map(|arg| dtype_of(arg).name()).collect())
            )));
        }
        let Some(body) = &mut self.body else { return Err(Failure::new(Code::Internal, "the function has no body")) };
        let Body { program, step, .. } = body;
        // Feeds are in the order of the piece.
        let mut given: Vec<Option<Token>> = args.into_iter().map(Some).collect();
        let args = program.feeds.iter().map(|&place| given.get_mut(place as usize).and_then(Option::take));
        let args: Option<Vec<Token>> = args.collect();
        let args = args.ok_or_else(|| Failure::new(Code::Internal, "the function lacks an argument"))?;
        let (has_message, parked, signal) = (AtomicBool::new(false), AtomicUsize::new(0), Signal::default());
        let near = Surroundings {
            device: &here(),
            piece: PieceId { session: SessionId(0), number: 0 },
            engine: pull.engine,
            sink: &Nowhere,
            has_message: &has_message,
            wake: pull.device,
            signal: &signal,
            parked: &parked,
            beside: Beside::Never,
            until: None,
        };
        let fetched = step.call(program, &near, args)?;
        let results = &self.callee.function.results;
        let mut answers = vec![None; results.len()];
        for (&place, token) in program.fetches.iter().zip(fetched) {
            if let Some(answer) = answers.get_mut(place as usize) {
                *answer = Some(token);
            }
        }
        let answers: Option<Element> = answers.into_iter().collect();
        answers.ok_or_else(|| Failure::new(Code::Internal, "the function lacks a result"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|_| self.is_pure) else { return };
        body.step.cancel(&body.program.code, &AtomicUsize::new(0));
        let mut spare = lock(&self.callee.spare);
        if spare.len() < MAX_SPARE {
            spare.push(body);
        }
    }
}

/// The only device that a function's plan names.
fn here() -> DeviceName {
    DeviceName { task: Task::new("local".to_owned(), 0), kind: meshtf_tensor::device::DeviceKind::Cpu, index: 0 }
}

/// A sink that receives nothing: no value leaves a function while it runs.
struct Nowhere;

impl Sink for Nowhere {
    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}
    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}
    fn done(&self, _: PieceId, _: StepId, _: Vec<Tensor>) {}
    fn failed(&self, _: StepId, _: Failure) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_within_each_other_only_so_deep() {
        let deep: Result<Vec<Level>> = (0..MAX_DEPTH).map(|_| Level::enter("f")).collect();
        let deep = deep.unwrap();
        let refused = Level::enter("f").err().unwrap();
        assert_eq!(refused.code, Code::ResourceExhausted);
        drop(deep);
        assert_eq!(DEPTH.get(), 0);
        assert!(Level::enter("f").is_ok());
    }
}
