//! Trainings whose workers share each batch, and may come and go.
//!
//! The workers that are up, the team, train in a session of their own, on a graph with as many replicas. When one is lost or
//! comes, another team begins in another session, from a copy of the state that this process keeps. Variables and queues of
//! such a session are isolated: steps of an earlier team that still end somewhere change nothing of the next one.

mod claim;
mod ends;
mod once;
mod roster;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meshtf_graph::Graph;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Reason};
use meshtf_train::job::job_on;
use meshtf_train::numerics::add_checks;
use meshtf_train::ring::BucketLimits;

use self::claim::Claim;
use self::once::Once;
use self::roster::{Roster, Team};
use super::evaluation::Watch;
use super::fits::{Chunk, parts};
use super::lost::is_loss;
use super::worker_files::Holders;
use super::{Ended, Error, How, Observer, Trainer};
use crate::{Client, Session, SessionOptions, Task};

/// The least time between two copies of the state, and that before the first.
const COPY: Duration = Duration::from_millis(500);
/// So many times as long as a copy took, steps run before the next: copies cost at most 3 % of the time.
const APART: u32 = 33;
/// The interval of looks at the tasks that are up.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The greatest time by which copies that take long are apart.
const MOST: Duration = Duration::from_secs(600);
/// How long the end of a team's session may take: its master may be gone.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);

/// How long tasks are waited for without which no step can be made.
const RETURN: Duration = Duration::from_secs(60);

/// Workers that share each batch, and may come and go.
#[derive(Debug)]
pub(super) struct Elastic {
    /// The graph of the model.
    model: Graph,
    /// The least time between two copies of the state; `None`: there are none.
    copies: Option<Duration>,
    /// The limit of a wait for tasks without which no step can be made.
    returns: Duration,
}

impl Elastic {
    pub fn of(model: &Graph) -> Elastic {
        Elastic { model: model.clone(), copies: Some(COPY), returns: RETURN }
    }
}

/// Whether a failure of a team's session means that what it had on a task is gone: the task, or a link to it, was lost.
fn is_loss_of_state(failure: &Failure) -> bool {
    is_loss(failure) || failure.code == Code::Aborted && failure.reason != Some(Reason::Superseded)
}

/// A state that this process keeps.
pub(super) struct Copy {
    /// The number of steps behind it.
    pub step: u64,
    /// All variables, by name.
    pub values: Vec<(String, Tensor)>,
}

/// The state that passes from one team to the next. The default is that of a training with one team.
#[derive(Default)]
pub(super) struct Course {
    /// The newest copy, from which the next team begins.
    pub copy: Option<Copy>,
    pub watch: Option<Watch>,
    /// The number of steps before the first one of the first team.
    start: Option<u64>,
    /// The number of steps that are known to be done.
    step: u64,
    /// The most steps that any team has done.
    furthest: u64,
    /// Whether this team has made steps, and such that no team before it had done.
    has_stepped: bool,
    has_advanced: bool,
    /// Whether the last state is kept as a copy, for the variables that other sessions see.
    keeps_last: bool,
    /// How it has ended, if the copy is the last state.
    pub ended: Option<How>,
    /// The least time between two copies; `None`: there are none.
    every: Option<Duration>,
    /// When the last one was complete, or the team began.
    since: Option<Instant>,
    took: Duration,
    /// Whether the team is to be another.
    changes: Arc<AtomicBool>,
}

impl Course {
    /// A team begins after this step.
    pub fn begins(&mut self, start: u64) {
        self.start.get_or_insert(start);
        (self.step, self.furthest, self.since) = (start, self.furthest.max(start), Some(Instant::now()));
        (self.has_stepped, self.has_advanced) = (false, false);
    }

    /// A team has reached this step.
    pub fn reached(&mut self, step: u64) {
        (self.step, self.has_stepped) = (step, true);
        self.has_advanced |= step > self.furthest;
        self.furthest = step.max(self.furthest);
    }

    /// Whether the state after the last step is to be kept as a copy.
    pub fn keeps_last(&self) -> bool {
        self.keeps_last
    }

