//! Ensembles of decision trees: all trees descend together, a level at a time, by gathers of their nodes.

use std::collections::HashMap;

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::scores::{self, Labels, Transform};
use super::{Operator, ml, one};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    ml("TreeEnsemble", 5, ensemble),
    ml("TreeEnsembleClassifier", 1, classifier),
    ml("TreeEnsembleRegressor", 1, regressor),
];

/// Most weights of the table of leaves: leaves by targets.
const MOST_WEIGHTS: usize = 1 << 26;

/// Most levels of a tree: each adds nodes to the graph.
const MOST_LEVELS: usize = 1024;

/// The comparisons of nodes, in the order of `TreeEnsemble`'s numbers, and their names in the older operators.
const MODES: &[&str] =
    &["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"];
/// The number of the comparison with a set.
const MEMBER: u8 = 6;
/// A node without children.
const LEAF: u8 = 7;

/// The nodes of all trees.
#[derive(Default)]
struct Forest {
    feature: Vec<i32>,
    /// The numbers that features are compared with, in the precision of the model.
    threshold: Vec<f64>,
    mode: Vec<u8>,
    /// The indices of the next nodes; a leaf is its own.
    yes: Vec<i32>,
    no: Vec<i32>,
    /// Whether NaN passes.
    nan_passes: Vec<bool>,
    /// The sets of nodes that compare with one.
    sets: HashMap<usize, Vec<f64>>,
    roots: Vec<i32>,
    /// The weights of leaves: targets and numbers.
    leaves: HashMap<usize, Vec<(usize, f64)>>,
}

/// How the weights of all trees become one number.
#[derive(Clone, Copy, PartialEq)]
enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

fn wrong(why: impl Into<String>) -> Failure {
    Failure::invalid(why.into())
}

/// The indices of a list of numbers, none of which is negative.
fn index(number: i64, what: &str) -> Result<usize> {
    usize::try_from(number).map_err(|_| wrong(format!("{what} has the number {number}")))
}

/// A list of as many numbers as there are nodes.
fn of_nodes<'a>(n: &Node<'a>, name: &str, count: usize) -> Result<&'a [i64]> {
    let list = n.ints(name).unwrap_or(&[]);
    if list.len() != count {
        return Err(wrong(format!("{name} has {} numbers for {count} nodes", list.len())));
    }
    Ok(list)
}

/// Floats of an attribute, or of the tensor that stands in for it.
fn floats(cx: &Cx, n: &Node, name: &str) -> Result<Option<Vec<f64>>> {
    if let Some(proto) = n.tensor_attr(&format!("{name}_as_tensor")) {
        return Ok(Some(numbers(&cx.weight(proto)?.0)?));
    }
    Ok(n.floats(name).map(|list| list.iter().map(|&x| f64::from(x)).collect()))
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.numbers().ok_or_else(|| wrong("its numbers are no numbers"))?.collect())
}

impl Forest {
    /// The trees of the older operators. `prefix`: `class` or `target`, of which the leaves have weights.
    fn of_branches(cx: &Cx, n: &Node, prefix: &str) -> Result<Forest> {
        let trees = n.ints("nodes_treeids").unwrap_or(&[]);
        let count = trees.len();
        let list = |name: &str| of_nodes(n, name, count);
        let (ids, features) = (list("nodes_nodeids")?, list("nodes_featureids")?);
        let (yes, no) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
        let modes = n.strs("nodes_modes")?;
        let values = floats(cx, n, "nodes_values")?.unwrap_or_default();
        if modes.len() != count || values.len() != count {
            let why = format!("it has {} modes and {} values for {count} nodes", modes.len(), values.len());
            return Err(wrong(why));
        }
        let mut places = HashMap::with_capacity(count);
        for (i, key) in trees.iter().zip(ids).enumerate() {
            if places.insert(key, i).is_some() {
                return Err(wrong(format!("tree {} has two nodes {}", key.0, key.1)));
            }
        }
        let place = |tree: &i64, id: &i64| {
            places.get(&(tree, id)).copied().ok_or_else(|| wrong(format!("tree {tree} has no node {id}")))
        };
        let nan_passes = n.ints("nodes_missing_value_tracks_true").unwrap_or(&[]);
        let mut forest = Forest { threshold: values, ..Forest::default() };
        let mut is_child = vec![false; count];
        for i in 0..count {
            let mode = match modes[i] {
                "LEAF" => LEAF,
                name => match MODES.iter().position(|mode| *mode == name) {
                    Some(mode) if mode < usize::from(MEMBER) => mode as u8,
                    _ => return Err(wrong(format!("{name:?} is no mode of a node"))),
                },
            };
            let next = match mode {
                LEAF => [i, i],
                _ => [place(&trees[i], &yes[i])?, place(&trees[i], &no[i])?],
            };
            if mode != LEAF {
                next.iter().for_each(|&next| is_child[next] = true);
            }
            forest.add(if mode == LEAF { 0 } else { index(features[i], "a feature")? }, mode, next);
            forest.nan_passes.push(nan_passes.get(i).is_some_and(|&passes| passes != 0));
        }
        forest.roots = (0..count).filter(|&i| !is_child[i]).map(|i| i as i32).collect();
        let weights = floats(cx, n, &format!("{prefix}_weights"))?.unwrap_or_default();
        let list = |name: &str| of_nodes(n, &format!("{prefix}_{name}"), weights.len());
        let (ids, trees, nodes) = (list("ids")?, list("treeids")?, list("nodeids")?);
        for (i, &weight) in weights.iter().enumerate() {
            let own = forest.leaves.entry(place(&trees[i], &nodes[i])?).or_default();
            own.push((index(ids[i], "a target")?, weight));
        }
        Ok(forest)
    }

