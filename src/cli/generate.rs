//! `meshtf generate`: a model of sequences writes text, by bytes, characters or words.

mod alphabet;
mod sampler;

use std::io::Write as _;
use std::sync::Arc;

use meshtf::trainer::stored::fits;
use meshtf::trainer::weights::check_weights;
use meshtf::{Session, random};
use meshtf_graph::Graph;
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, Tensor, literal};
use meshtf_train::data::TokenKind;
use meshtf_train::file::{GenerateSection, read_data, read_generate};

use self::alphabet::Alphabet;
use self::sampler::Sampler;
use super::paint::{mention, warn};
use super::trained::TrainedArgs;
use super::{Exit, Outcome, Trouble, output};

/// Maximum number of elements that a model without a state reads again for each new one, unless its input has another size.
const MAX_WINDOW: usize = 1024;

/// Write text with a trained model
///
/// The section "generate" of the model names the tensor that takes the text so far, the logits of what follows, and the states
/// that are fed back (docs/graph.md). The text is bytes, or the characters or words of the vocabulary that is kept with the
/// weights. Each is drawn from the probabilities of the logits, printed, and fed in turn.
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
    /// Number of bytes, characters or words to write
    #[arg(short = 'n', long, value_name = "N", default_value_t = 400)]
    length: u64,
    /// Number of texts, each of which begins with the prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Factor by which logits are divided: below 1 the text is more certain, above 1 more varied; 0 takes the most probable one
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    temperature: f64,
    /// Number of most probable bytes, characters or words among which one is drawn [default: all]
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
    let graph = args.trained.graph()?;
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", args.trained.from().display()));
    let text = args.trained.text()?;
    let section = read_generate(&text).map_err(|why| at(&why))?;
    let sources = read_data(&text).map_err(|why| at(&why))?.feed;
    check_weights("WEIGHTS", &graph, args.trained.at())?;
    let fits = fits(&args.trained.weights, args.trained.which())?;
    let alphabet = Alphabet::of(&graph, &section, &sources, &fits).map_err(|why| at(&why))?;
    let writer = Writer::of(&graph, section, alphabet).map_err(|why| at(&why))?;
    let prompt = writer.prompt(&args.prompt)?;
    let seed = args.seed.unwrap_or_else(random::u64);
    let mut sampler = Sampler::new(seed, args.temperature, args.top_k.map(|k| k as usize));
    let work = async |session: &Session| {
        if args.seed.is_none() && args.temperature > 0.0 && !args.trained.quiet {
            mention(format_args!("--seed {seed} writes this text again"));
        }
        for _ in 0..args.repeat {
            writer.write(session, &args.prompt, &prompt, args.length, &mut sampler).await?;
        }
        Ok(Exit::Ok)
    };
    args.trained.in_session(graph.clone(), &budget, "", work).await
}

/// A model that writes.
struct Writer {
    section: GenerateSection,
    alphabet: Alphabet,
    dtype: DType,
    /// The number of elements that the model takes at a time, if it is fixed.
    size: Option<usize>,
}

impl Writer {
    /// Checks the section against the graph.
    fn of(graph: &Graph, section: GenerateSection, alphabet: Alphabet) -> Result<Writer, String> {
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
            return Err(at("feed", format!("{} is {dtype}; its elements are uint8, int32 or int64", section.feed)));
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
            size => Ok(Writer { section, alphabet, dtype, size }),
        }
    }

    /// The elements of a prompt.
    ///
    /// # Errors
    /// The model does not know some of it, or cannot begin without one.
    fn prompt(&self, prompt: &str) -> Result<Vec<u64>, Trouble> {
        let at = |why: String| Trouble::input(format!("--prompt: {why}"));
        let (elements, unknown) = self.alphabet.elements(prompt).map_err(at)?;
        if !unknown.is_empty() {
            warn(format_args!("the model does not know {}", unknown.join(", ")));
        }
        if elements.is_empty() && self.begin(&[]).is_empty() {
            let kind = self.alphabet.kind().name();
            return Err(at(format!("the model continues a text of {kind}, and needs the beginning of one")));
        }
        Ok(elements)
    }

    /// The elements that are fed first: that with which a text begins, and those of the prompt.
    fn begin(&self, prompt: &[u64]) -> Vec<u64> {
        let own = self.alphabet.first().filter(|_| prompt.is_empty());
        self.section.end.or(own).into_iter().chain(prompt.iter().copied()).collect()
    }

    /// Prints the prompt and `length` more elements.
    async fn write(
        &self,
        session: &Session,
        prompt: &str,
        elements: &[u64],
        length: u64,
        sampler: &mut Sampler,
    ) -> Result<(), Trouble> {
        output::bytes(prompt.as_bytes())?;
        let (mut text, mut new) = (self.begin(elements), 0);
        let mut states: Option<Vec<Tensor>> = None;
        let mut last = prompt.bytes().last();
        for _ in 0..length {
            let logits = self.step(session, &text, new, &mut states).await?;
            let next = sampler.draw(&logits) as u64;
            let written = if Some(next) == self.section.end {
                // The next text begins as those of the training.
                (text, new, states) = (self.begin(&[]), 0, None);
                vec![b'\n']
            } else {
                new = text.len();
                text.push(next);
                self.alphabet.text(next, last)
            };
            output::bytes(&written)?;
            last = written.last().copied();
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
        if classes > 256 && self.alphabet.kind() == TokenKind::Bytes {
            let why =
                "there are more than 256 bytes; a model of characters or words says so with \"tokens\" in \"data\"";
            return Err(wrong(why.to_owned()));
        }
        let own = logits.len() / classes;
        let row = match own {
            1 if count < rows => {
                return Err(wrong(format!(
                    "the model takes {rows} elements before the next one: give a --prompt of that length"
                )));
            }
            1 => 0,
            _ if own == rows => count - 1,
            _ => return Err(wrong(format!("expected a row for each of {rows} elements, or one"))),
        };
        let numbers = logits.numbers().ok_or_else(|| wrong("expected numbers".to_owned()))?;
        let mut row: Vec<f64> = numbers.skip(row * classes).take(classes).collect();
        if row.iter().any(|number| number.is_nan()) {
            return Err(Trouble::new(Exit::GraphFailed, format!("{name} has NaN: the weights are not usable")));
        }
        for (element, logit) in row.iter_mut().enumerate() {
            if !self.alphabet.is_written(element) {
                *logit = f64::NEG_INFINITY;
            }
        }
        match row.iter().any(|logit| *logit > f64::NEG_INFINITY) {
            true => Ok(row),
            false => Err(wrong("no element of the vocabulary has a logit".to_owned())),
        }
    }
}
