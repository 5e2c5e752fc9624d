//! The steps of a server: each request has one of its own, or shares one with those that wait at the same time.
//!
//! Requests that feed the same inputs, whose values differ in the number of examples (the first dimension) alone, are
//! concatenated, and the outputs are divided among them again. If an output has no such dimension, the model cannot be computed
//! so, and from then on each request has its own step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Data, Shape, Tensor, memory};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::{Asked, Serving};

/// Maximum number of steps under way.
const MAX_STEPS: usize = 16;
/// The same if requests share steps: while one is computed and another is on its way, a third gathers requests.
const MAX_SHARED_STEPS: usize = 3;
/// Maximum number of requests that wait for a step.
const MAX_WAITING: usize = 256;

/// The queue of requests.
pub(super) struct Batches {
    /// Maximum number of examples of a step that is shared.
    most: usize,
    places: Arc<Semaphore>,
    queue: mpsc::Sender<Job>,
    /// Whether the model was found to mix the examples of a step.
    is_mixing: AtomicBool,
}

/// A request that waits.
pub(super) struct Job {
    asked: Asked,
    examples: usize,
    answer: oneshot::Sender<Result<Vec<Tensor>>>,
}

impl Batches {
    pub fn new(most: usize) -> (Batches, mpsc::Receiver<Job>) {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        let places = Arc::new(Semaphore::new(if most > 1 { MAX_SHARED_STEPS } else { MAX_STEPS }));
        (Batches { most, places, queue, is_mixing: AtomicBool::new(false) }, waiting)
    }

