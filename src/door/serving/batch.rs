//! The steps of a server: each request has one of its own, or shares one with those that wait at the same time.
//!
//! Requests that feed the same inputs, whose values differ in the number of examples (the first dimension) alone, are
//! concatenated, and the outputs are divided among them again: if the model leaves the first dimension of all of these inputs
//! and outputs open. If an output has another one than the examples nevertheless, the model does not compute each example by
//! itself, and from then on each request has its own step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Data, Shape, Tensor, memory};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::{Asked, Held, ServedModel, ServedPort, Serving};

/// Maximum number of steps under way.
const MAX_STEPS: usize = 16;
/// The same if requests share steps. Requests gather while so many are under way.
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
    /// The place of its body among those that may be in memory.
    _held: Held,
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
    pub async fn answer(&self, serving: &Serving, asked: Asked, held: Held) -> Result<Vec<Tensor>> {
        let is_open = |examples: &usize| *examples < self.most && !self.is_mixing.load(Ordering::Relaxed);
        let shared = examples(&asked).filter(is_open).filter(|_| is_by_example(&serving.model, &asked));
        let Some(examples) = shared else {
            let _place = self.places.acquire().await.map_err(|_| closed())?;
            return serving.step(&asked.feeds, &asked.fetches).await;
        };
        let (answer, answered) = oneshot::channel();
        self.queue.send(Job { asked, examples, answer, _held: held }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| Failure::new(Code::Internal, "the step ended without an answer"))?
    }
}

/// Whether the model leaves the first dimension of what a request gives and takes open, and no value that stands in for an input
/// has one of its own.
fn is_by_example(model: &ServedModel, asked: &Asked) -> bool {
    let first = |port: &ServedPort| port.shape.0.as_ref().map(|sizes| sizes.first().copied());
    let is_open = |port: &ServedPort| first(port) == Some(Some(None));
    let is_one = |size: Option<usize>| size.is_none_or(|size| size == 1);
    let is_given = |place: usize| asked.feeds.iter().any(|(own, _)| *own == place);
    let is_fed = |tensor: &str| asked.feeds.iter().any(|(place, _)| model.inputs[*place].tensor == tensor);
    let left_out = model.inputs.iter().enumerate().filter(|(place, _)| !is_given(*place)).map(|(_, port)| port);
    asked.feeds.iter().all(|(place, _)| is_open(&model.inputs[*place]))
        && asked.fetches.iter().all(|place| is_open(&model.outputs[*place]))
        && model.fixed.iter().filter(|(tensor, _)| !is_fed(tensor)).all(|(_, value)| is_one(value.dims().first().copied()))
        // A default has the shape that the model states.
        && left_out.into_iter().all(|port| matches!(first(port), Some(None | Some(Some(1)))))
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
    loop {
        while steps.try_join_next().is_some() {}
        let first = match held.pop_front() {
            Some(job) => job,
            None => match queue.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let Ok(place) = Arc::clone(&serving.batches.places).acquire_owned().await else { return };
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
        if job.answer.is_closed() {
            // Its client is gone.
        } else if goes_with(&jobs[0].asked, &job.asked) && count + job.examples <= most {
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
                    serving.batches.places.add_permits(MAX_STEPS - MAX_SHARED_STEPS);
                    tracing::warn!(
                        "the outputs of {} have no row for each example: requests are not computed together",
                        serving.model.name
                    );
                }
            }
            Err(failure) if matches!(failure.code, Code::Unavailable | Code::Aborted | Code::Cancelled) => {
                for job in jobs {
                    let _gone = job.answer.send(Err(failure.clone()));
                }
                return;
            }
            // One of them, or their number, may be the reason: each is computed by itself.
            Err(_) => {}
        }
    }
    for job in jobs.into_iter().filter(|job| !job.answer.is_closed()) {
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
    use meshtf_tensor::{DType, PartialShape};

    use super::*;

    fn job(rows: usize, value: f32) -> Job {
        let feeds = vec![(0, Tensor::from_vec([rows, 2], vec![value; 2 * rows]))];
        let asked = Asked { feeds, fetches: vec![0] };
        let (answer, waits) = oneshot::channel();
        // The client waits for as long as the test.
        std::mem::forget(waits);
        Job { examples: examples(&asked).unwrap(), asked, answer, _held: None }
    }

    fn model() -> ServedModel {
        let port = |name: &str, sizes: &[Option<usize>], is_optional: bool| ServedPort {
            name: name.to_owned(),
            tensor: name.to_owned(),
            dtype: DType::F32,
            shape: PartialShape(Some(sizes.to_vec())),
            is_optional,
        };
        let inputs = vec![
            port("x", &[None, Some(2)], false),
            port("one", &[Some(1), Some(2)], false),
            port("scale", &[], true),
            port("mask", &[None, Some(2)], true),
        ];
        let outputs =
            vec![port("y", &[None, Some(2)], false), port("classes", &[Some(2)], false), port("n", &[], false)];
        let signature = ServedModel::SIGNATURE.to_owned();
        ServedModel { name: "m".to_owned(), signature, inputs, outputs, fixed: vec![], batch: 8 }
    }

    /// Otherwise a batch could have as many rows as an output by chance.
    #[test]
    fn only_open_first_dimensions_are_shared() {
        let check = |feeds: &[usize], fetches: &[usize], fixed: Option<(&str, Tensor)>, shares: bool| {
            let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let feeds = feeds.iter().map(|place| (*place, Tensor::from_vec([1, 2], vec![0f32; 2]))).collect();
            let asked = Asked { feeds, fetches: fetches.to_vec() };
            assert_eq!(is_by_example(&ServedModel { fixed, ..model() }, &asked), shares, "{fetches:?}");
        };
        let mut own = model();
        own.inputs.retain(|port| port.name != "one" && port.name != "mask");
        let asked = |fetches: &[usize]| Asked {
            feeds: vec![(0, Tensor::from_vec([1, 2], vec![0f32; 2]))],
            fetches: fetches.to_vec(),
        };
        assert!(is_by_example(&own, &asked(&[0])));
        assert!(!is_by_example(&own, &asked(&[0, 1])) && !is_by_example(&own, &asked(&[2])));
        // An input of one example alone; a default that may have rows; a fixed value that has some.
        check(&[0, 1, 3], &[0], None, false);
        check(&[0], &[0], None, false);
        check(&[0, 3], &[0], Some(("other", Tensor::from_vec([3, 1], vec![0f32; 3]))), false);
        check(&[0, 3], &[0], Some(("other", Tensor::scalar(1f32))), true);
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