    /// The trees of `TreeEnsemble`.
    fn of_splits(cx: &Cx, n: &Node) -> Result<Forest> {
        let features = n.ints("nodes_featureids").unwrap_or(&[]);
        let count = features.len();
        let tensor = |name: &str| match n.tensor_attr(name) {
            Some(proto) => numbers(&cx.weight(proto)?.0),
            None => Ok(Vec::new()),
        };
        let (splits, modes) = (tensor("nodes_splits")?, tensor("nodes_modes")?);
        if splits.len() != count || modes.len() != count {
            return Err(wrong(format!("it has {} splits and {} modes for {count} nodes", splits.len(), modes.len())));
        }
        let list = |name: &str| of_nodes(n, name, count);
        let (yes, no) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
        let (yes_leaf, no_leaf) = (list("nodes_trueleafs")?, list("nodes_falseleafs")?);
        let targets = n.ints("leaf_targetids").unwrap_or(&[]);
        let weights = tensor("leaf_weights")?;
        if weights.len() != targets.len() {
            return Err(wrong(format!("it has {} weights for {} leaves", weights.len(), targets.len())));
        }
        let members = tensor("membership_values")?;
        let mut members = members.split(|x| x.is_nan());
        let nan_passes = n.ints("nodes_missing_value_tracks_true").unwrap_or(&[]);
        let mut forest = Forest { threshold: splits, ..Forest::default() };
        for i in 0..count {
            let mode = modes[i];
            if !(0.0..=f64::from(MEMBER)).contains(&mode) {
                return Err(wrong(format!("{mode} is no mode of a node")));
            }
            if mode as u8 == MEMBER {
                let set = members.next().ok_or_else(|| wrong("membership_values has too few sets"))?;
                forest.sets.insert(i, set.to_vec());
            }
            // Leaves are behind the nodes.
            let next = |to: i64, is_leaf: i64| {
                let most = if is_leaf != 0 { targets.len() } else { count };
                let to = index(to, "a node")?;
                let to = Some(to).filter(|&to| to < most).ok_or_else(|| wrong(format!("there is no node {to}")))?;
                Ok::<_, Failure>(if is_leaf != 0 { count + to } else { to })
            };
            forest.add(
                index(features[i], "a feature")?,
                mode as u8,
                [next(yes[i], yes_leaf[i])?, next(no[i], no_leaf[i])?],
            );
            forest.nan_passes.push(nan_passes.get(i).is_some_and(|&passes| passes != 0));
        }
        for (i, (&target, weight)) in targets.iter().zip(weights).enumerate() {
            forest.threshold.push(0.0);
            forest.add(0, LEAF, [count + i, count + i]);
            forest.nan_passes.push(false);
            forest.leaves.insert(count + i, vec![(index(target, "a target")?, weight)]);
        }
        for &root in n.ints("tree_roots").unwrap_or(&[]) {
            let root = Some(index(root, "a root")?).filter(|&root| root < count);
            forest.roots.push(root.ok_or_else(|| wrong("a root is no node"))? as i32);
        }
        Ok(forest)
    }

