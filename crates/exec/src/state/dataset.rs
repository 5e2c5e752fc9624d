//! The ops that make datasets, most of them from other datasets; and those that take elements from one without an iterator.

use std::ops::Range;
use std::sync::Arc;

use meshtf_graph::graphdef::DRAWS_GO_ON;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::dataset::mapped::{self, Captured};
use super::super::dataset::{
    Callee, Dataset, Parts, Spec, Statement, arrange, batch, cache, choose, group, interleave, node_name, optimized,
    pad, shuffle, source, statistics, window,
};
use super::super::resource::Dummy;
use super::super::token::Token;
use super::named::Site;
use super::op::{OpContext, StateInputs, StateOp, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    register_callers(ops);
    ops.insert_dataset("TensorDataset", |inputs| Ok(source::whole(inputs.held(0..inputs.0.len())?)));
    ops.insert_dataset("TensorSliceDataset", |inputs| source::slices(inputs.held(0..inputs.0.len())?));
    ops.insert("RangeDataset", |node, _| {
        let dtype = spec(node)?.types.first().copied().unwrap_or(DType::I64);
        described(node, move |inputs| source::range(inputs.number(0)?, inputs.number(1)?, inputs.number(2)?, dtype))
    });
    ops.insert_dataset("TakeDataset", |inputs| Ok(arrange::take(inputs.dataset(0)?, inputs.number(1)?)));
    ops.insert_dataset("SkipDataset", |inputs| Ok(arrange::skip(inputs.dataset(0)?, inputs.number(1)?)));
    ops.insert_dataset("RepeatDataset", |inputs| Ok(arrange::repeat(inputs.dataset(0)?, inputs.number(1)?)));
    ops.insert_dataset("ConcatenateDataset", |inputs| arrange::concatenate(inputs.dataset(0)?, inputs.dataset(1)?));
    ops.insert_dataset("ZipDataset", |inputs| {
        Ok(arrange::zip((0..inputs.0.len()).map(|i| inputs.dataset(i)).collect::<Result<_>>()?))
    });
    ops.insert("ShardDataset", |node, _| {
        let non_empty = node.attrs.bool("require_non_empty")?;
        described(node, move |inputs| {
            arrange::shard(inputs.dataset(0)?, inputs.number(1)?, inputs.number(2)?, non_empty)
        })
    });
    ops.insert_all(["CacheDataset", "CacheDatasetV2"], |node, site| {
        let folder = site.folder(node);
        described(node, move |inputs| {
            let (dataset, name) = (inputs.dataset(0)?, inputs.host(1)?.item::<Vec<u8>>()?);
            if name.is_empty() { Ok(cache::in_memory(dataset)) } else { cache::in_file(dataset, name, folder.clone()) }
        })
    });
    ops.insert_dataset("BatchDataset", |inputs| batch::batch(inputs.dataset(0)?, inputs.number(1)?, false));
    ops.insert_dataset("BatchDatasetV2", |inputs| {
        let drops = inputs.truth(2)?;
        batch::batch(inputs.dataset(0)?, inputs.number(1)?, drops)
    });
    ops.insert_dataset("ParallelBatchDataset", |inputs| {
        let drops = inputs.truth(3)?;
        batch::batch(inputs.dataset(0)?, inputs.number(1)?, drops)
    });
    ops.insert_dataset("FilterByLastComponentDataset", |inputs| Ok(mapped::filter_by_last(inputs.dataset(0)?)));
    ops.insert_dataset("IgnoreErrorsDataset", |inputs| Ok(mapped::ignore_errors(inputs.dataset(0)?)));
    ops.insert_dataset("UniqueDataset", |inputs| choose::unique(inputs.dataset(0)?));
    ops.insert("DirectedInterleaveDataset", |node, _| {
        let stops = node.attrs.get("stop_on_empty_dataset").is_some() && node.attrs.bool("stop_on_empty_dataset")?;
        described(node, move |inputs| {
            let from = (1..inputs.0.len()).map(|i| inputs.dataset(i)).collect::<Result<_>>()?;
            Ok(choose::directed(inputs.dataset(0)?, from, stops))
        })
    });
    ops.insert_dataset("RandomDataset", |inputs| Ok(choose::random(inputs.number(0)?, inputs.number(1)?)));
    ops.insert("SparseTensorSliceDataset", |node, _| {
        let types = vec![DType::I64, node.attrs.dtype("Tvalues")?, DType::I64];
        let spec = Spec { types, shapes: vec![PartialShape::UNKNOWN; 3] };
        of_elements(node, spec, |inputs| choose::sparse_slices(&inputs.host(0)?, inputs.host(1)?, &inputs.host(2)?))
    });
    ops.insert_dataset("UnbatchDataset", |inputs| Ok(batch::unbatch(inputs.dataset(0)?)));
    ops.insert("PaddedBatchDataset", |node, _| padded(node, false));
    ops.insert("PaddedBatchDatasetV2", |node, _| padded(node, true));
    ops.insert_all(["ShuffleDataset", "ShuffleDatasetV3"], |node, _| shuffled(node, false));
    ops.insert_all(["ShuffleAndRepeatDataset", "ShuffleAndRepeatDatasetV2"], |node, _| shuffled(node, true));
    ops.insert_dataset("WindowDataset", |inputs| {
        let (size, shift, stride) = (inputs.number(1)?, inputs.number(2)?, inputs.number(3)?);
        let drops = inputs.truth(4)?;
        window::window(inputs.dataset(0)?, window::Window { size, shift, stride, drops })
    });
    ops.insert_dataset("OptimizeDataset", |inputs| {
        let asked = inputs.host(1)?;
        optimized::optimized(inputs.dataset(0)?, asked.slice::<Vec<u8>>()?)
    });
    ops.insert_dataset("OptimizeDatasetV2", |inputs| {
        let asked = [inputs.host(1)?, inputs.host(3)?];
        let asked = asked.iter().map(|names| names.slice::<Vec<u8>>()).collect::<Result<Vec<_>>>()?;
        optimized::optimized(inputs.dataset(0)?, &asked.concat())
    });
    // These do not depend on how elements are made.
    ops.insert_dataset("PrefetchDataset", |inputs| {
        let name = inputs.node_name("PrefetchDataset");
        let size = inputs.number(1)?;
        if size < -1 {
            return Err(Failure::invalid("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning"));
        }
        Ok(statistics::unbuffered(inputs.dataset(0)?, size, name))
    });
    for op in [
        "OptionsDataset",
        "ModelDataset",
        "MaxIntraOpParallelismDataset",
        "PrivateThreadPoolDataset",
        "RewriteDataset",
        "NonSerializableDataset",
    ] {
        ops.insert_dataset(op, |inputs| Ok(arrange::same(inputs.dataset(0)?)));
    }
    for op in ["DummySeedGenerator", "DummyMemoryCache"] {
        ops.insert_call(op, |_, _| Ok(one(Token::Resource(Arc::new(Dummy)))));
    }
    ops.insert_call("DatasetCardinality", |mut inputs, _| Ok(one(Tensor::scalar(inputs.dataset(0)?.cardinality))));
    ops.insert("DatasetToSingleElement", |node, _| {
        let spec = spec(node)?;
        simple(move |mut inputs, context| {
            let element = turn::in_part(|| single(&*inputs.dataset(0)?, context))?;
            spec.check(&element)?;
            Ok(element.into_iter().map(Some).collect())
        })
    });
}

