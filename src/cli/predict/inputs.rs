//! The files that a model is applied to, and the placeholders that they feed.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use meshtf::trainer::answers::{Answer, labels, unlabelled};
use meshtf::trainer::folder::{FileKind, refused};
use meshtf::trainer::unseen::Unseen;
use meshtf::trainer::{Fits, evaluation_constants, reads_alike};
use meshtf_graph::op::Role;
use meshtf_graph::{Graph, NodeId};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{Data, Shape, Tensor};
use meshtf_train::data::{FilePart, HoldOutBy};
use meshtf_train::file::{DataSource, Sections, Take};

use super::super::Trouble;
use super::super::feeds::fed;
use super::super::inputs::feed_error;

/// All that is fed.
pub(super) struct Inputs {
    /// The examples of each file.
    pub parts: Vec<Unseen>,
    /// The values that are the same for all examples.
    pub constants: Vec<(String, Tensor)>,
    /// The number of examples that a placeholder takes at a time, if it is fixed.
    pub fixed: Option<usize>,
    /// Whether each example is an image or a text of its own, which its name identifies.
    pub are_images: bool,
}

impl Inputs {
    /// Finds the placeholders that the answers depend on, and reads the files for them.
    ///
    /// # Errors
    /// Bad input: a placeholder that nothing feeds; a file that cannot be read, or does not fit.
    pub fn read(
        graph: &Graph,
        sections: &Sections,
        fits: &Fits,
        answers: &[Answer],
        files: &[String],
        feeds: &[String],
    ) -> Result<Inputs, Trouble> {
        let mut constants = fed_constants(graph, feeds)?;
        let is_fed = |name: &str, all: &[(String, Tensor)]| all.iter().any(|(own, _)| own == name);
        let needed = needed(graph, answers, |name| is_fed(name, &constants));
        let own = evaluation_constants(graph, sections)?;
        let own: Vec<_> = own.into_iter().filter(|(name, _)| needed.contains(name)).collect();
        constants.extend(own);
        let mut sources: Vec<(String, DataSource)> = Vec::new();
        for name in needed.iter().filter(|name| !is_fed(name, &constants)) {
            let source = sections.data.feed.iter().find(|(own, _)| own == name);
            sources.push(source.cloned().ok_or_else(|| {
                Trouble::input(format!(
                    "placeholder {name} is needed, and the section \"data\" has no file for it: feed it with --feed {name}=VALUE"
                ))
            })?);
        }
        if sources.is_empty() {
            let names = answers.iter().map(|answer| answer.fetch.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Trouble::input(format!("{names} depends on no placeholder that takes examples")));
        }
        let labels = labels(graph, sections);
        let labels: Vec<&str> =
            sources.iter().map(|(name, _)| name.as_str()).filter(|name| labels.contains(*name)).collect();
        let parts =
            read_files(graph, &sections.data.hold_out_by, fits, &sources, files).map_err(|trouble| {
                match labels.is_empty() {
                    true => trouble,
                    false => Trouble::input(format!(
                        "{} cannot be computed without the labels ({}): {trouble}; without labels there are {}",
                        answers.iter().map(|answer| answer.fetch.as_str()).collect::<Vec<_>>().join(", "),
                        labels.join(", "),
                        unlabelled(graph, sections)
                    )),
                }
            })?;
        if parts.iter().all(Unseen::is_empty) {
            return Err(Trouble::input(format!("{}: there is no example", files.join(", "))));
        }
        let first_size = |name: &String| {
            let shape = graph.find(name).and_then(|id| graph.node(id).attrs.shape("shape").ok());
            shape.and_then(|shape| shape.0.as_ref()?.first().copied().flatten())
        };
        let fixed = sources.iter().find_map(|(name, _)| first_size(name)).filter(|size| *size > 0);
        let are_images = sources.iter().all(|(_, source)| matches!(source.take, Take::Images | Take::Texts));
        Ok(Inputs { parts, constants, fixed, are_images })
    }

    /// The number of examples.
    pub fn count(&self) -> usize {
        self.parts.iter().map(Unseen::len).sum()
    }
}

