//! The last checkpoint of a graph, and the runs after which the variables may not descend from it any more.

use meshtf_tensor::Tensor;

use super::Waiting;
use super::savers::{Restore, Savers};

/// Longest name of a checkpoint that is remembered.
const MAX_NAME: usize = 4096;

/// The past of the sessions of a graph.
#[derive(Default)]
pub(super) struct Past {
    /// The checkpoint that was saved or restored last, and the number of the mark on the variables that are not older.
    last: Option<(Checkpoint, u64)>,
    /// How many were.
    count: u64,
    /// A client without a session.
    pub waiting: Option<Waiting>,
}

/// A checkpoint, as a run is fed its name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checkpoint {
    pub name: Vec<u8>,
    /// The node that is fed.
    pub prefix: String,
}

/// The graph of a session.
pub(super) struct Graph<'s> {
    pub savers: &'s Savers,
    /// It has no nodes beside those in which the savers were looked for.
    pub is_whole: bool,
}

/// A run of a saver, and of nothing else.
enum SaverRun {
    Save,
    /// Of all variables.
    Restore,
}

impl Checkpoint {
    /// That of a run that is fed its name, and nothing else.
    pub fn fed(feeds: &[(String, Tensor)]) -> Option<Checkpoint> {
        let [(feed, value)] = feeds else { return None };
        let name = text(value).filter(|name| name.len() <= MAX_NAME)?;
        Some(Checkpoint { name: name.clone(), prefix: without_port(feed).to_owned() })
    }
}

impl Graph<'_> {
    /// The restore of a run that does nothing else.
    pub fn restored(&self, ends: &[&String], prefix: &str) -> Option<&Restore> {
        let [target] = ends else { return None };
        self.savers.restores.get(*target).filter(|restore| restore.prefix == prefix)
    }

    fn saver_run(&self, ends: &[&String], prefix: &str) -> Option<SaverRun> {
        if !self.is_whole {
            return None;
        }
        let saves = |end: &&String| self.savers.saves.get(without_port(end)).is_some_and(|fed| fed == prefix);
        if !ends.is_empty() && ends.iter().all(saves) {
            return Some(SaverRun::Save);
        }
        let restore = self.restored(ends, prefix)?;
        (self.savers.variables(prefix) == restore.variables.iter().collect()).then_some(SaverRun::Restore)
    }
}

impl Past {
    /// The number of the mark after which the variables are not older than a checkpoint, if that is the last one.
    pub fn last(&self, checkpoint: &Checkpoint) -> Option<u64> {
        self.last.as_ref().filter(|(last, _)| last == checkpoint).map(|&(_, mark)| mark)
    }

    /// A run begins; the checkpoint from which the variables descend if it succeeds. One that may leave some of them older than
    /// the last checkpoint ends the memory of that.
    pub fn begins(&mut self, graph: &Graph, ends: &[&String], feeds: &[(String, Tensor)]) -> Option<Checkpoint> {
        let run = Checkpoint::fed(feeds).and_then(|one| Some((graph.saver_run(ends, &one.prefix)?, one)));
        let Some((run, checkpoint)) = run else {
            let fed = feeds.iter().map(|(name, tensor)| (name.as_str(), tensor));
            self.may_restore(graph, ends.iter().copied(), fed);
            return None;
        };
        self.last.take_if(|(last, _)| match run {
            // The file is none or another one while it is written, and if that fails.
            SaverRun::Save => last.name == checkpoint.name,
            // It may fail when some variables have the values of another checkpoint.
            SaverRun::Restore => *last != checkpoint,
        });
        Some(checkpoint)
    }

    /// A run of these nodes and tensors begins that is none of a saver's: it may restore some variables, or write another file
    /// with the name of the last checkpoint.
    pub fn may_restore<'a>(
        &mut self,
        graph: &Graph,
        mut ends: impl Iterator<Item = &'a String>,
        mut feeds: impl Iterator<Item = (&'a str, &'a Tensor)>,
    ) {
        let is_target = |end: &String| graph.savers.restores.contains_key(end);
        self.last.take_if(|(last, _)| {
            let may_name_one = |(fed, tensor): (&str, &Tensor)| {
                let Some(name) = text(tensor) else { return false };
                // The savers among nodes that were added are not known.
                graph.savers.prefixes.contains(without_port(fed)) || !graph.is_whole || *name == last.name
            };
            ends.any(is_target) || feeds.any(may_name_one)
        });
    }

    /// The number of the mark after a run from whose checkpoint the variables descend.
    pub fn next(&mut self) -> u64 {
        self.last = None;
        self.count += 1;
        self.count
    }

    /// The mark is set, as far as it can be: that checkpoint is the last one, unless another one has come.
    pub fn is_marked(&mut self, checkpoint: Checkpoint, mark: u64) {
        if self.count == mark {
            self.last = Some((checkpoint, mark));
        }
    }
}