/// Batches of elements that are padded to the same shape; with `states_drops`, an input states whether the last batch is
/// dropped if it is smaller.
fn padded(node: &KernelNode, states_drops: bool) -> Result<StateOp> {
    let components = spec(node)?.types.len();
    described(node, move |inputs| {
        let drops = states_drops && inputs.truth(2 + 2 * components)?;
        let size = inputs.number(1)?;
        let shapes = (2..2 + components).map(|i| inputs.host(i)).collect::<Result<Vec<_>>>()?;
        let fills = (2 + components..2 + 2 * components).map(|i| inputs.host(i)).collect::<Result<Vec<_>>>()?;
        pad::padded_batch(inputs.dataset(0)?, size, &shapes, fills, drops)
    })
}

fn shuffled(node: &KernelNode, repeats: bool) -> Result<StateOp> {
    let is_drawn_anew = node.attrs.bool("reshuffle_each_iteration")?;
    let goes_on = node.attrs.get(DRAWS_GO_ON).is_some();
    described(node, move |inputs| {
        let (seed, seed2) = (inputs.number(2)?, inputs.number(3)?);
        let seeds = match goes_on {
            true => shuffle::Seeds::going_on(seed, seed2),
            false => shuffle::Seeds::new(seed, seed2, is_drawn_anew),
        };
        let count = if repeats { inputs.number(4)? } else { 1 };
        shuffle::check_count(count)?;
        shuffle::shuffle(inputs.dataset(0)?, inputs.number(1)?, seeds, count)
    })
}

