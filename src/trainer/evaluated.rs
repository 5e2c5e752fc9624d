//! The results of an evaluation: the means of metrics, and the confusion of classes.

use std::collections::BTreeMap;
use std::fmt;

use meshtf_tensor::Tensor;

use super::Error;

/// Maximum number of classes of a confusion.
const MAX_CLASSES: i64 = 1000;

/// The results of an evaluation.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::tensor::DType;
/// use meshtf::train::{EvaluateSection, Examples, Optimizer, Options, Sections, Trainer, Training};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let x = m.placeholder("x", DType::F32, [None]);
/// let w = m.variable("w", [], Initializer::Zeros);
/// (x * w - 1.0).square().mean().named("loss");
/// let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.25), 1);
/// (sections.data.hold_out, sections.evaluate) = (0.5, Some(EvaluateSection::default()));
/// let examples = Examples::new(vec![("x".into(), [2f32, 2.0].into())])?;
/// let trainer = Trainer::new(m.finish()?, sections, examples, &Options::default())?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(trainer.graph().clone(), None, SessionOptions::default()).await?;
/// session.run().target("init").await?;
/// // Of one example: (2 · 0 - 1)² = 1.
/// assert_eq!(trainer.evaluate(&session).await?.means, [1.0]);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The means of the loss and of the section's metrics over all examples that are evaluated, in that order.
    pub means: Vec<f64>,
    /// The number of examples of each class by predicted class, if the section requests it.
    pub confusion: Option<Confusion>,
}

/// A confusion matrix: the number of examples of each class by predicted class. Its text is a table for a person.
///
/// ```
/// use meshtf::train::Confusion;
///
/// /// The share of the examples of a class that the model recognises; `None` if there are no examples of it.
/// fn recall(confusion: &Confusion, class: usize) -> Option<f64> {
///     let rows = confusion.rows();
///     let row = rows.get(class)?;
///     let all: u64 = row.iter().sum();
///     (all > 0).then(|| row[class] as f64 / all as f64)
/// }
/// assert_eq!(recall(&Confusion::default(), 0), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Confusion {
    counts: BTreeMap<(i64, i64), u64>,
    names: Vec<String>,
}

impl Confusion {
    /// An empty one of classes with these names, unless there are more than classes can be.
    pub(super) fn of(names: &[String]) -> Confusion {
        let names = if names.len() as i64 <= MAX_CLASSES { names.to_vec() } else { Vec::new() };
        Confusion { counts: BTreeMap::new(), names }
    }

    /// The names of the classes, by their numbers. Empty if the labels are numbers in the data, too.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of examples of each class by predicted class, where there are some.
    #[doc(hidden)]
    pub fn counts(&self) -> impl Iterator<Item = (i64, i64, u64)> {
        self.counts.iter().map(|(&(of, taken), &count)| (of, taken, count))
    }

    /// The same again; classes out of range are left out.
    #[doc(hidden)]
    pub fn from_counts(names: Vec<String>, counts: impl IntoIterator<Item = (i64, i64, u64)>) -> Confusion {
        let is_class = |class: i64| (0..MAX_CLASSES).contains(&class);
        let counts = counts.into_iter().filter(|&(of, taken, _)| is_class(of) && is_class(taken));
        Confusion { counts: counts.map(|(of, taken, count)| ((of, taken), count)).collect(), ..Confusion::of(&names) }
    }

