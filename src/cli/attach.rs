//! `meshtf attach`: follows a detached run to its end.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use meshtf::node::Node;
use meshtf::protocol::detached::{DetachedState, DetachedStatus, Followed, Line, LineKind};
use meshtf::trainer::stored::state;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::counted;
use meshtf_tensor::memory::Bytes;

use super::bar::bar;
use super::detached::{Found, continued, elsewhere, find, patiently, short_id, standing};
use super::launching::Launching;
use super::output::Lines;
use super::paint::mention;
use super::reach::AskArgs;
use super::signals::{Request, Signals};
use super::states::Brought;
use super::table::short_peer;
use super::train::attached::Attached;
use super::{Exit, Outcome, Trouble, output};

/// The interval of the requests for new lines, and for those of a run that waits until its client has them.
const ASK_EVERY: Duration = Duration::from_millis(200);
const ASK_OWN_EVERY: Duration = Duration::from_millis(50);
/// The remedy for a run whose variables have no value.
const FIRST_VALUES: &str = "; `meshtf submit` gives the variables values before the steps: --init the initial ones, --weights \
                            PATH those of a training";
/// The remedy for a run that no node continues.
const LOST: &str = "; `meshtf runs` shows whether one does later. Otherwise submit it again: the variables are as their tasks \
                    have them, or begin from --init or --weights";

/// Follow a detached run to its end
///
/// Prints the lines that the run's node has kept, and then each new one, as `meshtf submit` does: with --every the values of
/// every K-th step, notices on stderr, and at the end the values of the last step. The exit code is that of the run. Ctrl-C
/// or SIGTERM leaves the run as it is. A run is named by the beginning of its digits, or `last`. Of a training
/// (`meshtf train --detach`) the lines are those of `meshtf train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf attach 3f09c12a
  meshtf attach last
  meshtf attach last --json | jq .values.loss.value
  meshtf attach 3f09c12a --checkpoint run1      the states of a training, too
  run=$(meshtf submit train.json --run train --steps 1000000 --detach)
  meshtf attach $run

Exit codes: 0 if all steps are done, that of the failure if one failed, 2 if its
last values or states are not kept any more, 4 if its node is lost, 143 if
somebody ended it (`meshtf stop`), 130 if Ctrl-C or SIGTERM left it as it is.")]
pub struct Args {
    /// Name of the run, or its beginning; `last` is the newest
    #[arg(value_name = "RUN")]
    run: String,
    /// Folder for saved states of the training, to which the last state of the node is brought whenever there is a new one; the
    /// last three stay, and the best weights come at the end
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Print JSON: an object per line with step and values, with dtype and shape
    #[arg(long)]
    json: bool,
    /// Print less: no progress and no notices; results, warnings and errors stay
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    by: AskArgs,
}

pub(super) async fn attach(args: Args) -> Outcome {
    let mut signals = Signals::listen()?;
    let followed = args.by.ask(&[], async |node: &Node| {
        let found = find(node, &args.run).await?;
        let how = How { json: args.json, quiet: args.quiet, checkpoint: args.checkpoint.as_deref() };
        Following::new(how, found).follow(node).await
    });
    tokio::select! {
        outcome = followed => outcome,
        Request { exit, signal } = signals.next() => {
            // That of SIGTERM is the exit code of a run that somebody has ended.
            let exit = if exit == Exit::Terminated { Exit::Interrupted } else { exit };
            Err(Trouble::new(exit, format!("left by {signal}; run {} is as it was", args.run)))
        }
    }
}

/// How a run is followed.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub json: bool,
    pub quiet: bool,
    /// The folder for the states of a training.
    pub checkpoint: Option<&'a Path>,
}

/// The state of the output of a run.
pub(super) struct Following<'a> {
    args: How<'a>,
    /// This command has begun the run, which ends with it.
    own: Option<&'a Launching>,
    found: Found,
    lines: Lines,
    progress: ProgressBar,
    after: u64,
    /// Values of steps were printed before the last.
    has_steps: bool,
    /// The last step whose values were printed: another node may compute some again.
    printed: u64,
    /// The values of the last step, if they came before the end of the run.
    last: Option<(Vec<String>, Vec<Tensor>)>,
    /// If it is a training.
    training: Option<Attached>,
    brought: Option<Brought>,
    /// The last state that was brought.
    last_state: Option<u64>,
}

