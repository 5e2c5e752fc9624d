//! `meshtf generate`: a model of sequences writes text, byte by byte.

mod sampler;

use std::io::Write as _;
use std::sync::Arc;

use meshtf_graph::Graph;
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, Tensor, literal};
use meshtf_train::file::{GenerateSection, read_generate};

use self::sampler::Sampler;
use super::inputs::read_graph;
use super::paint::mention;
use super::trained::TrainedArgs;
use super::{Exit, Outcome, Trouble, output};
use crate::{Session, random};

/// Maximum number of bytes that a model without a state reads again for each new one, unless its input has another size.
const MAX_WINDOW: usize = 1024;

/// Write text with a trained model
///
/// The section "generate" of the model names the tensor that takes the bytes so far, the logits of the next byte, and the states
/// that are fed back (docs/graph.md). Each byte is drawn from the probabilities of the logits, printed, and fed in turn.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf generate poem.json run1 --local
  meshtf generate poem.json run1 --local --prompt 'Beware ' --length 200
  meshtf generate poem.json run1 --local --temperature 0.5 --top-k 10 --seed 1
  meshtf generate poem.json run1 --local --temperature 0")]
pub struct Args {
    #[command(flatten)]
    pub trained: TrainedArgs,
    /// Text that is continued [default: the model begins]
    #[arg(short, long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prompt: String,
    /// Number of bytes to write
    #[arg(short = 'n', long, value_name = "N", default_value_t = 400)]
    length: u64,
    /// Number of texts, each of which begins with the prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Factor by which logits are divided: below 1 the text is more certain, above 1 more varied; 0 takes the most probable byte
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    temperature: f64,
    /// Number of most probable bytes among which one is drawn [default: all]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Seed of the random numbers; the same seed gives the same text [default: another one each time, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn temperature(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    match number.is_finite() && number >= 0.0 {
        true => Ok(number),
        false => Err("expected a number of at least 0".to_owned()),
    }
}

pub(super) async fn generate(args: Args, budget: Arc<Budget>) -> Outcome {
    let (_, graph) = read_graph(&args.trained.graph)?;
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", args.trained.from().display()));
    let section = read_generate(&args.trained.text()?).map_err(|why| at(&why))?;
    let writer = Writer::of(&graph, section).map_err(|why| at(&why))?;
    let seed = args.seed.unwrap_or_else(random::u64);
    let mut sampler = Sampler::new(seed, args.temperature, args.top_k.map(|k| k as usize));
    let work = async |session: &Session| {
        if args.seed.is_none() && args.temperature > 0.0 && !args.trained.quiet {
            mention(format_args!("--seed {seed} writes this text again"));
        }
        for _ in 0..args.repeat {
            writer.write(session, args.prompt.as_bytes(), args.length, &mut sampler).await?;
        }
        Ok(Exit::Ok)
    };
    args.trained.in_session(graph.clone(), &budget, "", work).await
}

/// A model that writes.
struct Writer {
    section: GenerateSection,
    dtype: DType,
    /// The number of elements that the model takes at a time, if it is fixed.
    size: Option<usize>,
}

impl Writer {
    /// Checks the section against the graph.
    fn of(graph: &Graph, section: GenerateSection) -> Result<Writer, String> {
        let at = |key: &str, why: String| format!("$.generate.{key}: {why}");
        let output = |key: &str, name: &str| graph.output(name).map_err(|error| at(key, error.to_string()));
        for (fed, state) in &section.states {
            let types = [output("states", fed)?, output("states", state)?].map(|one| graph.output_type(one).dtype);
            if types[0] != types[1] {
                return Err(at("states", format!("{fed} is {}, and {state} is {}", types[0], types[1])));
            }
        }
        let logits = output("logits", &section.logits)?;
        if !graph.output_type(logits).dtype.is_float() {
            return Err(at(
                "logits",
                format!("{} is {}, not a float", section.logits, graph.output_type(logits).dtype),
            ));
        }
        let feed = output("feed", &section.feed)?;
        let dtype = graph.output_type(feed).dtype;
        if !matches!(dtype, DType::U8 | DType::I32 | DType::I64) {
            return Err(at("feed", format!("{} is {dtype}; bytes are uint8, int32 or int64", section.feed)));
        }
        let shape = graph.shapes().of(feed);
        let size = match shape.0.as_deref() {
            None | Some([_, None]) => None,
            Some([None | Some(1), size]) => *size,
            Some(_) => return Err(at("feed", format!("{} is {shape}; expected [1, elements]", section.feed))),
        };
        match size {
            Some(size) if size != 1 && !section.states.is_empty() => Err(at(
                "feed",
                format!("{} takes {size} elements; with \"states\", it takes one or any number", section.feed),
            )),
            Some(0) => Err(at("feed", format!("{} takes no element", section.feed))),
            size => Ok(Writer { section, dtype, size }),
        }
    }