    fn add(&mut self, feature: usize, mode: u8, [yes, no]: [usize; 2]) {
        self.feature.push(i32::try_from(feature).unwrap_or(i32::MAX));
        self.mode.push(mode);
        self.yes.push(yes as i32);
        self.no.push(no as i32);
    }

    /// The number of levels below the roots.
    fn depth(&self) -> Result<usize> {
        if self.roots.is_empty() {
            return Err(wrong("it has no tree"));
        }
        let mut open: Vec<(i32, usize)> = self.roots.iter().map(|&root| (root, 0)).collect();
        let (mut seen, mut depth) = (vec![false; self.mode.len()], 0);
        while let Some((node, level)) = open.pop() {
            let at = node as usize;
            depth = depth.max(level);
            if level > MOST_LEVELS {
                return Err(unsupported(format!("unsupported: a tree of more than {MOST_LEVELS} levels")));
            }
            if self.mode[at] == LEAF {
                continue;
            }
            // A node that is reached twice may be in a cycle.
            if std::mem::replace(&mut seen[at], true) {
                return Err(wrong("a node of a tree is below two others"));
            }
            open.extend([(self.yes[at], level + 1), (self.no[at], level + 1)]);
        }
        Ok(depth)
    }

    /// The leaves that the rows of `x` reach: rows by trees. `x` has the dtype of the thresholds.
    fn descend(&self, cx: &mut Cx, x: Output) -> Result<Output> {
        let depth = self.depth()?;
        if let (Some(width), Some(most)) = (cx.em.size(x, 1), self.feature.iter().max())
            && width as i64 <= i64::from(*most)
        {
            return Err(wrong(format!("its nodes read feature {most}, and its input has {width}")));
        }
        let dtype = cx.em.dtype(x);
        let thresholds = cx.em.constant(of_dtype(&self.threshold, dtype))?;
        let [feature, yes, no] =
            [&self.feature, &self.yes, &self.no].map(|list| cx.em.constant(Tensor::vector(list.clone())));
        let (feature, yes, no) = (feature?, yes?, no?);
        let modes =
            cx.em.constant(Tensor::vector(self.mode.iter().map(|&mode| i32::from(mode)).collect::<Vec<_>>()))?;
        let passes = match self.nan_passes.contains(&true) {
            true => Some(cx.em.constant(Tensor::vector(self.nan_passes.clone()))?),
            false => None,
        };
        let sets = match self.sets.is_empty() {
            true => None,
            false => Some(self.sets_of_nodes(cx, dtype)?),
        };
        let mut used: Vec<u8> = self.mode.iter().copied().filter(|&mode| mode != LEAF).collect();
        used.sort_unstable();
        used.dedup();
        let rows = cx.size(x, 0)?;
        let shape = cx.packed(&[rows, Size::Known(self.roots.len() as i64)])?;
        let mut at = op!(cx.em, "BroadcastTo", Tensor::vector(self.roots.clone()), shape)?;
        for _ in 0..depth {
            let column = op!(cx.em, "GatherV2", feature, at, 0i64)?;
            let own = op!(cx.em, "GatherV2", x, column, 1i64; "batch_dims" => 1i64)?;
            let threshold = op!(cx.em, "GatherV2", thresholds, at, 0i64)?;
            let mode = op!(cx.em, "GatherV2", modes, at, 0i64)?;
            let mut goes: Option<Output> = None;
            for &kind in &used {
                let name = ["LessEqual", "Less", "GreaterEqual", "Greater", "Equal", "NotEqual", ""][usize::from(kind)];
                let mut met = match sets {
                    Some((of_node, sets)) if kind == MEMBER => {
                        let set = op!(cx.em, "GatherV2", of_node, at, 0i64)?;
                        let set = op!(cx.em, "GatherV2", sets, set, 0i64)?;
                        let own = cx.unsqueeze(own, &[2])?;
                        let same = op!(cx.em, "Equal", own, set)?;
                        cx.reduce("Any", same, &[2], false)?
                    }
                    _ => op!(cx.em, name, own, threshold)?,
                };
                if used.len() > 1 {
                    let is_own = op!(cx.em, "Equal", mode, i32::from(kind))?;
                    met = op!(cx.em, "LogicalAnd", met, is_own)?;
                }
                goes = Some(match goes {
                    None => met,
                    Some(other) => op!(cx.em, "LogicalOr", other, met)?,
                });
            }
            let Some(mut goes) = goes else { break };
            if let Some(passes) = passes {
                let (is_nan, passes) = (op!(cx.em, "IsNan", own)?, op!(cx.em, "GatherV2", passes, at, 0i64)?);
                let passes = op!(cx.em, "LogicalAnd", is_nan, passes)?;
                goes = op!(cx.em, "LogicalOr", goes, passes)?;
            }
            let (yes, no) = (op!(cx.em, "GatherV2", yes, at, 0i64)?, op!(cx.em, "GatherV2", no, at, 0i64)?);
            at = op!(cx.em, "SelectV2", goes, yes, no)?;
        }
        Ok(at)
    }