/// The string that a tensor of one has.
fn text(value: &Tensor) -> Option<&Vec<u8>> {
    let [text] = value.slice::<Vec<u8>>().ok()? else { return None };
    Some(text)
}

fn without_port(tensor: &str) -> &str {
    tensor.strip_suffix(":0").unwrap_or(tensor)
}

#[cfg(test)]
mod tests {
    use super::super::savers::tests::GRAPH;
    use super::*;

    fn named(node: &str, name: &str) -> (String, Tensor) {
        (format!("{node}:0"), Tensor::scalar(name.as_bytes().to_vec()))
    }

    #[test]
    fn a_checkpoint_has_the_name_that_alone_is_fed() {
        let fed = [named("save/Const", "model-10")];
        let known = Checkpoint { name: b"model-10".to_vec(), prefix: "save/Const".to_owned() };
        assert_eq!(Checkpoint::fed(&fed), Some(known));
        assert_eq!(Checkpoint::fed(&[]), None);
        assert_eq!(Checkpoint::fed(&[fed[0].clone(), ("x:0".to_owned(), Tensor::scalar(1f32))]), None);
        assert_eq!(Checkpoint::fed(&[("x:0".to_owned(), Tensor::scalar(1f32))]), None);
        assert_eq!(Checkpoint::fed(&[named("save/Const", &"n".repeat(MAX_NAME + 1))]), None);
    }

    #[test]
    fn the_last_checkpoint_is_forgotten_before_a_run_that_may_leave_variables_older() {
        let savers = Savers::of(&meshtf_graph::read(GRAPH.as_bytes()).unwrap().nodes);
        let check = |ends: &[&str], fed: &[(String, Tensor)], is_whole: bool, marks: bool, stays: bool| {
            let last = Checkpoint::fed(&[named("save/Const", "model-10")]).unwrap();
            let mut past = Past::default();
            let mark = past.next();
            past.is_marked(last.clone(), mark);
            let owned: Vec<String> = ends.iter().map(|&end| end.to_owned()).collect();
            let graph = Graph { savers: &savers, is_whole };
            let found = past.begins(&graph, &owned.iter().collect::<Vec<_>>(), fed);
            assert_eq!((found.is_some(), past.last(&last).is_some()), (marks, stays), "{ends:?} {fed:?} {is_whole}");
        };
        let (x, y) = ([named("save/Const", "model-10")], [named("save/Const", "model-20")]);
        let number = [("x:0".to_owned(), Tensor::scalar(1f32))];
        // Steps of a training, and the last checkpoint once more.
        check(&["train"], &[], true, false, true);
        check(&["train"], &number, true, false, true);
        check(&["restore_all"], &x, true, true, true);
        // Another checkpoint that is written does not change variables; the same one is another file then.
        check(&["save/control:0"], &y, true, true, true);
        check(&["save/control:0"], &x, true, true, false);
        check(&["save/control:0", "train"], &x, true, false, false);
        // Another one that is restored, or a part of any, or the default one, or by a run that does more.
        check(&["restore_all"], &y, true, true, false);
        check(&["shard_1"], &x, true, false, false);
        check(&["restore_all"], &[], true, false, false);
        check(&["restore_all", "train"], &y, true, false, false);
        check(&["with_init"], &[y[0].clone(), number[0].clone()], true, false, false);
        // With nodes that were added, any string may be a name.
        check(&["train"], &[named("name", "model-10")], true, false, false);
        check(&["train"], &[named("name", "a word")], true, false, true);
        check(&["train"], &[named("name", "a word")], false, false, false);
        check(&["save/control:0"], &x, false, false, false);
        check(&["train"], &number, false, false, true);
    }

    #[test]
    fn another_saver_restores_other_values_from_the_same_file() {
        let mut past = Past::default();
        let mark = past.next();
        let of = |prefix: &str| Checkpoint { name: b"model-10".to_vec(), prefix: prefix.to_owned() };
        past.is_marked(of("save/Const"), mark);
        assert_eq!((past.last(&of("save/Const")), past.last(&of("save_1/Const"))), (Some(mark), None));
        // A later one has begun.
        past.next();
        past.is_marked(of("save/Const"), mark);
        assert_eq!(past.last(&of("save/Const")), None);
    }
}