/// The values of --feed.
fn fed_constants(graph: &Graph, feeds: &[String]) -> Result<Vec<(String, Tensor)>, Trouble> {
    let one = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| Trouble::input("--feed: expected NAME=VALUE"))?;
        let wrong = |why: String| Trouble::input(format!("--feed {name}: {why}"));
        let output = graph.output(name).map_err(|error| feed_error(graph, name, &error))?;
        Ok((name.to_owned(), fed(value, graph.output_type(output).dtype).map_err(wrong)?))
    };
    feeds.iter().map(one).collect()
}

/// The names of the placeholders that answers depend on and that are not fed yet.
fn needed(graph: &Graph, answers: &[Answer], is_fed: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let fetched = answers.iter().filter_map(|answer| graph.output(&answer.fetch).ok());
    let (mut open, mut seen): (Vec<NodeId>, HashSet<NodeId>) = (fetched.map(|one| one.node).collect(), HashSet::new());
    let mut needed = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if !seen.insert(id) || is_fed(&node.name) {
            continue;
        }
        if node.op.role == Role::Placeholder {
            needed.insert(node.name.clone());
        }
        open.extend(node.sources());
    }
    needed
}

/// The examples of the files: one after another if each feeds all placeholders, or one for each placeholder by its name.
fn read_files(
    graph: &Graph,
    by: &HoldOutBy,
    fits: &Fits,
    sources: &[(String, DataSource)],
    files: &[String],
) -> Result<Vec<Unseen>, Trouble> {
    let named = |file: &String| {
        let (name, file) = file.split_once('=')?;
        sources.iter().any(|(own, _)| own == name).then(|| (name.to_owned(), file.to_owned()))
    };
    let by_name: Vec<(String, String)> = files.iter().filter_map(named).collect();
    let names: Vec<&str> = sources.iter().map(|(name, _)| name.as_str()).collect();
    let shown = names.iter().map(|name| format!("{name}=FILE")).collect::<Vec<_>>().join(" ");
    if !by_name.is_empty() {
        let distinct: BTreeSet<&str> = by_name.iter().map(|(name, _)| name.as_str()).collect();
        if [distinct.len(), by_name.len(), files.len()] != [sources.len(); 3] {
            return Err(Trouble::input(format!("expected one file for each placeholder: {shown}")));
        }
        let own = sources.iter().map(|(name, source)| {
            let file = by_name.iter().find(|(own, _)| own == name).map_or("", |(_, file)| file);
            of_file(name, source, file, fits).map(|source| (name.clone(), source))
        });
        return Ok(vec![Unseen::read(graph, &own.collect::<Result<Vec<_>, _>>()?, by, fits, true)?]);
    }
    // Of a file without that name, the part before `=` was meant as a placeholder.
    let unknown = files.iter().find_map(|file| file.split_once('=').filter(|_| !Path::new(file).exists()));
    if let Some((name, _)) = unknown {
        let near = nearest(name, names.iter().copied());
        let taken = near.iter().chain(names.iter().filter(|own| !near.contains(own))).copied().collect::<Vec<_>>();
        let why = match graph.find(name) {
            Some(_) => format!("the predictions need no file for {name}; they need one for {}", taken.join(", ")),
            None => format!("there is no placeholder {name}; the predictions need {}", taken.join(", ")),
        };
        return Err(Trouble::input(why));
    }
    let trained: BTreeSet<&str> = sources.iter().map(|(_, source)| source.file.as_str()).collect();
    if trained.len() > 1 {
        return Err(Trouble::input(format!(
            "the model was trained with a file for each of {}: name one for each, {shown}",
            names.join(", ")
        )));
    }
    let read = |file: &String| {
        let own = sources.iter().map(|(name, source)| Ok((name.clone(), of_file(name, source, file, fits)?)));
        let own = own.collect::<Result<Vec<_>, Trouble>>()?;
        Unseen::read(graph, &own, by, fits, true).map_err(Trouble::from)
    };
    let mut parts = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if parts.len() > 1 {
        parts.iter_mut().for_each(Unseen::name_by_path);
    }
    Ok(parts)
}