    /// The rows of nodes in a table of sets, and the table, padded with NaN, which equals nothing.
    fn sets_of_nodes(&self, cx: &mut Cx, dtype: DType) -> Result<(Output, Output)> {
        let width = self.sets.values().map(Vec::len).max().unwrap_or(0).max(1);
        if self.sets.len().saturating_mul(width) > MOST_WEIGHTS {
            return Err(unsupported("unsupported: sets of more than 67 million numbers"));
        }
        let mut table = vec![f64::NAN; width];
        let mut rows = vec![0i32; self.mode.len()];
        for (&node, set) in &self.sets {
            rows[node] = (table.len() / width) as i32;
            table.extend(set.iter().copied().chain(std::iter::repeat_n(f64::NAN, width - set.len())));
        }
        let shape = Shape::from([table.len() / width, width]);
        let table = cx.em.constant(of_dtype(&table, dtype).reshaped(shape)?)?;
        Ok((cx.em.constant(Tensor::vector(rows))?, table))
    }

    /// For each row and target, whether a leaf that the row reaches has a weight for it; `None` if one always has: of some tree,
    /// each leaf has one.
    fn scored(&self, cx: &mut Cx, leaves: Output, targets: usize) -> Result<Option<Output>> {
        let has = |node: i32, target: usize| {
            self.leaves.get(&(node as usize)).is_some_and(|own| own.iter().any(|(of, _)| *of == target))
        };
        let always = |target: usize| {
            self.roots.iter().any(|&root| {
                let mut open = vec![root];
                while let Some(node) = open.pop() {
                    match self.mode[node as usize] {
                        LEAF if has(node, target) => {}
                        LEAF => return false,
                        _ => open.extend([self.yes[node as usize], self.no[node as usize]]),
                    }
                }
                true
            })
        };
        if (0..targets).all(always) {
            return Ok(None);
        }
        let mut table = vec![false; self.mode.len() * targets];
        for (&node, weights) in &self.leaves {
            weights.iter().for_each(|&(target, _)| table[node * targets + target] = true);
        }
        let table = Tensor::vector(table).reshaped(Shape::from([self.mode.len(), targets]))?;
        let own = op!(cx.em, "GatherV2", table, leaves, 0i64)?;
        cx.reduce("Any", own, &[1], false).map(Some)
    }

    /// The numbers of all trees for each target: rows by targets.
    fn total(&self, cx: &mut Cx, leaves: Output, targets: usize, dtype: DType, how: Aggregate) -> Result<Output> {
        let empty = match how {
            Aggregate::Average | Aggregate::Sum => 0.0,
            Aggregate::Min => f64::INFINITY,
            Aggregate::Max => f64::NEG_INFINITY,
        };
        let rows = self.leaves.len() + 1;
        if self.mode.len().saturating_mul(targets) > MOST_WEIGHTS {
            return Err(unsupported(format!("unsupported: {rows} leaves of {targets} targets")));
        }
        // Nodes without weights have the first row.
        let mut table = vec![empty; targets];
        let mut of_node = vec![0i32; self.mode.len()];
        for (&node, weights) in &self.leaves {
            of_node[node] = (table.len() / targets.max(1)) as i32;
            let from = table.len();
            table.resize(from + targets, empty);
            for &(target, weight) in weights {
                let own = table[from..].get_mut(target);
                let own = own.ok_or_else(|| wrong(format!("a leaf is of target {target}, of {targets}")))?;
                *own = match how {
                    Aggregate::Average | Aggregate::Sum => *own + weight,
                    Aggregate::Min => own.min(weight),
                    Aggregate::Max => own.max(weight),
                };
            }
        }
        let shape = Shape::from([rows, targets]);
        let table = cx.em.constant(of_dtype(&table, dtype).reshaped(shape)?)?;
        let row = op!(cx.em, "GatherV2", Tensor::vector(of_node), leaves, 0i64)?;
        let weights = op!(cx.em, "GatherV2", table, row, 0i64)?;
        let name = match how {
            Aggregate::Average | Aggregate::Sum => "Sum",
            Aggregate::Min => "Min",
            Aggregate::Max => "Max",
        };
        let total = cx.reduce(name, weights, &[1], false)?;
        match how {
            Aggregate::Sum => Ok(total),
            Aggregate::Average => op!(cx.em, "RealDiv", total, self.roots.len().max(1) as f64),
            // A target of which no leaf has a weight is 0.
            Aggregate::Min | Aggregate::Max => {
                let none = op!(cx.em, "IsInf", total)?;
                let zeros = op!(cx.em, "ZerosLike", total)?;
                op!(cx.em, "SelectV2", none, zeros, total)
            }
        }
    }
}