    /// Whether the team is to be another from here on.
    pub fn is_to_change(&self) -> bool {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether it is time for a copy.
    pub fn is_copy_due(&self) -> bool {
        let Some((every, since)) = self.every.zip(self.since) else { return false };
        since.elapsed() >= every.max(self.took.saturating_mul(APART).min(MOST))
    }

    /// Keeps a copy, which was begun at that time.
    pub fn keep(&mut self, step: u64, values: Vec<(String, Tensor)>, began: Instant) {
        self.copy = Some(Copy { step, values });
        (self.took, self.since) = (began.elapsed(), Some(Instant::now()));
    }
}

impl Trainer {
    /// Whether workers that share each batch may come and go: then [`run_among`](Trainer::run_among) runs it.
    #[doc(hidden)]
    pub fn is_elastic(&self) -> bool {
        self.elastic.is_some()
    }

    /// The least time between two copies of the state of an elastic training; without any, the loss of a worker ends it.
    #[doc(hidden)]
    pub fn copy_every(&mut self, every: Option<Duration>) {
        if let Some(elastic) = &mut self.elastic {
            elastic.copies = every;
        }
    }

    /// How long an elastic training waits for tasks without which it cannot make a step; the default is 60 s.
    #[doc(hidden)]
    pub fn wait_for(&mut self, limit: Duration) {
        if let Some(elastic) = &mut self.elastic {
            elastic.returns = limit;
        }
    }

