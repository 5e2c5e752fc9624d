//! `meshtf train --detach`: a node trains, with the examples and the weights that this command sends it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use meshtf::Client;
use meshtf::node::{NewRun, NewTraining};
use meshtf::protocol::training::{MAX_EXAMPLE_BYTES, SavedEvery, SentState, StateFile, TrainingOptions};
use meshtf::trainer::sent::{Sent, sent};
use meshtf::trainer::stored::{BEST_FILE, state, states, step_of};
use meshtf::trainer::{Every, Found, Options, Trainer};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::counted;
use meshtf_tensor::memory::Budget;
use serde_json::json;

use super::{Args, Attempt, Files, Resume, look_up, missing, summary};
use crate::cli::detached::short_id;
use crate::cli::launching::Launching;
use crate::cli::reach::Reached;
use crate::cli::signals::interrupted;
use crate::cli::states::{Dedicated, check_folder, dedicate};
use crate::cli::{Exit, Outcome, Trouble, output, stages};

/// The interval of saved states if none is given: whoever began it cannot see that its node ends.
const EVERY: Duration = Duration::from_secs(600);

impl Args {
    /// Refuses flags that need this process while the training runs.
    pub(super) fn check_detached(&self) -> Result<(), Trouble> {
        let attach = "`meshtf attach RUN --json` prints the values";
        let refused = [
            (self.host.local, "--local", "only a node of a mesh trains without this process"),
            (self.log.is_some(), "--log", attach),
            (self.plot.is_some(), "--plot", attach),
            (self.trace.is_some(), "--trace", "`meshtf trace` and `meshtf top` show the steps of a session"),
            (self.retries > 0, "--retries", "its steps survive the loss of a task by copies of the state (--guard)"),
            (self.keep.is_some(), "--keep", "the node keeps the last two states and the best"),
        ];
        match refused.into_iter().find(|(is_given, ..)| *is_given) {
            Some((_, flag, why)) => Err(Trouble::input(format!("{flag} cannot be used with --detach: {why}"))),
            None => Ok(()),
        }
    }

    /// The state from which the training is to continue, and its files.
    fn state(&self) -> Result<Option<(SentState, Vec<Tensor>)>, Trouble> {
        let (Some(folder), Some(resume)) = (&self.checkpoint, self.resume) else { return Ok(None) };
        let at = |path: &Path, why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", path.display()));
        let Some(last) = states(folder).unwrap_or_default().pop() else {
            return match resume {
                Resume::Always => Err(at(folder, &"there is no saved state to resume from")),
                Resume::IfAny => Ok(None),
            };
        };
        let step = step_of(&last).ok_or_else(|| at(&last, &"its name does not say after which step it was saved"))?;
        let of = SentState { step, has_best: folder.join(BEST_FILE).exists() };
        let path = |file: StateFile| match file {
            StateFile::Step(step) => state(folder, step),
            StateFile::Best => folder.join(BEST_FILE),
        };
        let read = |path: std::path::PathBuf| fs::read(&path).map(Tensor::vector).map_err(|error| at(&path, &error));
        let files = of.files().map(|file| read(path(file))).collect::<Result<_, _>>()?;
        Ok(Some((of, files)))
    }
}

/// A training whose errors are known, as far as this process can see them.
struct Ready {
    read: Files,
    trainer: Trainer,
    sent: Sent,
    state: Option<(SentState, Vec<Tensor>)>,
}

impl Ready {
    fn of(args: &Args, read: Files, found: &Found) -> Result<Ready, Trouble> {
        let state = args.state()?;
        if let (Some(folder), None) = (&args.checkpoint, &state) {
            check_folder(folder, None)?;
        }
        let loaded = args.load(&read, found)?;
        let text = Tensor::scalar(read.text.clone().into_bytes()).heap_bytes();
        let sent = sent(&loaded.data, MAX_EXAMPLE_BYTES.saturating_sub(text))?;
        let weights = args.weights.clone().filter(|_| state.is_none());
        let options = Options { steps: args.steps, weights, check_numerics: args.check_numerics, ..Options::default() };
        let trainer = Trainer::new(read.graph.clone(), read.sections.clone(), loaded.data, &options);
        let trainer = trainer.map_err(|error| read.explained(error))?;
        Ok(Ready { read, trainer, sent, state })
    }
}

