//! Datasets that report statistics of their elements to the aggregator that a dataset after them names.

use std::sync::Arc;
use std::time::Instant;

use meshtf_engine::Value;
use meshtf_tensor::failure::Result;

use super::mapped::Captured;
use super::{Callee, Dataset, Element, Instance, Parts, Pull, pulled};
use crate::resource::Aggregator;
use crate::token::{Token, Variant};

/// The receiver of statistics, and the prefix of their names.
#[derive(Clone, Copy)]
pub(crate) struct Statistics<'a> {
    to: &'a Aggregator,
    tag: &'a str,
}

impl Statistics<'_> {
    fn named(&self, name: &str) -> String {
        if self.tag.is_empty() { name.to_owned() } else { format!("{}::{name}", self.tag) }
    }

    /// Adds a value to a histogram.
    ///
    /// # Errors
    /// Those of [`Aggregator::add`].
    pub fn add(&self, name: &str, value: f64) -> Result<()> {
        self.to.add(self.named(name), value)
    }

    /// # Errors
    /// Those of [`Aggregator::set`].
    pub fn set(&self, name: &str, value: f32) -> Result<()> {
        self.to.set(self.named(name), value)
    }
}

/// The same elements. The statistics of the datasets before go to the aggregator.
pub(crate) fn to_aggregator(input: Arc<Dataset>, to: Arc<Aggregator>, tag: String) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let (to, tag) = (Arc::clone(&to), tag.clone());
        pulled(input.elements(pull)?, move |input, pull| {
            input.next(&Pull { statistics: Some(Statistics { to: &to, tag: &tag }), ..*pull })
        })
    })
}

/// The same elements; reports the number of microseconds that each took.
pub(crate) fn latency(input: Arc<Dataset>, tag: String) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let tag = tag.clone();
        pulled(input.elements(pull)?, move |input, pull| {
            let Some(statistics) = pull.statistics else { return input.next(pull) };
            let began = Instant::now();
            let element = input.next(pull)?;
            if element.is_some() {
                statistics.add(&tag, began.elapsed().as_micros() as f64)?;
            }
            Ok(element)
        })
    })
}

/// The same elements; reports the number of bytes of each.
pub(crate) fn bytes(input: Arc<Dataset>, tag: String) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let tag = tag.clone();
        pulled(input.elements(pull)?, move |input, pull| {
            let element = input.next(pull)?;
            if let (Some(statistics), Some(element)) = (pull.statistics, &element) {
                statistics.add(&tag, element.iter().map(bytes_of).sum::<usize>() as f64)?;
            }
            Ok(element)
        })
    })
}

fn bytes_of(token: &Token) -> usize {
    match token {
        Token::Value(Value::Host(tensor)) => tensor.byte_len(),
        Token::Value(value) => value.byte_len(),
        Token::Variant(Variant::Boxed(boxed)) => boxed.items().iter().map(bytes_of).sum(),
        Token::Variant(Variant::Ragged(ragged)) => ragged.parts().iter().map(bytes_of).sum(),
        _ => 0,
    }
}

/// The same elements; reports TensorFlow's statistics of a buffer. There is no buffer: no element is made ahead.
pub(crate) fn unbuffered(input: Arc<Dataset>, capacity: i64, name: String) -> Parts {
    Parts::new(input.cardinality, move |pull| {
        let name = name.clone();
        pulled(input.elements(pull)?, move |input, pull| {
            let element = input.next(pull)?;
            if let (Some(statistics), Some(_)) = (pull.statistics, &element) {
                // TensorFlow begins with 1 if it has to choose.
                let capacity = if capacity == -1 { 1 } else { capacity };
                if capacity > 0 {
                    statistics.add(&format!("{name}::buffer_utilization"), 0.0)?;
                }
                statistics.set(&format!("{name}::buffer_size"), 0.0)?;
                statistics.set(&format!("{name}::buffer_capacity"), capacity as f32)?;
            }
            Ok(element)
        })
    })
}

/// The same; reports how many of the calls that may run in parallel do: none, between two elements.
pub(crate) fn one_by_one(parts: Parts, name: String) -> Parts {
    let Parts { cardinality, make } = parts;
    Parts::new(cardinality, move |pull| {
        let name = format!("{name}::thread_utilization");
        pulled(make(pull)?, move |elements, pull| {
            let element: Option<Element> = elements.next(pull)?;
            pull.statistics.map_or(Ok(()), |statistics| statistics.set(&name, 0.0))?;
            Ok(element)
        })
    })
}

/// The same function; reports the number of nanoseconds that each call took, under the name of the calling iterator and its
/// own.
pub(crate) fn timed(function: Captured, iterator: &str, own: &str) -> Captured {
    let name = format!("{iterator}::{own}::execution_time");
    Captured { callee: Arc::new(Timed { inner: function.callee, name }), ..function }
}

struct Timed<T> {
    inner: T,
    name: String,
}

impl Callee for Timed<Arc<dyn Callee>> {
    fn instance(self: Arc<Self>, captured: Vec<Token>, pull: &Pull) -> Result<Box<dyn Instance>> {
        let inner = Arc::clone(&self.inner).instance(captured, pull)?;
        Ok(Box::new(Timed { inner, name: self.name.clone() }))
    }
}

impl Instance for Timed<Box<dyn Instance>> {
    fn call(&mut self, args: Element, pull: &Pull) -> Result<Element> {
        let Some(statistics) = pull.statistics else { return self.inner.call(args, pull) };
        let began = Instant::now();
        let answer = self.inner.call(args, pull)?;
        statistics.add(&self.name, began.elapsed().as_nanos() as f64)?;
        Ok(answer)
    }
}
