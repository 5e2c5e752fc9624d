//! Predictions: a record for each example, with its id, its class and the probabilities, or its values.

mod file;

pub(super) use self::file::{Encoder, Form, OutFile, csv_line, save_records};
use meshtf::trainer::answers::{Answer, Meaning};
use meshtf::trainer::unseen::Id;
use meshtf_tensor::{DType, Data, Tensor};
use serde_json::{Map, Value, json};

use super::Trouble;
use super::table::number;

/// Maximum number of columns of probabilities in a table; more classes are written as the class alone.
const MAX_WIDE: usize = 1000;
/// Maximum number of values of an example on a terminal.
const MAX_SHOWN: usize = 6;

/// The prediction of one answer for one example.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    /// The most probable class, and the probability of each.
    Class(usize, Vec<f32>),
    /// The class.
    Number(i64),
    Values(Vec<f64>),
    Texts(Vec<String>),
}

/// The example's ids, and a field for each answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub ids: Vec<Id>,
    pub fields: Vec<Field>,
}

/// The columns of all records.
#[derive(Debug)]
pub(super) struct Header {
    /// The names of the ids.
    pub ids: Vec<String>,
    pub answers: Vec<Answer>,
}

impl Header {
    /// The records of a batch: the first `count` of each value.
    ///
    /// # Errors
    /// Bad input if a value has not one answer for each of the `rows` examples that were fed.
    pub fn records(
        &self,
        ids: Vec<Vec<Id>>,
        values: &[Tensor],
        rows: usize,
        count: usize,
    ) -> Result<Vec<Record>, Trouble> {
        let mut records: Vec<Record> =
            ids.into_iter().map(|ids| Record { ids, fields: Vec::with_capacity(values.len()) }).collect();
        for (answer, value) in self.answers.iter().zip(values) {
            if value.dims().first() != Some(&rows) {
                let (dtype, shape) = (value.dtype(), value.shape());
                return Err(Trouble::input(format!(
                    "{} is {dtype}{shape} for {rows} examples; expected one answer for each, along the first dimension",
                    answer.fetch
                )));
            }
            for (record, field) in records.iter_mut().zip(fields(answer, value, rows, count)?) {
                record.fields.push(field);
            }
        }
        Ok(records)
    }

    /// The names of the columns of a table, as the first record has them. `is_short`: for a terminal.
    fn columns(&self, first: &Record, is_short: bool) -> Vec<String> {
        let mut columns = self.ids.clone();
        for (answer, field) in self.answers.iter().zip(&first.fields) {
            match field {
                Field::Class(_, all) => {
                    columns.extend(["class", "probability"].map(|part| self.own(answer, part)));
                    if !is_short && all.len() <= MAX_WIDE {
                        let name = |class: usize| self.own(answer, &format!("p_{}", named(answer, class as i64)));
                        columns.extend((0..all.len()).map(name));
                    }
                }
                Field::Number(_) => columns.push(self.class_alone(answer)),
                Field::Values(values) => columns.extend(value_names(answer, values.len(), is_short)),
                Field::Texts(texts) => columns.extend(value_names(answer, texts.len(), is_short)),
            }
        }
        columns
    }

    /// The cells of a record, in the order of the columns.
    fn cells(&self, record: &Record, is_short: bool) -> Vec<String> {
        let digits = |value: f64| if is_short { number(value) } else { exact(value, value.abs()) };
        let most = if is_short { MAX_SHOWN } else { usize::MAX };
        let mut cells: Vec<String> = record.ids.iter().map(text_of).collect();
        for (answer, field) in self.answers.iter().zip(&record.fields) {
            match field {
                Field::Class(class, all) => {
                    let shown = |p: &f32| if is_short { number(f64::from(*p)) } else { exact(*p, f64::from(p.abs())) };
                    cells.extend([named(answer, *class as i64), shown(&all[*class])]);
                    if !is_short && all.len() <= MAX_WIDE {
                        cells.extend(all.iter().map(shown));
                    }
                }
                Field::Number(class) => cells.push(named(answer, *class)),
                Field::Values(values) => cells.extend(values.iter().take(most).map(|value| digits(*value))),
                Field::Texts(texts) => cells.extend(texts.iter().take(most).cloned()),
            }
        }
        cells
    }

    /// The table of some records, for a terminal: its header and its rows.
    pub fn shown(&self, records: &[Record]) -> (Vec<String>, Vec<Vec<String>>) {
        let columns = records.first().map(|first| self.columns(first, true)).unwrap_or_default();
        (columns, records.iter().map(|record| self.cells(record, true)).collect())
    }