/// Registers the ops that call a function for each element.
fn register_callers(ops: &mut Registry) {
    ops.insert("MapDataset", |node, site| {
        let keeps_count = keeps_count(node)?;
        calling(node, site, "f", move |inputs, function, _| Ok(mapped::map(inputs.dataset(0)?, function, keeps_count)))
    });
    ops.insert_all(["ParallelMapDataset", "ParallelMapDatasetV2"], |node, site| {
        let (keeps_count, own) = (keeps_count(node)?, node.attrs.function("f")?.name.clone());
        calling(node, site, "f", move |inputs, function, name| {
            let function = statistics::timed(function, "ParallelMap", &own);
            Ok(statistics::one_by_one(mapped::map(inputs.dataset(0)?, function, keeps_count), name))
        })
    });
    ops.insert("MapAndBatchDataset", |node, site| {
        let (keeps_count, spec, own) = (keeps_count(node)?, spec(node)?, node.attrs.function("f")?.name.clone());
        calling(node, site, "f", move |inputs, function, name| {
            let function = statistics::timed(function, "MapAndBatch", &own);
            let end = inputs.0.len();
            let (size, drops) = (inputs.number(end - 3)?, inputs.truth(end - 1)?);
            let parts = mapped::map(inputs.dataset(0)?, function, keeps_count);
            let each = Spec { types: spec.types.clone(), shapes: vec![PartialShape::UNKNOWN; spec.types.len()] };
            let parts = batch::batch(Arc::new(Dataset::new(each, Vec::new(), parts)?), size, drops)?;
            Ok(statistics::one_by_one(parts, name))
        })
    });
    ops.insert_all(["FilterDataset", "ParallelFilterDataset"], |node, site| {
        calling(node, site, "predicate", |inputs, function, name| {
            Ok(mapped::filter(inputs.dataset(0)?, function, name))
        })
    });
    ops.insert("TakeWhileDataset", |node, site| {
        calling(node, site, "predicate", |inputs, function, _| Ok(mapped::take_while(inputs.dataset(0)?, function)))
    });
    ops.insert("FlatMapDataset", |node, site| {
        let spec = spec(node)?;
        calling(node, site, "f", move |inputs, function, _| {
            Ok(interleave::flat_map(inputs.dataset(0)?, function, spec.clone()))
        })
    });
    ops.insert_all(
        ["InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDatasetV2"],
        |node, site| interleaved(node, site, false),
    );
    ops.insert_all(
        ["ParallelInterleaveDatasetV2", "ParallelInterleaveDatasetV3", "ParallelInterleaveDatasetV4"],
        |node, site| interleaved(node, site, true),
    );
    ops.insert("ScanDataset", |node, site| {
        let (keeps_count, states) = (keeps_count(node)?, node.attrs.dtypes("Tstate")?.len());
        calling(node, site, "f", move |inputs, function, _| {
            let initial = inputs.held(1..1 + states)?;
            Ok(mapped::scan(inputs.dataset(0)?, initial, function, keeps_count))
        })
    });
    ops.insert("GroupByWindowDataset", |node, site| {
        let spec = spec(node)?;
        let functions = Functions::of(node, site, &["key_func", "reduce_func", "window_size_func"])?;
        described(node, move |inputs| {
            let dataset = inputs.dataset(0)?;
            let [key, reduce, size] = functions.captured(inputs)?;
            Ok(group::by_window(dataset, group::Windowing { key, reduce, size }, spec.clone()))
        })
    });
    ops.insert("GroupByReducerDataset", |node, site| {
        let functions = Functions::of(node, site, &["key_func", "init_func", "reduce_func", "finalize_func"])?;
        described(node, move |inputs| {
            let dataset = inputs.dataset(0)?;
            let [key, init, reduce, finish] = functions.captured(inputs)?;
            Ok(group::by_reducer(dataset, group::Reducing { key, init, reduce, finish }))
        })
    });
    ops.insert("ReduceDataset", |node, site| {
        let (states, others) = (node.attrs.dtypes("Tstate")?.len(), node.attrs.dtypes("Targuments")?.len());
        let (spec, callee) = (spec(node)?, (site.callee)(node.attrs.function("f")?, site));
        simple(move |mut inputs, context| {
            let dataset = inputs.dataset(0)?;
            let initial = inputs.held(1..1 + states)?;
            let values = inputs.held(1 + states..1 + states + others)?;
            let function = Captured { callee: Arc::clone(&callee), values };
            let pull = context.pull();
            let state = turn::in_part(|| mapped::reduce(&dataset, initial, &function, &pull))?;
            spec.check(&state)?;
            Ok(state.into_iter().map(Some).collect())
        })
    });
}

