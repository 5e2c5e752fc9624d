//! Datasets of few programs: slow ones, samples, sliding windows, lists, batches of other sizes, and a dataset with a stated
//! number of elements.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_kernels::Dice;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::component::{hosted, row_of, rows_of, stacked};
use super::window::whole;
use super::{Dataset, Element, INFINITE, Parts, UNKNOWN, pulled};
use crate::token::Token;

/// Longest time without a look at whether the step was given up.
const NAP: Duration = Duration::from_millis(2);

/// The same elements, each after a pause.
///
/// # Errors
/// InvalidArgument if the pause is negative.
pub(crate) fn slow(input: Arc<Dataset>, micros: i64) -> Result<Parts> {
    let pause = u64::try_from(micros).map(Duration::from_micros);
    let pause = pause.map_err(|_| Failure::invalid("`sleep_microseconds` must be >= 0"))?;
    Ok(Parts::new(input.cardinality, move |pull| {
        pulled(input.elements(pull)?, move |input, pull| {
            let began = Instant::now();
            while let Some(rest) = pause.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero()) {
                turn::look();
                std::thread::sleep(rest.min(NAP));
            }
            input.next(pull)
        })
    }))
}

/// Each element with a given probability.
pub(crate) fn sampled(input: Arc<Dataset>, rate: f32, seed: i64, seed2: i64) -> Parts {
    let (seed, seed2) = match (seed as u64, seed2 as u64) {
        (0, 0) => Dice::unpredictable_seeds(),
        stated => stated,
    };
    let cardinality = if input.cardinality == INFINITE { INFINITE } else { UNKNOWN };
    Parts::new(cardinality, move |pull| {
        let [seed, seed2, _] = pull.drawn(|again| again.unwrap_or([seed, seed2, 0]));
        let mut dice = Dice::seeded(seed, seed2);
        pulled(input.elements(pull)?, move |input, pull| {
            loop {
                turn::look();
                let Some(element) = input.next(pull)? else { return Ok(None) };
                // The upper bits of a float between 1 and 2.
                let fraction = f32::from_bits(0x3f80_0000 | dice.draw() & 0x007f_ffff) - 1.0;
                if fraction < rate {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// The same elements; a failure if there are more or fewer than stated.
pub(crate) fn counted(input: Arc<Dataset>, wanted: i64) -> Parts {
    Parts::new(wanted, move |pull| {
        let mut count = 0i64;
        pulled(input.elements(pull)?, move |input, pull| {
            let wrong = |what: String| {
                let stated = match wanted {
                    INFINITE => "an infinite number of elements".to_owned(),
                    1 => "1 element".to_owned(),
                    _ => format!("{wanted} elements"),
                };
                let why = format!("Input dataset was expected to contain {stated} but contained {what}.");
                Err(Failure::new(Code::FailedPrecondition, why))
            };
            let elements = |count: i64| if count == 1 { "1 element".to_owned() } else { format!("{count} elements") };
            match input.next(pull)? {
                None if wanted != UNKNOWN && count != wanted => wrong(format!("only {}", elements(count))),
                None => Ok(None),
                Some(_) if wanted >= 0 && count >= wanted => wrong(format!("at least {}", elements(count + 1))),
                Some(element) => {
                    count += 1;
                    Ok(Some(element))
                }
            }
        })
    })
}

/// Windows of elements, each stacked.
///
/// # Errors
/// InvalidArgument if a number is not positive.
pub(crate) fn sliding(input: Arc<Dataset>, [size, shift, stride]: [i64; 3], drops: bool) -> Result<Parts> {
    let positive = |number: i64, what: &str| {
        let number = usize::try_from(number).ok().filter(|&number| number > 0);
        number.ok_or_else(|| Failure::invalid(format!("Window {what} must be greater than zero.")))
    };
    let (size, shift, stride) = (positive(size, "size")?, positive(shift, "shift")?, positive(stride, "stride")?);
    let span = (size - 1).saturating_mul(stride).saturating_add(1);
    let by = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let cardinality = match input.cardinality {
        all @ (INFINITE | UNKNOWN) => all,
        all => {
            let begins = if drops { (all - by(span) + 1).max(0) } else { all };
            begins / by(shift) + i64::from(begins % by(shift) != 0)
        }
    };
    Ok(Parts::new(cardinality, move |pull| {
        let (mut held, mut is_over): (VecDeque<Element>, bool) = (VecDeque::new(), false);
        pulled(input.elements(pull)?, move |input, pull| {
            let mut next = |held: &mut VecDeque<Element>, keeps: bool| -> Result<bool> {
                turn::look();
                let element = if is_over { None } else { input.next(pull)? };
                is_over |= element.is_none();
                let Some(element) = element else { return Ok(false) };
                if keeps {
                    memory::grow()?;
                    held.push_back(hosted(element)?);
                }
                Ok(true)
            };
            while held.len() < span && next(&mut held, true)? {}
            if held.is_empty() || drops && held.len() < span {
                return Ok(None);
            }
            let taken: Vec<Element> = held.iter().step_by(stride).cloned().collect();
            let beyond = shift.saturating_sub(held.len());
            held.drain(..shift.min(held.len()));
            for _ in 0..beyond {
                if !next(&mut held, false)? {
                    break;
                }
            }
            let width = taken.first().map_or(0, Vec::len);
            (0..width).map(|i| stacked(&taken, i)).collect::<Result<_>>().map(Some)
        })
    }))
}

/// Elements that are given one after the other, each of as many components as the dataset has.
///
/// # Errors
/// InvalidArgument if they are not whole elements.
pub(crate) fn listed(tokens: Vec<Token>, width: usize) -> Result<Parts> {
    if !tokens.len().is_multiple_of(width) || width == 0 {
        return Err(Failure::invalid(format!("{} tensors are not elements of {width} components", tokens.len())));
    }
    Ok(whole(tokens.chunks_exact(width).map(<[Token]>::to_vec).collect()))
}

/// The rows of batches in batches of other sizes, which are used in turn.
///
/// # Errors
/// InvalidArgument if there is no size, or one is not positive.
pub(crate) fn rebatched(input: Arc<Dataset>, sizes: &[i64], drops: bool) -> Result<Parts> {
    let size = |&size: &i64| usize::try_from(size).ok().filter(|&size| size > 0);
    let sizes: Option<Arc<[usize]>> = sizes.iter().map(size).collect();
    let sizes = sizes.filter(|sizes| !sizes.is_empty());
    let sizes = sizes.ok_or_else(|| Failure::invalid("`batch_sizes` must be positive, and there must be one"))?;
    Ok(Parts::new(if input.cardinality == INFINITE { INFINITE } else { UNKNOWN }, move |pull| {
        let (sizes, mut turn_of, mut is_over) = (Arc::clone(&sizes), 0, false);
        // A batch, and the number of its rows that were taken.
        let mut current: Option<(Element, usize)> = None;
        pulled(input.elements(pull)?, move |input, pull| {
            let wanted = sizes[turn_of % sizes.len()];
            let mut rows: Vec<Element> = Vec::new();
            while rows.len() < wanted && !is_over {
                turn::look();
                match current.take() {
                    Some((batch, at)) if at < rows_of(&batch)? => {
                        memory::grow()?;
                        rows.push(row_of(&batch, at)?);
                        current = Some((batch, at + 1));
                    }
                    _ => match input.next(pull)? {
                        Some(batch) => current = Some((hosted(batch)?, 0)),
                        None => is_over = true,
                    },
                }
            }
            turn_of += 1;
            if rows.is_empty() || drops && rows.len() < wanted {
                return Ok(None);
            }
            let width = rows[0].len();
            (0..width).map(|i| stacked(&rows, i)).collect::<Result<_>>().map(Some)
        })
    }))
}