/// The source of a training with the name of another file.
fn of_file(name: &str, source: &DataSource, file: &str, fits: &Fits) -> Result<DataSource, Trouble> {
    let FilePart { file, part } = FilePart::of(file);
    let is_table = |file: &str| FilePart { file: file.to_owned(), part: None }.is_table();
    // Arrays are read alike without the help of a section.
    let are_arrays = source.take == Take::Values && !is_table(&source.file) && !is_table(&file);
    if !reads_alike(source, file.as_ref()) && (!are_arrays || file.as_str().ends_with(".txt")) {
        let own = &source.file;
        let kind = match source.take {
            Take::Images => Some(FileKind::Images),
            Take::Texts => Some(FileKind::Texts),
            _ => None,
        };
        return Err(Trouble::input(match kind {
            Some(kind) => {
                let why = refused(&file, Path::new(&file), kind);
                format!("{why}: the model was trained with {own} for {name}")
            }
            None => {
                format!("{file}: the model was trained with examples in {own} for {name}; expected a file of that kind")
            }
        }));
    }
    let is_feature = FilePart { file: source.file.clone(), part: None }.is_records();
    if part.is_some() && fits.contains_key(name) && !is_feature {
        return Err(Trouble::input(format!("{file}: the columns are those of the training; leave out the colon")));
    }
    // The array of the same name as in the training, and the columns that it measured.
    let ending = |file: &str| file.trim_end_matches(".gz").rsplit('.').next().unwrap_or_default().to_owned();
    let same =
        source.part.clone().filter(|_| is_feature || ending(&file) == ending(&source.file) && !fits.contains_key(name));
    Ok(DataSource { part: part.or(same), file, ..source.clone() })
}

/// Examples that were taken one after another as one batch, filled up to `rows` with copies of the last one.
pub(super) fn joined(parts: Vec<Vec<(String, Tensor)>>, rows: usize) -> Result<Vec<(String, Tensor)>, Failure> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let is_whole = |(_, tensor): &(String, Tensor)| tensor.dims().first() == Some(&rows);
    if parts.len() == 1 && first.iter().all(is_whole) {
        return Ok(parts.into_iter().next().unwrap_or_default());
    }
    let join = |place: usize, name: &String| -> Result<(String, Tensor), Failure> {
        let all: Vec<&Tensor> = parts.iter().map(|part| &part[place].1).collect();
        let dtype = all[0].dtype();
        let shape: Shape = std::iter::once(rows).chain(all[0].dims()[1..].iter().copied()).collect();
        let size = shape.checked_elements(dtype)? / rows.max(1);
        let texts = |tensor: &Tensor| match tensor.data() {
            Data::String(texts) => texts.to_vec(),
            _ => Vec::new(),
        };
        let Some(each) = dtype.size() else {
            let texts = filled(all.into_iter().flat_map(texts).collect(), size, rows);
            return Ok((name.clone(), Tensor::vector(texts).reshaped(shape)?));
        };
        let bytes = all.iter().flat_map(|tensor| tensor.bytes().unwrap_or_default()).copied().collect();
        Ok((name.clone(), Tensor::from_bytes(dtype, shape, &filled(bytes, size * each, rows))?))
    };
    first.iter().enumerate().map(|(place, (name, _))| join(place, name)).collect()
}

/// Rows of `size` elements, with copies of the last one up to `rows`.
fn filled<T: Clone>(mut all: Vec<T>, size: usize, rows: usize) -> Vec<T> {
    let last = all[all.len().saturating_sub(size)..].to_vec();
    while !last.is_empty() && all.len() < rows * size {
        all.extend_from_slice(&last);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_several_files_are_joined_and_filled() {
        let part = |values: Vec<f32>| vec![("x".to_owned(), Tensor::from_vec([values.len() / 2, 2], values))];
        let whole = joined(vec![part(vec![1.0, 2.0]), part(vec![3.0, 4.0, 5.0, 6.0])], 4).unwrap();
        assert_eq!(whole[0].1, Tensor::from_vec([4, 2], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 5.0, 6.0]));
        let texts = |all: &[&str]| {
            let all: Vec<Vec<u8>> = all.iter().map(|text| text.as_bytes().to_vec()).collect();
            vec![("x".to_owned(), Tensor::vector(all))]
        };
        let whole = joined(vec![texts(&["a"]), texts(&["b"])], 3).unwrap();
        assert_eq!(whole, texts(&["a", "b", "b"]));
    }
}
