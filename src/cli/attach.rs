//! `meshtf attach`: follows a detached run to its end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use meshtf::node::Node;
use meshtf::protocol::detached::{DetachedState, Followed, Line, LineKind};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, counted};
use meshtf_tensor::memory::Bytes;
use serde_json::json;

use super::bar::bar;
use super::detached::{Found, anywhere, find, short_id, standing};
use super::output::Lines;
use super::paint::mention;
use super::reach::AskArgs;
use super::signals::{Request, Signals};
use super::table::short_peer;
use super::{Exit, Outcome, Trouble, output};

/// The interval of the requests for new lines.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How long another node has to continue the run of one that is lost.
const CONTINUED_WITHIN: Duration = Duration::from_secs(15);

/// Follow a detached run to its end
///
/// Prints the lines that the run's node has kept, and then each new one, as `meshtf submit` does: with --every the values of
/// every K-th step, notices on stderr, and at the end the values of the last step. The exit code is that of the run. Ctrl-C
/// leaves the run as it is. A run is named by the beginning of its digits, or `last`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf attach 3f09c12a
  meshtf attach last
  meshtf attach last --json | jq .values.loss.value
  run=$(meshtf submit train.json --run train --steps 1000000 --detach)
  meshtf attach $run

Exit codes: 0 if all steps are done, that of the failure if one failed, 143 if
somebody ended it (`meshtf stop`), 130 if Ctrl-C left it as it is.")]
pub struct Args {
    /// Name of the run, or its beginning; `last` is the newest
    #[arg(value_name = "RUN")]
    run: String,
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
    args.by
        .ask(&[], async |node: &Node| {
            let work = async {
                let found = find(node, &args.run).await?;
                Following::new(&args, found).follow(node).await
            };
            tokio::select! {
                outcome = work => outcome,
                Request { exit, signal } = signals.next() => {
                    Err(Trouble::new(exit, format!("left by {signal}; run {} is as it was", args.run)))
                }
            }
        })
        .await
}

/// The state of the output of a run.
struct Following<'a> {
    args: &'a Args,
    found: Found,
    lines: Lines,
    progress: ProgressBar,
    after: u64,
    /// Values of steps were printed before the last.
    has_steps: bool,
    /// The last step whose values were printed: another node may compute some again.
    printed: u64,
}

impl Following<'_> {
    fn new(args: &Args, found: Found) -> Following<'_> {
        let of = found.status.of;
        let is_shown = of >= 2 && !args.quiet && std::io::stderr().is_terminal() && !found.status.state.is_over();
        let progress = bar(of, is_shown, "{rate} {eta}");
        Following { args, found, lines: Lines::default(), progress, after: 0, has_steps: false, printed: 0 }
    }

    async fn follow(mut self, node: &Node) -> Outcome {
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
        loop {
            let (followed, tensors) = match node.follow(&self.found.task, run, self.after).await {
                Ok(told) => told,
                Err(failure) => {
                    self.continued(node, failure).await?;
                    continue;
                }
            };
            self.progress.set_position(followed.status.step);
            let mut tensors = tensors.into_iter();
            if followed.missed > 0 && !self.args.quiet {
                let missed = counted(usize::try_from(followed.missed).unwrap_or(usize::MAX), "line");
                self.progress.suspend(|| mention(format_args!("{missed} before these are not kept any more")));
            }
            for line in &followed.lines {
                self.show(line, &followed.fetches, &mut tensors);
            }
            match () {
                () if followed.has_more => {}
                () if followed.status.state.is_over() => {
                    self.progress.finish_and_clear();
                    return self.end(&followed, &tensors.collect::<Vec<_>>());
                }
                () => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    }

    /// The node of the run is lost, or has another process: another node may continue the run.
    async fn continued(&mut self, node: &Node, failure: Failure) -> Result<(), Trouble> {
        if !matches!(failure.code, Code::Unavailable | Code::NotFound) {
            return Err(failure.into());
        }
        let began = Instant::now();
        while began.elapsed() < CONTINUED_WITHIN {
            tokio::time::sleep(ASK_EVERY).await;
            if let Some(found) = anywhere(node, self.found.status.run).await {
                (self.found, self.after) = (found, 0);
                return Ok(());
            }
        }
        let within = CONTINUED_WITHIN.as_secs();
        Err(Trouble::from(failure).with_hint(&format!("; no other node continued the run within {within} s")))
    }

    fn show(&mut self, line: &Line, fetches: &[String], tensors: &mut impl Iterator<Item = Tensor>) {
        self.after = line.number;
        match &line.what {
            LineKind::Values { step } => {
                let values: Vec<Tensor> = tensors.take(fetches.len()).collect();
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
    }

    fn show_step(&mut self, step: u64, fetches: &[String], values: &[Tensor]) {
        let text = match self.args.json {
            true => json!({ "step": step, "values": output::values_json(fetches, values) }).to_string(),
            false => {
                let text = output::values_text(fetches, values);
                let gap = if text.contains('\n') { '\n' } else { ' ' };
                format!("step {step}:{gap}{text}")
            }
        };
        let lines = &mut self.lines;
        self.progress.suspend(|| lines.line(&text));
    }

    /// The values of the last step, and the end of the run.
    fn end(mut self, followed: &Followed, values: &[Tensor]) -> Outcome {
        let Followed { status, fetches, last, .. } = followed;
        let is_done = status.state == DetachedState::Done;
        match last {
            Some(_) if matches!(status.state, DetachedState::Failed(_)) || values.is_empty() => {}
            Some(step) if self.has_steps || !is_done || self.args.json => self.show_step(*step, fetches, values),
            Some(_) => self.lines.line(&output::values_text(fetches, values)),
            None => status.notice.iter().for_each(mention),
        }
        let id = short_id(status.run);
        match &status.state {
            DetachedState::Failed(failure) => Err(failure.clone().into()),
            DetachedState::Stopped { by } => {
                let (by, step, of) = (short_peer(by.as_str()), status.step, status.of);
                Err(Trouble::new(Exit::Terminated, format!("run {id} was ended by {by} after {step} of {of} steps")))
            }
            _ => self.lines.result().map(|()| Exit::Ok),
        }
    }
}