    /// A record as an object of JSON, on one line, the ids first.
    fn json(&self, record: &Record) -> String {
        let mut members: Vec<(String, Value)> = Vec::new();
        for (name, id) in self.ids.iter().zip(&record.ids) {
            let id = match id {
                Id::Number(number) => json!(number),
                Id::Text(text) => json!(text),
            };
            members.push((name.clone(), id));
        }
        for (answer, field) in self.answers.iter().zip(&record.fields) {
            let class = |class: i64| match answer.classes.is_empty() {
                true => json!(class),
                false => json!(named(answer, class)),
            };
            match field {
                Field::Class(best, all) => {
                    let p = |p: &f32| json!(shortest(f64::from(*p)));
                    let by_name = || (0..).zip(all).map(|(i, own)| (named(answer, i), p(own))).collect::<Map<_, _>>();
                    let listed = || Value::Array(all.iter().map(p).collect());
                    let probabilities = if answer.classes.is_empty() { listed() } else { Value::Object(by_name()) };
                    members.push((self.own(answer, "class"), class(*best as i64)));
                    members.push((self.own(answer, "probability"), p(&all[*best])));
                    members.push((self.own(answer, "probabilities"), probabilities));
                }
                Field::Number(number) => members.push((self.class_alone(answer), class(*number))),
                Field::Values(values) => {
                    let names = value_names(answer, values.len(), false);
                    match values.len() == 1 || answer.columns.len() == values.len() {
                        true => members.extend(names.into_iter().zip(values.iter().map(|v| json!(v)))),
                        false => members.push((answer.fetch.clone(), json!(values))),
                    }
                }
                Field::Texts(texts) => {
                    let value = if let [only] = &texts[..] { json!(only) } else { json!(texts) };
                    members.push((answer.fetch.clone(), value));
                }
            }
        }
        let members: Vec<String> =
            members.into_iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        format!("{{{}}}", members.join(","))
    }

    /// The name of a part of an answer, with the answer's if there are several.
    fn own(&self, answer: &Answer, part: &str) -> String {
        if self.answers.len() > 1 { format!("{}_{part}", answer.fetch) } else { part.to_owned() }
    }

    /// The name of a class without probabilities.
    fn class_alone(&self, answer: &Answer) -> String {
        if self.answers.len() > 1 { answer.fetch.clone() } else { "class".to_owned() }
    }
}

fn text_of(id: &Id) -> String {
    match id {
        Id::Number(number) => number.to_string(),
        Id::Text(text) => text.clone(),
    }
}

/// The name of a class; its number if it has none.
fn named(answer: &Answer, class: i64) -> String {
    let name = usize::try_from(class).ok().and_then(|class| answer.classes.get(class));
    name.cloned().unwrap_or_else(|| class.to_string())
}

fn value_names(answer: &Answer, count: usize, is_short: bool) -> Vec<String> {
    match count {
        _ if answer.meaning == Meaning::Value && answer.columns.len() == count => answer.columns.clone(),
        1 => vec![answer.fetch.clone()],
        _ => {
            let most = if is_short { MAX_SHOWN } else { count };
            (0..count.min(most)).map(|i| format!("{}_{i}", answer.fetch)).collect()
        }
    }
}

/// The fields of an answer for a batch.
fn fields(answer: &Answer, value: &Tensor, rows: usize, count: usize) -> Result<Vec<Field>, Trouble> {
    let width = value.len() / rows.max(1);
    if let Data::String(texts) = value.data() {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let all = texts.chunks(width.max(1)).map(|row| Field::Texts(row.iter().map(text).collect()));
        return Ok(all.take(count).collect());
    }
    let numbers = value.numbers().ok_or_else(|| {
        Trouble::input(format!("{} is {}, which is not written as numbers", answer.fetch, value.dtype()))
    })?;
    let numbers: Vec<f64> = numbers.take(count * width).collect();
    // The shortest decimal of a float32, as it is printed elsewhere.
    let is_short = value.dtype().is_float() && value.dtype() != DType::F64;
    let all = numbers.chunks(width.max(1)).take(count).map(|row| match field(answer, row) {
        Field::Values(values) if is_short => Field::Values(values.into_iter().map(shortest).collect()),
        field => field,
    });
    Ok(all.collect())
}