    /// As [`run_until`](Trainer::run_until), in sessions that it opens by itself, so that workers may come and go where
    /// [`fewest`](meshtf_train::file::TrainSection::fewest) is stated: in modes sync and mirrored, the workers that are up share
    /// each batch, as many of them as can do so equally. When one is lost, the others continue from a copy of the state, at most
    /// about a second old or 33 times as long as it takes, up to ten minutes; when one comes, it takes part from the next
    /// boundary between steps on, unless no step can be made with it. Too few workers, and other tasks that are lost, are waited
    /// for, 60 s at most. At the end the variables of the tasks have the values of the last step; until then others see the old
    /// ones. They keep those, and [`Observer::noted`] says so, where tasks are missing when it is stopped, or up to that limit
    /// after the last step; the latter is an error if there is no folder for states.
    ///
    /// ```
    /// use meshtf::model::{Initializer, Model};
    /// use meshtf::tensor::DType;
    /// use meshtf::train::{Examples, Optimizer, Options, Sections, Trainer, Training, UpdateMode};
    /// use meshtf::{BackendChoice, LocalCluster, Task};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let m = Model::new();
    /// let x = m.placeholder("x", DType::F32, [None]);
    /// (x * m.variable("w", [], Initializer::Zeros) - 1.0).square().mean().named("loss");
    /// let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.25), 2);
    /// sections.train.epochs = Some(3);
    /// // One worker is enough; if there are two, each takes half of a batch.
    /// (sections.train.mode, sections.train.fewest, sections.train.workers) = (UpdateMode::Mirrored, Some(1), 2);
    /// let examples = Examples::new(vec![("x".into(), [1f32, 2.0].into())])?;
    /// let trainer = Trainer::new(m.finish()?, sections, examples, &Options::default())?;
    ///
    /// let cluster = LocalCluster::start(&[Task::new("worker", 1)], BackendChoice::Auto)?;
    /// assert_eq!(trainer.run_among(&cluster, &mut (), std::future::pending()).await?.step, 3);
    /// # Ok::<(), meshtf::Failure>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`run`](Trainer::run).
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the variables have the values that they had before. Saved states are whole.
    pub async fn run_among(
        &self,
        client: &impl Client,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, Error> {
        let Some(elastic) = &self.elastic else {
            let session = client.session(self.graph().clone(), None, SessionOptions::default()).await?;
            let ended = self.run_until(&session, observer, stop).await;
            // Its end is no part of the result.
            let _ = session.close().await;
            return ended;
        };
        self.clear_folder()?;
        // Other trainings of these variables end, as where the workers are fixed.
        let claim = Claim::of(self, client).await?;
        let (mut observer, mut roster) = (Once::new(observer), Roster::new(self, elastic, client));
        let mut course = Course { every: elastic.copies, keeps_last: true, ..Course::default() };
        let is_asked = AtomicBool::new(false);
        tokio::pin!(stop);
        loop {
            let asked = async {
                if !is_asked.load(Ordering::Relaxed) {
                    stop.as_mut().await;
                    is_asked.store(true, Ordering::Relaxed);
                }
            };
            tokio::pin!(asked);
            let (team, trainer) = tokio::select! {
                found = roster.find(&mut observer) => match found {
                    Ok(found) => found,
                    Err(error) => return self.ended_by(error, &course, &mut observer).await,
                },
                () = asked.as_mut() => return self.stopped(&course, &mut observer).await,
            };
            roster.report(&team, &course, &mut observer)?;
            let of = (&team, &trainer, &roster);
            let (ran, session) = self.train_with(client, of, &mut observer, asked, (&mut course, &claim)).await;
            // The memory of its variables is free before the next team begins.
            if let Some(session) = session {
                let _ = tokio::time::timeout(CLOSES_WITHIN, session.close()).await;
            }
            let error = match ran {
                Ok(None) => {
                    roster.changed(team);
                    continue;
                }
                Ok(Some(ended)) => match self.hand_over(client, (&trainer, roster.master()), &course, &claim).await {
                    Ok(()) => {
                        claim.end().await;
                        return Ok(ended);
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            match error {
                Error::Failed(failure) if roster.survives(&team, &failure, &course) => {
                    roster.lost(team, failure, &course).await;
                }
                error => return self.ended_by(error, &course, &mut observer).await,
            }
        }
    }

    /// Trains with a team until the end, or, if the result is `None`, until it is to be another. Also returns its session, if
    /// it was opened.
    async fn train_with<C: Client>(
        &self,
        client: &C,
        (team, trainer, roster): (&Team, &Trainer, &Roster<'_, C>),
        observer: &mut Once<'_>,
        stop: impl Future<Output = ()>,
        (course, claim): (&mut Course, &Claim<'_, C>),
    ) -> (Result<Option<Ended>, Error>, Option<Session>) {
        (course.has_stepped, course.has_advanced) = (false, false);
        course.changes.store(false, Ordering::Relaxed);
        // A process that takes the place of a lost one has no variables and no batches: the session must not continue with it.
        let options = SessionOptions { isolated: true, ends_with_its_tasks: true, ..SessionOptions::default() };
        let session = match client.session(trainer.graph().clone(), roster.master(), options).await {
            Ok(session) => session,
            Err(failure) => return (Err(failure.into()), None),
        };
        let changes = Arc::clone(&course.changes);
        let looks = async {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                changes.store(roster.is_to_change(team), Ordering::Relaxed);
            }
        };
        // On the heap: without optimisation, the future is large.
        let run = Box::pin(trainer.run_alone(&session, observer, stop, course));
        let ran = tokio::select! {
            ran = run => ran,
            failure = claim.superseded() => Err(failure.into()),
            () = looks => unreachable!("it has no end"),
        };
        let ended = |(_, how, step): (u64, Option<How>, u64)| {
            let start = course.start.unwrap_or(step);
            how.map(|how| Ended { start, step, how })
        };
        (ran.map(ended), Some(session))
    }

    /// Gives the variables that other sessions see the values of the last step, unless another training has claimed them.
    async fn hand_over<C: Client>(
        &self,
        client: &C,
        (trainer, master): (&Trainer, Option<&Task>),
        course: &Course,
        claim: &Claim<'_, C>,
    ) -> Result<(), Error> {
        let Some(copy) = &course.copy else { return Ok(()) };
        claim.renew(trainer.claimed()).await?;
        let own = client.session(trainer.graph().clone(), master, SessionOptions::default()).await?;
        trainer.restore(&own, &copy.values).await?;
        Ok(own.close().await?)
    }

    /// This training with the workers of these numbers.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    fn with_workers(&self, model: &Graph, workers: &[usize], traces: bool) -> Result<Trainer, Error> {
        let mut sections = self.sections.clone();
        (sections.train.workers, sections.train.fewest) = (workers.len(), None);
        let rows = sections.train.rows(sections.data.batch)?;
        let parts = parts(model, &self.examples, rows)?;
        let checks = self.numerics.is_some();
        let limits = BucketLimits::default();
        let mut job = job_on(workers, model.clone(), &sections, &parts, 2 * self.block, checks, limits)?;
        let numerics = checks.then(|| add_checks(&mut job)).transpose()?;
        Ok(Trainer {
            job,
            sections,
            examples: self.examples.clone(),
            held_out: self.held_out.clone(),
            constants: self.constants.clone(),
            classes: self.classes.clone(),
            chunk: Chunk::of(model, self.held_out.as_ref().unwrap_or(&self.examples), rows)?,
            order: self.order.clone(),
            block: self.block,
            steps: self.steps,
            record: self.record,
            weights_every: self.weights_every,
            every: self.every,
            traces: self.traces && traces,
            folder: self.folder.clone(),
            resume: self.resume,
            replaces_best: self.replaces_best,
            weights: self.weights.as_ref().map(Arc::clone),
            numerics,
            holders: Holders::default(),
            elastic: None,
        })
    }
}