/// Whether a node states that it returns as many elements as it takes.
fn keeps_count(node: &KernelNode) -> Result<bool> {
    Ok(node.attrs.get("preserve_cardinality").is_some() && node.attrs.bool("preserve_cardinality")?)
}

/// The datasets of a function, interleaved; `reports` if statistics have its elements.
fn interleaved(node: &KernelNode, site: &Site, reports: bool) -> Result<StateOp> {
    let spec = spec(node)?;
    let captured = node.attrs.dtypes("Targuments")?.len();
    calling(node, site, "f", move |inputs, function, name| {
        let (cycle, block) = (inputs.number(1 + captured)?, inputs.number(2 + captured)?);
        // -1 lets the machine decide.
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as i64);
        let cycle = if cycle == -1 { cores() } else { cycle };
        let parts = interleave::interleave(inputs.dataset(0)?, function, spec.clone(), cycle, block)?;
        Ok(if reports { statistics::one_by_one(parts, name) } else { parts })
    })
}

/// The functions of one op: for each, the number of the op's inputs that it captured, in their order after the dataset.
struct Functions(Vec<(Arc<dyn Callee>, usize)>);

impl Functions {
    fn of(node: &KernelNode, site: &Site, attrs: &[&str]) -> Result<Functions> {
        let one = |attr: &&str| {
            let captured = node.attrs.dtypes(&format!("T{attr}_other_arguments"))?.len();
            Ok(((site.callee)(node.attrs.function(attr)?, site), captured))
        };
        attrs.iter().map(one).collect::<Result<_>>().map(Functions)
    }

    fn captured<const N: usize>(&self, inputs: &mut StateInputs) -> Result<[Captured; N]> {
        let mut first = 1;
        let all = self.0.iter().map(|(callee, count)| {
            let values = inputs.held(first..first + count)?;
            first += count;
            Ok(Captured { callee: Arc::clone(callee), values })
        });
        let all = all.collect::<Result<Vec<_>>>()?;
        all.try_into().map_err(|_| Failure::new(Code::Internal, "the op has another number of functions"))
    }
}