    /// The outputs of a request.
    ///
    /// # Cancellation
    /// A request that is dropped while it waits is not computed.
    pub async fn answer(&self, serving: &Serving, asked: Asked) -> Result<Vec<Tensor>> {
        let shared = examples(&asked).filter(|count| *count < self.most && !self.is_mixing.load(Ordering::Relaxed));
        let Some(examples) = shared else {
            let _place = self.places.acquire().await.map_err(|_| closed())?;
            return serving.step(&asked.feeds, &asked.fetches).await;
        };
        let (answer, answered) = oneshot::channel();
        self.queue.send(Job { asked, examples, answer }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

fn closed() -> Failure {
    Failure::new(Code::Unavailable, "the server is being closed")
}

/// The number of examples of a request: the first dimension of all its values.
fn examples(asked: &Asked) -> Option<usize> {
    let mut counts = asked.feeds.iter().map(|(_, value)| value.dims().first().copied());
    let first = counts.next()??;
    (first > 0 && counts.all(|count| count == Some(first))).then_some(first)
}

/// Computes the requests that share steps, until it is dropped.
pub(super) async fn work(serving: Arc<Serving>, mut queue: mpsc::Receiver<Job>) {
    let (mut held, mut steps) = (VecDeque::new(), JoinSet::new());
    while let Ok(place) = Arc::clone(&serving.batches.places).acquire_owned().await {
        while steps.try_join_next().is_some() {}
        let first = match held.pop_front() {
            Some(job) => job,
            None => match queue.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let jobs = gathered(first, &mut held, &mut queue, serving.batches.most);
        steps.spawn(compute(Arc::clone(&serving), jobs, place));
    }
}

/// A request, and those that wait and can be computed with it. The others are held, in their order.
fn gathered(first: Job, held: &mut VecDeque<Job>, queue: &mut mpsc::Receiver<Job>, most: usize) -> Vec<Job> {
    let (mut jobs, mut later) = (vec![first], VecDeque::new());
    let mut count = jobs[0].examples;
    // As many are looked at as may wait.
    while count < most && later.len() < MAX_WAITING {
        let Some(job) = held.pop_front().or_else(|| queue.try_recv().ok()) else { break };
        if goes_with(&jobs[0].asked, &job.asked) && count + job.examples <= most {
            count += job.examples;
            jobs.push(job);
        } else {
            later.push_back(job);
        }
    }
    later.append(held);
    *held = later;
    jobs
}

/// Whether two requests differ in their examples alone.
fn goes_with(one: &Asked, other: &Asked) -> bool {
    let alike = |((place, value), (other_place, other)): (&(usize, Tensor), &(usize, Tensor))| {
        place == other_place && value.dtype() == other.dtype() && value.dims().get(1..) == other.dims().get(1..)
    };
    one.fetches == other.fetches
        && one.feeds.len() == other.feeds.len()
        && one.feeds.iter().zip(&other.feeds).all(alike)
}

/// Computes requests in one step, and answers them.
async fn compute(serving: Arc<Serving>, mut jobs: Vec<Job>, _place: OwnedSemaphorePermit) {
    jobs.retain(|job| !job.answer.is_closed());
    if jobs.len() > 1 {
        match together(&serving, &jobs).await {
            Ok(Some(answers)) => {
                lock(&serving.counts).together += jobs.len() as u64;
                for (job, answer) in jobs.into_iter().zip(answers) {
                    let _gone = job.answer.send(Ok(answer));
                }
                return;
            }
            Ok(None) => {
                if !serving.batches.is_mixing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the outputs of {} have no row for each example: requests are not computed together",
                        serving.model.name
                    );
                }
            }
            // One of them may be the reason: each is computed by itself.
            Err(failure) if failure.code == Code::InvalidArgument => {}
            Err(failure) => {
                for job in jobs {
                    let _gone = job.answer.send(Err(failure.clone()));
                }
                return;
            }
        }
    }
    for job in jobs {
        let answer = serving.step(&job.asked.feeds, &job.asked.fetches).await;
        let _gone = job.answer.send(answer);
    }
}

/// The answers of requests that are computed in one step; `None` if an output does not have a row for each example.
async fn together(serving: &Serving, jobs: &[Job]) -> Result<Option<Vec<Vec<Tensor>>>> {
    let first = &jobs[0].asked;
    let feeds: Vec<(usize, Tensor)> = (0..first.feeds.len())
        .map(|i| {
            let values: Vec<&Tensor> = jobs.iter().map(|job| &job.asked.feeds[i].1).collect();
            Ok((first.feeds[i].0, joined(&values)?))
        })
        .collect::<Result<_>>()?;
    let outputs = serving.step(&feeds, &first.fetches).await?;
    let counts: Vec<usize> = jobs.iter().map(|job| job.examples).collect();
    let total = counts.iter().sum::<usize>();
    if outputs.iter().any(|output| output.dims().first() != Some(&total)) {
        return Ok(None);
    }
    let mut answers: Vec<Vec<Tensor>> = jobs.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for output in &outputs {
        let mut from = 0;
        for (answer, count) in answers.iter_mut().zip(&counts) {
            answer.push(rows(output, from, *count)?);
            from += count;
        }
    }
    Ok(Some(answers))
}

/// Tensors of one dtype, whose shapes differ in the first dimension alone, one after the other.
fn joined(all: &[&Tensor]) -> Result<Tensor> {
    let mut dims = all[0].dims().to_vec();
    dims[0] = all.iter().map(|one| one.dims()[0]).sum();
    memory::admit(all.iter().map(|one| one.byte_len()).sum())?;
    if let Data::String(_) = all[0].data() {
        let texts = all.iter().map(|one| one.slice::<Vec<u8>>()).collect::<Result<Vec<_>>>()?;
        return Tensor::new(Shape::from(dims), Data::String(texts.concat()));
    }
    let bytes: Vec<&[u8]> = all.iter().map(|one| one.bytes().unwrap_or_default()).collect();
    Tensor::from_bytes(all[0].dtype(), Shape::from(dims), &bytes.concat())
}

/// `count` rows of a tensor.
fn rows(whole: &Tensor, from: usize, count: usize) -> Result<Tensor> {
    let mut dims = whole.dims().to_vec();
    let all = std::mem::replace(&mut dims[0], count).max(1);
    let of = |len: usize| (len / all * from)..(len / all * (from + count));
    memory::admit(whole.byte_len() / all * count)?;
    if let Data::String(texts) = whole.data() {
        return Tensor::new(Shape::from(dims), Data::String(texts[of(texts.len())].to_vec()));
    }
    let bytes = whole.bytes().unwrap_or_default();
    Tensor::from_bytes(whole.dtype(), Shape::from(dims), &bytes[of(bytes.len())])
}

/// One row of a tensor, without the first dimension.
pub(super) fn row(whole: &Tensor, at: usize) -> Result<Tensor> {
    let inner = Shape::from(whole.dims()[1..].to_vec());
    rows(whole, at, 1)?.reshaped(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rows: usize, value: f32) -> Job {
        let feeds = vec![(0, Tensor::from_vec([rows, 2], vec![value; 2 * rows]))];
        let asked = Asked { feeds, fetches: vec![0] };
        Job { examples: examples(&asked).unwrap(), asked, answer: oneshot::channel().0 }
    }

    #[test]
    fn tensors_are_joined_and_divided_by_rows() {
        let (a, b) = (Tensor::from_vec([1, 2], vec![1i32, 2]), Tensor::from_vec([2, 2], vec![3i32, 4, 5, 6]));
        let whole = joined(&[&a, &b]).unwrap();
        assert_eq!(whole, Tensor::from_vec([3, 2], vec![1i32, 2, 3, 4, 5, 6]));
        assert_eq!((rows(&whole, 0, 1).unwrap(), rows(&whole, 1, 2).unwrap()), (a, b));
        let text = |words: &[&str]| Tensor::vector(words.iter().map(|word| word.as_bytes().to_vec()).collect());
        let whole = joined(&[&text(&["a", "b"]), &text(&["c"])]).unwrap();
        assert_eq!((rows(&whole, 1, 2).unwrap(), whole), (text(&["b", "c"]), text(&["a", "b", "c"])));
    }

    #[test]
    fn requests_are_gathered_up_to_the_limit_and_in_their_order() {
        let (sender, mut queue) = mpsc::channel(9);
        for (rows, value) in [(2, 1.0), (3, 2.0), (1, 3.0)] {
            sender.try_send(job(rows, value)).map_err(drop).unwrap();
        }
        let mut other = job(1, 4.0);
        other.asked.fetches = vec![];
        sender.try_send(other).map_err(drop).unwrap();
        let mut held = VecDeque::new();
        let firsts = |jobs: &[Job]| -> Vec<f32> {
            jobs.iter().map(|job| job.asked.feeds[0].1.slice::<f32>().unwrap()[0]).collect()
        };
        let jobs = gathered(job(1, 0.0), &mut held, &mut queue, 4);
        assert_eq!(firsts(&jobs), [0.0, 1.0, 3.0], "the one of three rows would be too many");
        let next = held.pop_front().unwrap();
        assert_eq!(firsts(&gathered(next, &mut held, &mut queue, 4)), [2.0]);
        assert_eq!(firsts(&Vec::from(held)), [4.0], "it asks for other outputs");
    }

    #[test]
    fn examples_are_the_first_dimension_of_all_values() {
        let of =
            |values: Vec<Tensor>| examples(&Asked { feeds: values.into_iter().enumerate().collect(), fetches: vec![] });
        assert_eq!(of(vec![Tensor::vector(vec![1, 2]), Tensor::from_vec([2, 1], vec![1, 2])]), Some(2));
        assert_eq!(of(vec![Tensor::vector(vec![1, 2]), Tensor::vector(vec![1])]), None);
        assert_eq!(of(vec![Tensor::scalar(1)]), None);
        assert_eq!(of(vec![]), None);
    }
}