fn of_dtype(values: &[f64], dtype: DType) -> Tensor {
    match dtype {
        DType::F64 => Tensor::vector(values.to_vec()),
        _ => Tensor::vector(values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
    }
}

/// The rows of the input, in the dtype of thresholds: float64 stays, all else becomes float32.
fn rows(cx: &mut Cx, n: &Node) -> Result<Output> {
    let x = n.input(0)?;
    let x = if cx.em.rank(x)? == 1 { cx.unsqueeze(x, &[0])? } else { x };
    if cx.em.rank(x)? != 2 {
        return Err(wrong("its input is no matrix"));
    }
    cx.cast(x, if cx.em.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 })
}

fn aggregate(name: &str) -> Result<Aggregate> {
    Ok(match name {
        "AVERAGE" => Aggregate::Average,
        "SUM" => Aggregate::Sum,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return Err(wrong(format!("{other:?} is no aggregate function"))),
    })
}

fn regressor(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let forest = Forest::of_branches(cx, n, "target")?;
    let targets = index(n.int("n_targets", 1), "n_targets")?;
    let x = rows(cx, n)?;
    let (dtype, leaves) = (cx.em.dtype(x), forest.descend(cx, x)?);
    let mut y = forest.total(cx, leaves, targets, dtype, aggregate(n.str("aggregate_function", "SUM")?)?)?;
    if let Some(base) = floats(cx, n, "base_values")?.filter(|base| !base.is_empty()) {
        let more = op!(cx.em, "AddV2", y, of_dtype(&base, dtype))?;
        // A target without a weight stays 0.
        y = match forest.scored(cx, leaves, targets)? {
            Some(scored) => op!(cx.em, "SelectV2", scored, more, y)?,
            None => more,
        };
    }
    let y = cx.cast(y, DType::F32)?;
    let transform = Transform::named(n.str("post_transform", "NONE")?)?;
    one(if targets == 1 { transform.of_one(cx, y)? } else { transform.of_rows(cx, y)? })
}

fn classifier(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let forest = Forest::of_branches(cx, n, "class")?;
    let labels = Labels::of(n)?;
    let x = rows(cx, n)?;
    let (dtype, leaves) = (cx.em.dtype(x), forest.descend(cx, x)?);
    let y = forest.total(cx, leaves, labels.len(), dtype, Aggregate::Sum)?;
    let y = cx.cast(y, DType::F32)?;
    let all = || forest.leaves.values().flatten();
    let mut known: Vec<bool> = vec![false; labels.len()];
    all().for_each(|&(class, _)| known[class] = true);
    let is_positive = all().all(|&(_, weight)| weight >= 0.0);
    let base = floats(cx, n, "base_values")?.unwrap_or_default();
    let transform = Transform::named(n.str("post_transform", "NONE")?)?;
    // A class of which no leaf has a weight is not chosen, whatever the others have.
    let scored = if labels.len() == 2 { None } else { forest.scored(cx, leaves, labels.len())? };
    scores::chosen(cx, y, &scores::Trees { labels, base, known, scored, is_positive, transform })
}

fn ensemble(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let forest = Forest::of_splits(cx, n)?;
    let targets = index(n.int("n_targets", 1), "n_targets")?;
    let x = rows(cx, n)?;
    let (dtype, leaves) = (cx.em.dtype(x), forest.descend(cx, x)?);
    let how = match n.int("aggregate_function", 1) {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return Err(wrong(format!("{other} is no aggregate function"))),
    };
    let y = forest.total(cx, leaves, targets, dtype, how)?;
    let transform = Transform::numbered(n.int("post_transform", 0))?;
    one(if targets == 1 { transform.of_one(cx, y)? } else { transform.of_rows(cx, y)? })
}