impl<'a> Following<'a> {
    pub fn new(args: How<'a>, found: Found) -> Following<'a> {
        let of = found.status.of;
        let is_shown = of >= 2 && !args.quiet && std::io::stderr().is_terminal() && !found.status.state.is_over();
        let progress = bar(of, is_shown && found.status.training.is_none(), "{rate} {eta}");
        let lines = Lines::default();
        let (training, brought, last_state) = (None, None, None);
        Following {
            args,
            own: None,
            found,
            lines,
            progress,
            after: 0,
            has_steps: false,
            printed: 0,
            last: None,
            training,
            brought,
            last_state,
        }
    }

    /// The run ends with this command.
    pub fn own(self, launching: &'a Launching) -> Following<'a> {
        Following { own: Some(launching), ..self }
    }

    pub async fn follow(mut self, node: &Node) -> Outcome {
        let run = self.found.status.run;
        if !self.args.quiet {
            let status = &self.found.status;
            mention(format_args!(
                "{} on {}: {} is at step {}",
                short_id(run),
                self.found.task.short(),
                status.title,
                standing(status)
            ));
        }
        if let Some(folder) = self.args.checkpoint {
            if self.found.status.training.is_none() {
                let why = format!("--checkpoint: run {} is no training, which alone has states", short_id(run));
                return Err(Trouble::input(why));
            }
            self.brought = Some(Brought::to(folder, run)?);
        }
        loop {
            self.own.iter().for_each(|own| own.hold(&self.found.task, run));
            let told = patiently(async || node.follow(&self.found.task, run, self.after).await).await;
            let (followed, tensors) = match told {
                Ok(told) => told,
                // All steps are done, and another node may just make the last one again.
                Err(_) if self.own.is_some() && self.last.is_some() => return self.end_without_node(),
                Err(failure) => match elsewhere(node, run, failure).await {
                    Ok(found) => {
                        (self.found, self.after) = (found, 0);
                        continue;
                    }
                    Err(trouble) => return Err(self.lost(trouble)),
                },
            };
            self.progress.set_position(followed.status.step);
            let mut tensors = tensors.into_iter();
            if let (Some(info), None) = (&followed.training, &self.training) {
                self.training = Some(Attached::new(&followed.status, info, self.args.json, self.args.quiet));
            }
            if followed.missed > 0 && !self.args.quiet {
                let missed = counted(usize::try_from(followed.missed).unwrap_or(usize::MAX), "line");
                self.beside(|| mention(format_args!("{missed} before these are not kept any more")));
            }
            for line in &followed.lines {
                self.show(line, &followed.fetches, &mut tensors)?;
            }
            if let Some(trouble) = self.lines.ended().or_else(|| self.training.as_mut()?.lines().ended()) {
                self.progress.finish_and_clear();
                return Err(trouble);
            }
            if !followed.has_more && followed.status.state.is_over() {
                let found = Found { task: self.found.task.clone(), status: followed.status.clone() };
                match continued(node, &found).await {
                    Ok(None) => {}
                    Ok(Some(found)) => {
                        (self.found, self.after) = (found, 0);
                        continue;
                    }
                    Err(trouble) => return Err(self.lost(trouble)),
                }
            }
            if !followed.has_more {
                self.bring(node, &followed.status).await?;
            }
            match () {
                () if followed.has_more => {}
                () if followed.status.state.is_over() => {
                    self.own.iter().for_each(|own| own.let_go());
                    self.progress.finish_and_clear();
                    return self.end(&followed, &tensors.collect::<Vec<_>>());
                }
                // Its own run waits for it.
                () if self.own.is_some() => tokio::time::sleep(ASK_OWN_EVERY).await,
                () => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    }

    /// No node has the run any more.
    fn lost(&self, trouble: Trouble) -> Trouble {
        self.progress.finish_and_clear();
        let Some(own) = self.own else { return trouble };
        own.let_go();
        trouble.with_hint(LOST)
    }

    /// Prints a message above the bar.
    fn beside(&self, print: impl FnOnce()) {
        match &self.training {
            Some(training) => training.beside(print),
            None => self.progress.suspend(print),
        }
    }

    /// Brings the states that are new.
    async fn bring(&mut self, node: &Node, status: &DetachedStatus) -> Result<(), Trouble> {
        let (Some(brought), Some(states)) = (&mut self.brought, status.training) else { return Ok(()) };
        match brought.bring(node, &self.found.task, states).await {
            Ok(last) => self.last_state = last,
            // If the node is lost, the next request says so.
            Err(trouble) if trouble.exit == Exit::Mesh && !status.state.is_over() => {}
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }

    fn show(
        &mut self,
        line: &Line,
        fetches: &[String],
        tensors: &mut impl Iterator<Item = Tensor>,
    ) -> Result<(), Trouble> {
        self.after = line.number;
        let values: Vec<Tensor> = tensors.take(line.what.tensors(fetches.len())).collect();
        if let Some(training) = &mut self.training {
            return training.show(&line.what, values);
        }
        match &line.what {
            LineKind::Values { step } if *step == self.found.status.of => self.last = Some((fetches.to_vec(), values)),
            LineKind::Values { step } => {
                self.has_steps = true;
                if *step > self.printed {
                    self.printed = *step;
                    self.show_step(*step, fetches, &values);
                }
            }
            LineKind::LeftOut { step, bytes } => {
                let bytes = Bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
                let text = format!("step {step}: its values take {bytes}, too much to be kept");
                self.progress.suspend(|| mention(text));
            }
            LineKind::Notice(text) if !self.args.quiet => self.progress.suspend(|| mention(text)),
            _ => {}
        }
        Ok(())
    }

    fn show_step(&mut self, step: u64, fetches: &[String], values: &[Tensor]) {
        let text = output::step_text(step, fetches, values, self.args.json);
        let lines = &mut self.lines;
        self.progress.suspend(|| lines.line(&text));
    }

    /// The node is lost that had made all steps, whose values have come.
    fn end_without_node(mut self) -> Outcome {
        self.own.iter().for_each(|own| own.let_go());
        self.progress.finish_and_clear();
        if let Some((fetches, values)) = self.last.take().filter(|(_, values)| !values.is_empty()) {
            self.show_last(self.found.status.of, &fetches, &values);
        }
        self.lines.result().map(|()| Exit::Ok)
    }

    /// The values of the last step of all.
    fn show_last(&mut self, step: u64, fetches: &[String], values: &[Tensor]) {
        match self.has_steps || self.args.json {
            true => self.show_step(step, fetches, values),
            false => self.lines.line(&output::values_text(fetches, values)),
        }
    }

    /// The values of the last step, and the end of the run.
    fn end(mut self, followed: &Followed, values: &[Tensor]) -> Outcome {
        let Followed { status, fetches, last, unkept, .. } = followed;
        let states = self.states(status);
        if let Some(training) = self.training.take() {
            self.lines = training.end(status.state == DetachedState::Done);
        }
        let is_done = status.state == DetachedState::Done;
        match last {
            Some(_) if matches!(status.state, DetachedState::Failed(_)) || values.is_empty() => {}
            // It was a line already.
            Some(step) if *step <= self.printed => {}
            Some(step) if !is_done => self.show_step(*step, fetches, values),
            Some(step) => self.show_last(*step, fetches, values),
            None if is_done => {}
            None => unkept.iter().for_each(mention),
        }
        let id = short_id(status.run);
        match (&status.state, unkept) {
            (DetachedState::Failed(failure), _) => {
                let trouble = Trouble::from(failure.clone());
                let is_bare = trouble.is_uninitialized() && states.is_none();
                let trouble = if is_bare { trouble.with_hint(FIRST_VALUES) } else { trouble };
                Err(states.iter().fold(trouble, |trouble, states| trouble.with_hint(&format!("; {states}"))))
            }
            (DetachedState::Stopped { by }, _) => {
                let (by, step, of) = (short_peer(by.as_str()), status.step, status.of);
                let states = states.map_or_else(String::new, |states| format!("; {states}"));
                let why = format!("run {id} was ended by {by} after {step} of {of} steps{states}");
                Err(Trouble::new(Exit::Terminated, why))
            }
            (_, Some(why)) => Err(Trouble::input(format!("run {id} is done, and {why}"))),
            // Of a training that is done, with a folder for its states.
            _ if self.args.checkpoint.is_some() && self.last_state.is_none() => {
                Err(Trouble::input(format!("run {id} is done, and {}", states.unwrap_or_default())))
            }
            _ => {
                states.iter().filter(|_| !self.args.quiet).for_each(mention);
                self.lines.result().map(|()| Exit::Ok)
            }
        }
    }

    /// The place of a training's last state, in a clause.
    fn states(&self, status: &DetachedStatus) -> Option<String> {
        let saved = status.training?.saved;
        let id = short_id(status.run);
        Some(match (saved, self.args.checkpoint, self.last_state) {
            (None, ..) => "there is no saved state".to_owned(),
            (Some(_), Some(folder), Some(step)) => format!("the last state is {}", state(folder, step).display()),
            (Some(step), Some(_), None) => format!("the state after step {step} is not kept any more"),
            (Some(step), None, _) => format!(
                "the state after step {step} is on {} for a day: `meshtf attach {id} --checkpoint DIR` brings it",
                self.found.task.short()
            ),
        })
    }
}
