//! The ops that make datasets, most of them from other datasets; and those that take elements from one without an iterator.

use std::ops::Range;
use std::sync::Arc;

use meshtf_engine::Engine;
use meshtf_graph::graphdef::DRAWS_GO_ON;
use meshtf_kernels::KernelNode;
use meshtf_kernels::files::Folder;
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

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if let Some(op) = of_function(node, site)? {
        return Ok(Some(op));
    }
    match node.op {
        "TensorDataset" => described(node, |inputs| Ok(source::whole(inputs.held(0..inputs.0.len())?))),
        "TensorSliceDataset" => described(node, |inputs| source::slices(inputs.held(0..inputs.0.len())?)),
        "RangeDataset" => {
            let dtype = spec(node)?.types.first().copied().unwrap_or(DType::I64);
            described(node, move |inputs| source::range(inputs.number(0)?, inputs.number(1)?, inputs.number(2)?, dtype))
        }
        "TakeDataset" => described(node, |inputs| Ok(arrange::take(inputs.dataset(0)?, inputs.number(1)?))),
        "SkipDataset" => described(node, |inputs| Ok(arrange::skip(inputs.dataset(0)?, inputs.number(1)?))),
        "RepeatDataset" => described(node, |inputs| Ok(arrange::repeat(inputs.dataset(0)?, inputs.number(1)?))),
        "ConcatenateDataset" => described(node, |inputs| arrange::concatenate(inputs.dataset(0)?, inputs.dataset(1)?)),
        "ZipDataset" => described(node, |inputs| {
            Ok(arrange::zip((0..inputs.0.len()).map(|i| inputs.dataset(i)).collect::<Result<_>>()?))
        }),
        "ShardDataset" => {
            let non_empty = node.attrs.bool("require_non_empty")?;
            described(node, move |inputs| {
                arrange::shard(inputs.dataset(0)?, inputs.number(1)?, inputs.number(2)?, non_empty)
            })
        }
        "CacheDataset" | "CacheDatasetV2" => {
            let folder = Folder::of(node.op, node.attrs, site.resources.data());
            described(node, move |inputs| {
                let (dataset, name) = (inputs.dataset(0)?, inputs.host(1)?.item::<Vec<u8>>()?);
                if name.is_empty() {
                    Ok(cache::in_memory(dataset))
                } else {
                    cache::in_file(dataset, name, folder.clone())
                }
            })
        }
        "BatchDataset" => described(node, |inputs| batch::batch(inputs.dataset(0)?, inputs.number(1)?, false)),
        "BatchDatasetV2" => described(node, |inputs| {
            let drops = inputs.truth(2)?;
            batch::batch(inputs.dataset(0)?, inputs.number(1)?, drops)
        }),
        "ParallelBatchDataset" => described(node, |inputs| {
            let drops = inputs.truth(3)?;
            batch::batch(inputs.dataset(0)?, inputs.number(1)?, drops)
        }),
        "FilterByLastComponentDataset" => described(node, |inputs| Ok(mapped::filter_by_last(inputs.dataset(0)?))),
        "IgnoreErrorsDataset" => described(node, |inputs| Ok(mapped::ignore_errors(inputs.dataset(0)?))),
        "UniqueDataset" => described(node, |inputs| choose::unique(inputs.dataset(0)?)),
        "DirectedInterleaveDataset" => {
            let stops =
                node.attrs.get("stop_on_empty_dataset").is_some() && node.attrs.bool("stop_on_empty_dataset")?;
            described(node, move |inputs| {
                let from = (1..inputs.0.len()).map(|i| inputs.dataset(i)).collect::<Result<_>>()?;
                Ok(choose::directed(inputs.dataset(0)?, from, stops))
            })
        }
        "RandomDataset" => described(node, |inputs| Ok(choose::random(inputs.number(0)?, inputs.number(1)?))),
        "SparseTensorSliceDataset" => {
            described(node, |inputs| choose::sparse_slices(&inputs.host(0)?, inputs.host(1)?, &inputs.host(2)?))
        }
        "UnbatchDataset" => described(node, |inputs| Ok(batch::unbatch(inputs.dataset(0)?))),
        "PaddedBatchDataset" | "PaddedBatchDatasetV2" => {
            let components = spec(node)?.types.len();
            let states_drops = node.op == "PaddedBatchDatasetV2";
            described(node, move |inputs| {
                let drops = states_drops && inputs.truth(2 + 2 * components)?;
                let size = inputs.number(1)?;
                let shapes = (2..2 + components).map(|i| inputs.host(i)).collect::<Result<Vec<_>>>()?;
                let fills = (2 + components..2 + 2 * components).map(|i| inputs.host(i)).collect::<Result<Vec<_>>>()?;
                pad::padded_batch(inputs.dataset(0)?, size, &shapes, fills, drops)
            })
        }
        "ShuffleDataset" | "ShuffleDatasetV3" | "ShuffleAndRepeatDataset" | "ShuffleAndRepeatDatasetV2" => {
            let is_drawn_anew = node.attrs.bool("reshuffle_each_iteration")?;
            let repeats = node.op.starts_with("ShuffleAndRepeat");
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
        "WindowDataset" => described(node, |inputs| {
            let (size, shift, stride) = (inputs.number(1)?, inputs.number(2)?, inputs.number(3)?);
            let drops = inputs.truth(4)?;
            window::window(inputs.dataset(0)?, window::Window { size, shift, stride, drops })
        }),
        "OptimizeDataset" => described(node, |inputs| {
            let asked = inputs.host(1)?;
            optimized::optimized(inputs.dataset(0)?, asked.slice::<Vec<u8>>()?)
        }),
        "OptimizeDatasetV2" => described(node, |inputs| {
            let asked = [inputs.host(1)?, inputs.host(3)?];
            let asked = asked.iter().map(|names| names.slice::<Vec<u8>>()).collect::<Result<Vec<_>>>()?;
            optimized::optimized(inputs.dataset(0)?, &asked.concat())
        }),
        // These do not depend on how elements are made.
        "PrefetchDataset" => described(node, |inputs| {
            let name = inputs.node_name("PrefetchDataset");
            let size = inputs.number(1)?;
            if size < -1 {
                return Err(Failure::invalid("buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning"));
            }
            Ok(statistics::unbuffered(inputs.dataset(0)?, size, name))
        }),
        "OptionsDataset"
        | "ModelDataset"
        | "MaxIntraOpParallelismDataset"
        | "PrivateThreadPoolDataset"
        | "RewriteDataset"
        | "NonSerializableDataset" => described(node, |inputs| Ok(arrange::same(inputs.dataset(0)?))),
        "DummySeedGenerator" | "DummyMemoryCache" => simple(|_, _| Ok(one(Token::Resource(Arc::new(Dummy))))),
        "DatasetCardinality" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.dataset(0)?.cardinality)))),
        "DatasetToSingleElement" => {
            let spec = spec(node)?;
            simple(move |mut inputs, context| {
                let element = turn::in_part(|| single(&*inputs.dataset(0)?, context))?;
                spec.check(&element)?;
                Ok(element.into_iter().map(Some).collect())
            })
        }
        _ => Ok(None),
    }
}