/// Has the node of the master train.
pub(super) async fn detach(args: Args, budget: &Arc<Budget>, attempt: &Attempt) -> Outcome {
    args.check_detached()?;
    let read = Files::read(&args)?;
    let needed = read.needed(attempt.is_after_loss);
    let (reached, found) = look_up(&args, &read, budget, &needed).await?;
    let ready = Ready::of(&args, read, &found)?;
    let reached = match reached {
        Some(reached) => reached,
        None => args.host.reach(ready.trainer.tasks(), budget).await?,
    };
    let launching = Launching::default();
    let outcome = async {
        if !missing(&reached, &needed).is_empty() {
            return Err(Trouble::task_down());
        }
        tokio::select! {
            outcome = launch(&args, ready, &reached, (&launching, attempt)) => outcome,
            trouble = interrupted() => Err(trouble),
        }
    };
    let outcome = match outcome.await {
        Ok(exit) => Ok(exit),
        Err(trouble) => {
            let trouble = launching.give_up(&reached, trouble.not_up(&missing(&reached, &needed))).await;
            Err(reached.explain_trouble(trouble))
        }
    };
    reached.close().await;
    outcome.map_err(|trouble| trouble.in_layer(&args.graph, || fs::read(&args.graph).ok()))
}

async fn launch(args: &Args, ready: Ready, reached: &Reached, (launching, attempt): (&Launching, &Attempt)) -> Outcome {
    let Reached::Mesh { node, master } = reached else {
        return Err(Trouble::input("--detach: only a node of a mesh trains without this process"));
    };
    let first = || node.cluster().members().next().map(|first| first.task.clone());
    let master = master.clone().or_else(first).ok_or_else(|| Trouble::mesh("no node of the mesh is up"))?;
    let Ready { read, trainer, sent: Sent { train, evaluate, tensors: data }, state } = ready;
    if let Some(step) = state.as_ref().map(|(state, _)| state.step).filter(|step| *step >= trainer.steps()) {
        eprintln!("{step} steps are done already, of {}", trainer.steps());
        return Ok(Exit::Ok);
    }
    if !args.quiet {
        eprintln!("{}", summary::size(&trainer));
        trainer.pipeline().into_iter().flat_map(stages::as_lines).for_each(|line| eprintln!("{line}"));
    }
    let every = args.every.and_then(|every| match every {
        Every::Steps(steps) => Some(SavedEvery::Steps(steps)),
        Every::Time(time) => Some(SavedEvery::Time(time)),
        _ => None,
    });
    let every = every.or(Some(SavedEvery::Time(EVERY)));
    let options = TrainingOptions {
        steps: args.steps,
        every,
        report: args.report,
        check_numerics: args.check_numerics,
        guard: args.guard.every(node.cluster().members().count()),
        wait_for: args.wait_for,
    };
    let file = args.graph.file_name().unwrap_or(args.graph.as_os_str());
    let new = NewTraining {
        title: file.to_string_lossy().into_owned(),
        graph: &read.graph,
        text: read.text,
        init: read.sections.init.clone(),
        variables: read.sections.train.variables.clone(),
        train,
        evaluate,
        data,
        weights: trainer.weights().map(|(name, value)| (name.to_owned(), value.clone())).collect(),
        state,
        options,
    };
    let run = NewRun::name();
    let dedicated = args.checkpoint.as_ref().map(|folder| dedicate(folder, run)).transpose()?;
    // From here on it may begin, whatever becomes of the answer: it is not begun twice.
    attempt.has_begun.store(true, Ordering::Relaxed);
    let launched = launching.ask(Some(&master), run, node.launch_training(&master, run, new)).await;
    if launched.is_err() {
        dedicated.into_iter().for_each(Dedicated::undo);
    }
    let status = launched?;
    let (id, on) = (short_id(status.run), Task::short(&master));
    if args.json {
        output::json_value(&json!({ "run": status.run.to_string(), "node": on, "steps": trainer.steps() }))?;
    } else {
        output::line(&id)?;
    }
    if !args.quiet {
        let steps = counted(usize::try_from(trainer.steps()).unwrap_or(usize::MAX), "step");
        let folder = args.checkpoint.as_ref().map_or_else(|| "DIR".to_owned(), |folder| folder.display().to_string());
        eprintln!(
            "{on} trains {steps}: `meshtf attach {id} --checkpoint {folder}` follows it and brings its states, `meshtf stop {id}` \
             ends it"
        );
    }
    Ok(Exit::Ok)
}