    pub(super) fn add(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<(), Error> {
        let classes = |what: &str, tensor: &Tensor| {
            let numbers = tensor.numbers().filter(|_| tensor.dtype().is_integer());
            let classes = numbers.map(|numbers| numbers.map(|number| number as i64).collect::<Vec<i64>>());
            let classes = classes.filter(|classes| classes.iter().all(|class| (0..MAX_CLASSES).contains(class)));
            classes.ok_or_else(|| {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                Error::input(format!(
                    "confusion: the {what} are {dtype}{shape}; expected whole numbers from 0 to {}, one for each example",
                    MAX_CLASSES - 1
                ))
            })
        };
        let (labels, predictions) = (classes("labels", labels)?, classes("predictions", predictions)?);
        if labels.len() != predictions.len() {
            let (labels, predictions) = (labels.len(), predictions.len());
            return Err(Error::input(format!("confusion: there are {labels} labels and {predictions} predictions")));
        }
        labels.into_iter().zip(predictions).for_each(|pair| *self.counts.entry(pair).or_default() += 1);
        Ok(())
    }

    /// A row for each class of the examples, a column for each predicted class.
    pub fn rows(&self) -> Vec<Vec<u64>> {
        let seen = self.counts.keys().map(|&(label, prediction)| label.max(prediction) + 1).max().unwrap_or(0);
        let classes = seen.max(self.names.len() as i64);
        let of = |label, prediction| self.counts.get(&(label, prediction)).copied().unwrap_or(0);
        (0..classes).map(|label| (0..classes).map(|prediction| of(label, prediction)).collect()).collect()
    }
}

/// Longer names of classes are cut off in a table.
const MAX_LETTERS: usize = 12;

impl Confusion {
    /// The name of a class in a table.
    fn label(&self, class: usize) -> String {
        match self.names.get(class) {
            Some(name) if name.chars().count() > MAX_LETTERS => {
                name.chars().take(MAX_LETTERS - 1).chain(['…']).collect()
            }
            Some(name) => name.clone(),
            None => class.to_string(),
        }
    }
}

impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let names: Vec<String> = (0..rows.len()).map(|class| self.label(class)).collect();
        let longest = |row: &Vec<u64>| row.iter().map(|count| count.to_string().len()).max().unwrap_or(0);
        let name = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let (first, width) = (name.max(7), rows.iter().map(longest).max().unwrap_or(0).max(name) + 2);
        write!(f, "{:>first$}", "is")?;
        for name in &names {
            write!(f, "{name:>width$}")?;
        }
        write!(f, "  taken for")?;
        for (name, row) in names.iter().zip(&rows) {
            write!(f, "\n{name:>first$}")?;
            for count in row {
                write!(f, "{count:>width$}")?;
            }
        }
        Ok(())
    }
}

/// The value of a metric as a number.
pub(super) fn number(tensor: &Tensor) -> Result<f64, Error> {
    let one = tensor.numbers().filter(|_| tensor.len() == 1).and_then(|mut numbers| numbers.next());
    one.ok_or_else(|| {
        let is = format!("{}{}", tensor.dtype(), tensor.shape());
        Error::input(format!("a metric is {is}; it must be one number, so take its mean"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_one_number_of_any_dtype() {
        for (tensor, wanted) in [
            (Tensor::scalar(half::f16::from_f32(0.5)), 0.5),
            (Tensor::vector(vec![half::bf16::from_f32(-3.0)]), -3.0),
            (Tensor::scalar(0.25f64), 0.25),
            (Tensor::scalar(true), 1.0),
            (Tensor::scalar(7u8), 7.0),
            (Tensor::scalar(-2i64), -2.0),
        ] {
            assert_eq!(number(&tensor).unwrap(), wanted, "{}", tensor.dtype());
        }
        for tensor in [Tensor::vector(vec![1f32, 2.0]), Tensor::scalar(b"1".to_vec())] {
            assert!(number(&tensor).unwrap_err().to_string().contains("it must be one number"));
        }
    }

    #[test]
    fn classes_are_counted_against_each_other() {
        let mut confusion = Confusion::default();
        confusion.add(&Tensor::vector(vec![0i32, 1, 1, 2]), &Tensor::vector(vec![0i64, 1, 0, 2])).unwrap();
        confusion.add(&Tensor::vector(vec![1i32]), &Tensor::vector(vec![0i64])).unwrap();
        assert_eq!(confusion.rows(), [[1, 0, 0], [2, 1, 0], [0, 0, 1]]);
        let lines = ["     is  0  1  2  taken for", "      0  1  0  0", "      1  2  1  0", "      2  0  0  1"];
        assert_eq!(confusion.to_string().lines().collect::<Vec<_>>(), lines);
        // One class is not seen, and its row is there.
        let names = ["cat", "dog", "cow", "a very long name"].map(str::to_owned);
        let named = Confusion { names: names.to_vec(), ..confusion.clone() }.to_string();
        let row = |name: &str| named.lines().find(|line| line.trim_start().starts_with(name)).map(str::to_owned);
        assert_eq!(row("is").unwrap().split_whitespace().nth(3), Some("cow"), "{named}");
        assert_eq!(row("dog").unwrap().split_whitespace().collect::<Vec<_>>(), ["dog", "2", "1", "0", "0"], "{named}");
        assert!(row("a very long… ").is_some(), "{named}");
        let mut wrong = |labels: Tensor, predictions: Tensor, why: &str| {
            let error = confusion.add(&labels, &predictions).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        wrong(
            Tensor::vector(vec![0.5f32]),
            Tensor::vector(vec![0i32]),
            "the labels are float32[1]; expected whole numbers",
        );
        wrong(Tensor::vector(vec![0i32]), Tensor::vector(vec![-1i32]), "from 0 to 999");
        wrong(Tensor::vector(vec![0i32, 1]), Tensor::vector(vec![0i32]), "2 labels and 1 predictions");
    }
}