    /// Prints the prompt and `length` more bytes.
    async fn write(&self, session: &Session, prompt: &[u8], length: u64, sampler: &mut Sampler) -> Result<(), Trouble> {
        let begin = |bytes: &[u8]| {
            let first = self.section.end.or(bytes.is_empty().then_some(u64::from(b'\n')));
            first.into_iter().chain(bytes.iter().map(|byte| u64::from(*byte))).collect::<Vec<u64>>()
        };
        output::bytes(prompt)?;
        let (mut text, mut new) = (begin(prompt), 0);
        let mut states: Option<Vec<Tensor>> = None;
        let mut last = prompt.last().copied();
        for _ in 0..length {
            let logits = self.step(session, &text, new, &mut states).await?;
            let next = sampler.draw(&logits) as u64;
            if Some(next) == self.section.end {
                // The next text begins as those of the training.
                (text, new, states, last) = (begin(&[]), 0, None, Some(b'\n'));
            } else {
                new = text.len();
                text.push(next);
                last = u8::try_from(next).ok();
            }
            output::bytes(&[last.unwrap_or(b'?')])?;
        }
        if last != Some(b'\n') {
            output::bytes(b"\n")?;
        }
        // The text so far is on the terminal before a next one begins.
        std::io::stdout().flush().map_err(Trouble::stdout)
    }

    /// The logits of the element that follows, after those from `new` on are fed, or all if the model has no state.
    async fn step(
        &self,
        session: &Session,
        text: &[u64],
        new: usize,
        states: &mut Option<Vec<Tensor>>,
    ) -> Result<Vec<f64>, Trouble> {
        let has_states = !self.section.states.is_empty();
        let window = self.size.unwrap_or(MAX_WINDOW);
        let mut fed = if has_states { &text[new..] } else { &text[text.len().saturating_sub(window)..] };
        loop {
            let now = if has_states && self.size == Some(1) { 1 } else { fed.len() };
            let mut elements: Vec<i64> = fed[..now].iter().map(|element| *element as i64).collect();
            // The rest of a window is not known yet.
            elements.resize(if has_states { now } else { self.size.unwrap_or(now) }, 0);
            let rows = elements.len();
            let elements = literal::convert_feed(Tensor::from_vec([1, rows], elements), self.dtype)?;
            let mut feeds: Vec<(&str, Tensor)> = vec![(&self.section.feed, elements)];
            let own = self.section.states.iter().map(|(name, _)| name.as_str());
            feeds.extend(own.zip(states.iter().flatten().cloned()));
            let state_names = self.section.states.iter().map(|(_, state)| state.as_str());
            let fetches: Vec<&str> = std::iter::once(self.section.logits.as_str()).chain(state_names).collect();
            let mut values = session.run().feeds(&feeds).fetches(&fetches).await?.values;
            let logits = values.remove(0);
            if has_states {
                *states = Some(values);
            }
            fed = &fed[now..];
            if fed.is_empty() || !has_states {
                return self.last_row(&logits, rows, now);
            }
        }
    }

    /// The logits after the last of `count` elements, in a tensor for `rows` elements or for the last alone.
    fn last_row(&self, logits: &Tensor, rows: usize, count: usize) -> Result<Vec<f64>, Trouble> {
        let name = &self.section.logits;
        let wrong = |why: String| Trouble::input(format!("{name} is {}{}: {why}", logits.dtype(), logits.shape()));
        let classes = logits.dims().last().copied().filter(|classes| *classes > 0);
        let classes = classes.ok_or_else(|| wrong("expected logits along the last dimension".to_owned()))?;
        if classes > 256 {
            return Err(wrong("there are more than 256 bytes; the model does not write bytes".to_owned()));
        }
        let own = logits.len() / classes;
        let row = match own {
            1 if count < rows => {
                return Err(wrong(format!(
                    "the model takes {rows} bytes before the next one: give a --prompt of that length"
                )));
            }
            1 => 0,
            _ if own == rows => count - 1,
            _ => return Err(wrong(format!("expected a row for each of {rows} elements, or one"))),
        };
        let numbers = logits.numbers().ok_or_else(|| wrong("expected numbers".to_owned()))?;
        let row: Vec<f64> = numbers.skip(row * classes).take(classes).collect();
        match row.iter().any(|number| number.is_nan()) {
            true => Err(Trouble::new(Exit::GraphFailed, format!("{name} has NaN: the weights are not usable"))),
            false => Ok(row),
        }
    }
}
