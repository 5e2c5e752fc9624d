//! The key `microbatches` of the section `train`: the parts of a batch in mode pipeline.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{Fault, Path, Value};

use super::{Read, TrainSection, UpdateMode, count};

/// Most micro-batches of a batch: the graph has a copy of the model for each.
const MOST: usize = 1024;

/// Most stages.
const MOST_STAGES: usize = 256;

/// Micro-batches of a stage, unless their number is stated: with four, a fifth of the time at most is the bubble.
const OF_STAGE: usize = 4;

/// The share of a step in which a stage of a pipeline waits because the first micro-batches have not reached it yet or the
/// last ones have left it, if all stages take equally long: `(stages - 1) / (microbatches + stages - 1)`. It is the same for
/// GPipe (Huang et al., 2019, arXiv:1811.06965) and for the order of the turns here, 1F1B with a flush after each batch
/// (PipeDream-Flush: Narayanan et al., 2021, arXiv:2006.09503), in which a stage has fewer micro-batches in memory.
pub fn bubble(stages: usize, microbatches: usize) -> f64 {
    let waits = stages.saturating_sub(1);
    waits as f64 / (microbatches + waits).max(1) as f64
}

pub(super) fn microbatches(value: &Value, path: Path) -> Read<usize> {
    let number = count(value, path)?;
    let found = usize::try_from(number).ok().filter(|&number| number <= MOST);
    found.ok_or_else(|| Fault::content(value, path, format!("{number} micro-batches; expected 1 to {MOST}")))
}

impl TrainSection {
    /// The numbers of examples of the micro-batches of a batch of this many, in mode pipeline: as equal as can be, the greater
    /// ones first.
    ///
    /// # Errors
    /// InvalidArgument if there are more micro-batches than examples.
    pub fn microbatch_sizes(&self, batch: usize) -> Result<Vec<usize>> {
        let few = self.workers.max(1).saturating_mul(OF_STAGE).min(batch).min(MOST);
        let count = self.microbatches.unwrap_or(few);
        if count == 0 || count > batch {
            return Err(Failure::invalid(format!(
                "a batch of {batch} examples has no {count} micro-batches: \"microbatches\" is 1 to {}",
                batch.min(MOST)
            )));
        }
        Ok((0..count).map(|place| batch / count + usize::from(place < batch % count)).collect())
    }

    /// The numbers of examples that the model's placeholders take at a time, of a batch of this many, the greatest first.
    ///
    /// # Errors
    /// Those of [`rows`](TrainSection::rows).
    #[doc(hidden)]
    pub fn taken_at_a_time(&self, batch: usize) -> Result<Vec<usize>> {
        if self.mode != UpdateMode::Pipeline {
            return Ok(vec![self.rows(batch)?]);
        }
        let mut sizes = self.microbatch_sizes(batch)?;
        sizes.dedup();
        Ok(sizes)
    }

    /// Refuses options that do not fit mode pipeline, and those of mode pipeline in another.
    pub(crate) fn check_pipeline(&self) -> Result<()> {
        let refused = match self {
            TrainSection { mode, microbatches: Some(_), .. } if *mode != UpdateMode::Pipeline => {
                let mode = mode.name();
                let why = format!("\"microbatches\" are the parts of a batch in mode pipeline, and \"mode\" is {mode}");
                return Err(Failure::invalid(why));
            }
            TrainSection { mode, .. } if *mode != UpdateMode::Pipeline => return Ok(()),
            TrainSection { workers: 0, .. } => {
                "mode pipeline needs \"workers\": on how many tasks the stages of the model are, one on each"
            }
            TrainSection { fewest: Some(_), .. } => {
                "in mode pipeline each worker has a stage that no other has: state one number of \"workers\""
            }
            TrainSection { backup: 1.., .. } => {
                "in mode pipeline an update needs every worker's stage: leave \"backup\" out"
            }
            TrainSection { ps: 1.., .. } => {
                "in mode pipeline each stage has its variables on its worker: leave \"ps\" out"
            }
            TrainSection { staleness: Some(_), .. } => {
                "in mode pipeline a batch makes one update on all workers: leave \"staleness\" out"
            }
            TrainSection { workers, .. } if *workers > MOST_STAGES => {
                return Err(Failure::invalid(format!(
                    "{workers} stages in mode pipeline; expected at most {MOST_STAGES}"
                )));
            }
            TrainSection { microbatches: Some(0), .. } => "0 micro-batches; expected at least 1",
            TrainSection { microbatches: Some(count), .. } if *count > MOST => {
                return Err(Failure::invalid(format!("{count} micro-batches; expected 1 to {MOST}")));
            }
            _ => return Ok(()),
        };
        Err(Failure::invalid(refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Optimizer, Training};

    /// By the formula of the papers, by hand: 4 stages and 8 micro-batches wait 3 of 11 turns.
    #[test]
    fn the_bubble_is_that_of_the_papers() {
        for (stages, microbatches, wanted) in
            [(1, 1, 0.0), (1, 9, 0.0), (2, 1, 0.5), (2, 4, 0.2), (4, 8, 3.0 / 11.0), (3, 12, 1.0 / 7.0)]
        {
            assert!((bubble(stages, microbatches) - wanted).abs() < 1e-12, "{stages} {microbatches}");
        }
    }

    #[test]
    fn a_batch_is_divided_as_equally_as_can_be() {
        let mut section = TrainSection::new("loss", Training::new(Optimizer::Sgd, 0.1));
        (section.mode, section.workers) = (UpdateMode::Pipeline, 2);
        for (batch, microbatches, wanted) in [
            (7, Some(3), Some(vec![3, 2, 2])),
            (8, Some(4), Some(vec![2; 4])),
            (5, Some(1), Some(vec![5])),
            (5, Some(5), Some(vec![1; 5])),
            (5, Some(6), None),
            // Four for each stage, or one for each example.
            (64, None, Some(vec![8; 8])),
            (3, None, Some(vec![1; 3])),
            (0, None, None),
        ] {
            section.microbatches = microbatches;
            assert_eq!(section.microbatch_sizes(batch).ok(), wanted, "{batch} {microbatches:?}");
            assert_eq!(section.rows(batch).ok(), wanted.as_ref().map(|_| batch));
            assert_eq!(section.drawn(batch).ok(), wanted.as_ref().map(|_| batch));
        }
        section.microbatches = Some(3);
        assert_eq!((section.taken_at_a_time(7).unwrap(), section.taken_at_a_time(6).unwrap()), (vec![3, 2], vec![2]));
        let failure = section.microbatch_sizes(2).unwrap_err().message;
        assert_eq!(failure, "a batch of 2 examples has no 3 micro-batches: \"microbatches\" is 1 to 2");
    }
}