/// The ops that call a function for each element.
fn of_function(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let keeps_count = node.attrs.get("preserve_cardinality").is_some() && node.attrs.bool("preserve_cardinality")?;
    match node.op {
        "MapDataset" | "ParallelMapDataset" | "ParallelMapDatasetV2" => {
            let (is_parallel, own) = (node.op != "MapDataset", node.attrs.function("f")?.name.clone());
            calling(node, site, "f", move |inputs, function, name| {
                if !is_parallel {
                    return Ok(mapped::map(inputs.dataset(0)?, function, keeps_count));
                }
                let function = statistics::timed(function, "ParallelMap", &own);
                Ok(statistics::one_by_one(mapped::map(inputs.dataset(0)?, function, keeps_count), name))
            })
        }
        "MapAndBatchDataset" => {
            let (spec, own) = (spec(node)?, node.attrs.function("f")?.name.clone());
            calling(node, site, "f", move |inputs, function, name| {
                let function = statistics::timed(function, "MapAndBatch", &own);
                let end = inputs.0.len();
                let (size, drops) = (inputs.number(end - 3)?, inputs.truth(end - 1)?);
                let parts = mapped::map(inputs.dataset(0)?, function, keeps_count);
                let each = Spec { types: spec.types.clone(), shapes: vec![PartialShape::UNKNOWN; spec.types.len()] };
                let parts = batch::batch(Arc::new(Dataset::new(each, Vec::new(), parts)?), size, drops)?;
                Ok(statistics::one_by_one(parts, name))
            })
        }
        "FilterDataset" | "ParallelFilterDataset" => calling(node, site, "predicate", |inputs, function, name| {
            Ok(mapped::filter(inputs.dataset(0)?, function, name))
        }),
        "TakeWhileDataset" => {
            calling(node, site, "predicate", |inputs, function, _| Ok(mapped::take_while(inputs.dataset(0)?, function)))
        }
        "FlatMapDataset" => {
            let spec = spec(node)?;
            calling(node, site, "f", move |inputs, function, _| {
                Ok(interleave::flat_map(inputs.dataset(0)?, function, spec.clone()))
            })
        }
        "InterleaveDataset"
        | "ParallelInterleaveDataset"
        | "LegacyParallelInterleaveDatasetV2"
        | "ParallelInterleaveDatasetV2"
        | "ParallelInterleaveDatasetV3"
        | "ParallelInterleaveDatasetV4" => {
            let spec = spec(node)?;
            let captured = node.attrs.dtypes("Targuments")?.len();
            let is_parallel = node.op.starts_with("ParallelInterleaveDatasetV");
            calling(node, site, "f", move |inputs, function, name| {
                let (cycle, block) = (inputs.number(1 + captured)?, inputs.number(2 + captured)?);
                // -1 lets the machine decide.
                let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as i64);
                let cycle = if cycle == -1 { cores() } else { cycle };
                let parts = interleave::interleave(inputs.dataset(0)?, function, spec.clone(), cycle, block)?;
                Ok(if is_parallel { statistics::one_by_one(parts, name) } else { parts })
            })
        }
        "ScanDataset" => {
            let states = node.attrs.dtypes("Tstate")?.len();
            calling(node, site, "f", move |inputs, function, _| {
                let initial = inputs.held(1..1 + states)?;
                Ok(mapped::scan(inputs.dataset(0)?, initial, function, keeps_count))
            })
        }
        "GroupByWindowDataset" => {
            let spec = spec(node)?;
            let functions = Functions::of(node, site, &["key_func", "reduce_func", "window_size_func"])?;
            described(node, move |inputs| {
                let dataset = inputs.dataset(0)?;
                let [key, reduce, size] = functions.captured(inputs)?;
                Ok(group::by_window(dataset, group::Windowing { key, reduce, size }, spec.clone()))
            })
        }
        "GroupByReducerDataset" => {
            let functions = Functions::of(node, site, &["key_func", "init_func", "reduce_func", "finalize_func"])?;
            described(node, move |inputs| {
                let dataset = inputs.dataset(0)?;
                let [key, init, reduce, finish] = functions.captured(inputs)?;
                Ok(group::by_reducer(dataset, group::Reducing { key, init, reduce, finish }))
            })
        }
        "ReduceDataset" => {
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
        }
        _ => Ok(None),
    }
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
) -> Result<Option<StateOp>> {
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
    if node.op == "SparseTensorSliceDataset" {
        let types = vec![DType::I64, node.attrs.dtype("Tvalues")?, DType::I64];
        return Ok(Spec { types, shapes: vec![PartialShape::UNKNOWN; 3] });
    }
    let types = ["output_types", "Toutput_types"].iter().find(|name| node.attrs.get(name).is_some());
    let types = node.attrs.dtypes(types.unwrap_or(&"output_types"))?.to_vec();
    let shapes = node.attrs.shapes("output_shapes")?.to_vec();
    if types.len() != shapes.len() {
        let why = format!("`output_shapes` has {} shapes, and there are {} types", shapes.len(), types.len());
        return Err(Failure::invalid(why));
    }
    Ok(Spec { types, shapes })
}

/// An op that makes a dataset.
pub(super) fn described(
    node: &KernelNode,
    parts: impl Fn(&mut StateInputs) -> Result<Parts> + Send + Sync + 'static,
) -> Result<Option<StateOp>> {
    of_elements(node, spec(node)?, parts)
}

/// An op that makes a dataset of elements with this spec.
pub(super) fn of_elements(
    node: &KernelNode,
    spec: Spec,
    parts: impl Fn(&mut StateInputs) -> Result<Parts> + Send + Sync + 'static,
) -> Result<Option<StateOp>> {
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