/// An op that makes a dataset with a function, whose last arguments are the values it captured, and with the name of the node.
fn calling(
    node: &KernelNode,
    site: &Site,
    attr: &str,
    parts: impl Fn(&mut StateInputs, Captured, String) -> Result<Parts> + Send + Sync + 'static,
) -> Result<StateOp> {
    let callee = (site.callee)(node.attrs.function(attr)?, site);
    let captured = node.attrs.dtypes("Targuments")?.len();
    // Before the captured values come the dataset and the initial state.
    let first = 1 + node.attrs.get("Tstate").map_or(Ok(0), |_| node.attrs.dtypes("Tstate").map(<[DType]>::len))?;
    let op = node.op.to_owned();
    described(node, move |inputs| {
        let name = inputs.node_name(&op);
        let values = inputs.held(first..first + captured)?;
        parts(inputs, Captured { callee: Arc::clone(&callee), values }, name)
    })
}

/// The types and shapes of the elements of a node's dataset.
pub(super) fn spec(node: &KernelNode) -> Result<Spec> {
    let types = ["output_types", "Toutput_types"].iter().find(|name| node.attrs.get(name).is_some());
    let types = node.attrs.dtypes(types.unwrap_or(&"output_types"))?.to_vec();
    let shapes = node.attrs.shapes("output_shapes")?.to_vec();
    if types.len() != shapes.len() {
        let why = format!("`output_shapes` has {} shapes, and there are {} types", shapes.len(), types.len());
        return Err(Failure::invalid(why));
    }
    Ok(Spec { types, shapes })
}

impl Registry {
    /// Adds an op that makes a dataset, in the same way in every node.
    pub(super) fn insert_dataset(
        &mut self,
        op: &'static str,
        parts: impl Fn(&mut StateInputs) -> Result<Parts> + Copy + Send + Sync + 'static,
    ) {
        self.insert(op, move |node, _| described(node, parts));
    }
}

/// An op that makes a dataset.
pub(super) fn described(
    node: &KernelNode,
    parts: impl Fn(&mut StateInputs) -> Result<Parts> + Send + Sync + 'static,
) -> Result<StateOp> {
    of_elements(node, spec(node)?, parts)
}

/// An op that makes a dataset of elements with this spec.
pub(super) fn of_elements(
    node: &KernelNode,
    spec: Spec,
    parts: impl Fn(&mut StateInputs) -> Result<Parts> + Send + Sync + 'static,
) -> Result<StateOp> {
    let parts = move |inputs: &[Token]| parts(&mut StateInputs(inputs.iter().cloned().map(Some).collect()));
    let statement = Statement { op: node.op.to_owned(), attrs: node.attrs.clone(), parts: Box::new(parts) };
    let statement = Arc::new(statement);
    simple(move |inputs, _| {
        let inputs = inputs.0.iter().flatten().cloned().map(Token::held).collect::<Result<_>>()?;
        Ok(one(Dataset::stated(Arc::clone(&statement), spec.clone(), inputs)?))
    })
}

/// The only element of a dataset.
fn single(dataset: &Dataset, context: &OpContext) -> Result<Vec<Token>> {
    let pull = context.pull();
    let mut elements = dataset.iterate(&pull)?;
    let Some(element) = elements.next(&pull)? else { return Err(Failure::invalid("Dataset was empty.")) };
    match elements.next(&pull)? {
        None => Ok(element),
        Some(_) => Err(Failure::invalid("Dataset had more than one element.")),
    }
}

impl StateInputs {
    pub(super) fn number(&mut self, index: usize) -> Result<i64> {
        self.host(index)?.to_i64()
    }

    /// TensorFlow's name for a node with these inputs; to be called before they are taken.
    pub(super) fn node_name(&self, op: &str) -> String {
        node_name(op, self.0.iter().flatten())
    }

    pub(super) fn truth(&mut self, index: usize) -> Result<bool> {
        self.host(index)?.item()
    }

    /// Some inputs, in the form that a variant holds.
    pub(super) fn held(&mut self, range: Range<usize>) -> Result<Vec<Token>> {
        range.map(|index| self.token(index)?.held()).collect()
    }
}

impl From<Arc<Dataset>> for Token {
    fn from(dataset: Arc<Dataset>) -> Token {
        Token::Variant(super::super::token::Variant::Dataset(dataset))
    }
}