/// The shortest decimal that is the same float32.
pub(super) fn shortest(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

fn field(answer: &Answer, row: &[f64]) -> Field {
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let classes = |all: Vec<f64>| {
        // The first of equals, as in ArgMax.
        let best = (1..all.len()).fold(0, |best, i| if all[i] > all[best] { i } else { best });
        Field::Class(best, all.into_iter().map(|p| p as f32).collect())
    };
    match (answer.meaning, row) {
        (Meaning::Logits, [_, ..]) => classes(softmax(row)),
        (Meaning::Probabilities, [_, ..]) => classes(row.to_vec()),
        (Meaning::Logit, [x]) => classes(vec![logistic(-x), logistic(*x)]),
        (Meaning::Logit, _) => Field::Values(row.iter().map(|x| logistic(*x)).collect()),
        (Meaning::Probability, [p]) => classes(vec![1.0 - p, *p]),
        (Meaning::Class, [class]) => Field::Number(*class as i64),
        (Meaning::Value, _) if !answer.factor.is_empty() => {
            let of = |all: &[f64], i: usize| if all.len() == 1 { all[0] } else { all.get(i).copied().unwrap_or(0.0) };
            let is_known = answer.factor.len() == 1 || answer.factor.len() == row.len();
            let back = |(i, value): (usize, &f64)| value / of(&answer.factor, i) + of(&answer.shift, i);
            Field::Values(if is_known { row.iter().enumerate().map(back).collect() } else { row.to_vec() })
        }
        _ => Field::Values(row.to_vec()),
    }
}

/// The probabilities of logits.
pub(super) fn softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// All digits of a number of that size: `0.25`, `2.890999e-33`.
fn exact(value: impl std::fmt::Display + std::fmt::LowerExp, size: f64) -> String {
    if size == 0.0 || (1e-5..1e16).contains(&size) || !size.is_finite() {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(meaning: Meaning, classes: &[&str]) -> Answer {
        let classes = classes.iter().map(|&name| name.to_owned()).collect();
        let (columns, shift, factor) = (vec!["price".to_owned()], vec![10.0], vec![0.25]);
        Answer { fetch: "out".to_owned(), meaning, classes, columns, shift, factor }
    }

    fn header(answer: Answer) -> Header {
        Header { ids: vec!["id".to_owned()], answers: vec![answer] }
    }

    fn records(header: &Header, value: Tensor, count: usize) -> Vec<Record> {
        let ids = (0..count as u64).map(|i| vec![Id::Number(i)]).collect();
        let rows = value.dims()[0];
        header.records(ids, &[value], rows, count).unwrap()
    }

    #[test]
    fn logits_become_a_class_and_its_probability() {
        let header = header(answer(Meaning::Logits, &["no", "yes"]));
        // Softmax of (ln 3, 0): 3/4 and 1/4. The second row only fills the batch.
        let logits = Tensor::from_vec([2, 2], vec![3f64.ln(), 0.0, 0.0, 0.0]);
        let records = records(&header, logits, 1);
        assert_eq!(header.columns(&records[0], false), ["id", "class", "probability", "p_no", "p_yes"]);
        assert_eq!(header.cells(&records[0], false), ["0", "no", "0.75", "0.75", "0.25"]);
        assert_eq!(header.cells(&records[0], true), ["0", "no", "0.75000"]);
        assert_eq!(
            header.json(&records[0]),
            r#"{"id":0,"class":"no","probability":0.75,"probabilities":{"no":0.75,"yes":0.25}}"#
        );
    }

    #[test]
    fn one_logit_has_two_classes_and_several_have_a_probability_each() {
        let header = header(answer(Meaning::Logit, &[]));
        // 1 / (1 + exp(-ln 3)) = 3/4.
        let one = records(&header, Tensor::from_vec([1, 1], vec![3f64.ln()]), 1);
        assert_eq!(one[0].fields, [Field::Class(1, vec![0.25, 0.75])]);
        let both = records(&header, Tensor::from_vec([1, 2], vec![0.0, 3f64.ln()]), 1);
        assert!(matches!(&both[0].fields[0], Field::Values(p) if p[0] == 0.5 && (p[1] - 0.75).abs() < 1e-15));
        assert_eq!(header.columns(&both[0], false), ["id", "out_0", "out_1"]);
    }

    #[test]
    fn values_are_in_the_unit_of_the_labels() {
        let header = header(answer(Meaning::Value, &[]));
        // (18 - 10) / 4 = 2.
        let records = records(&header, Tensor::from_vec([1, 1], vec![2f32]), 1);
        assert_eq!(
            (header.columns(&records[0], false), header.cells(&records[0], false)),
            (vec!["id".to_owned(), "price".to_owned()], vec!["0".to_owned(), "18".to_owned()])
        );
        assert_eq!(header.json(&records[0]), r#"{"id":0,"price":18.0}"#);
    }

    #[test]
    fn a_tensor_without_an_answer_for_each_example_is_refused() {
        let header = header(answer(Meaning::Value, &[]));
        let refused = header.records(vec![vec![Id::Number(0)]; 3], &[Tensor::scalar(1f32)], 3, 3).unwrap_err();
        assert!(refused.to_string().contains("out is float32[] for 3 examples"), "{refused}");
    }

    #[test]
    fn very_small_and_large_numbers_have_exponents() {
        let values = [0.25, 0.0, 2.890_999e-33, -1.5e-7, 5e15, 5e16, f64::NAN];
        let shown = values.map(|value| exact(value, value.abs()));
        assert_eq!(shown, ["0.25", "0", "2.890999e-33", "-1.5e-7", "5000000000000000", "5e16", "NaN"]);
        assert_eq!(exact(0.1f32, 0.1), "0.1");
    }
}
