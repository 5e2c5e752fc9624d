//! The gradient rules by op: each computes the gradients of a node's inputs from those of its outputs.
//!
//! A rule adds ops of the vocabulary. Each op with inputs and outputs has a rule, or is in one of the lists below: a test
//! checks that.

mod activation;
mod arrange;
mod batch_norm;
mod binary;
mod complex;
mod convolution;
mod einsum;
mod factor;
mod flow;
mod gamma;
mod image;
mod index;
mod join;
mod linalg;
mod list;
mod loss;
mod matmul;
mod normalize;
mod pool;
mod quantize;
mod ragged;
mod recurrent;
mod reduce;
mod scan;
mod segment;
mod sparse;
mod tensor_array;
mod tridiagonal;
mod unary;

use half::{bf16, f16};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{Complex, DType, Tensor};

use super::call::{Call, Grads};
use crate::op;

/// Adds the nodes that turn the gradients of a node's outputs into those of its inputs.
pub(super) type Rule = fn(&mut Call) -> Grads;

/// The reason why a rule adds no gradient.
pub(super) enum Stop {
    /// The op has no rule.
    NoRule,
    /// It is part of a loop.
    Loop,
    /// The graph states that there must be none, with that reason.
    Prevented(String),
    /// The op has a rule, but not for a node like this: the detail.
    Unsupported(String),
    /// A node could not be added.
    Failed(Failure),
}

/// The knowledge about the gradient of an op.
pub(super) enum Known {
    Rule(Rule),
    /// No input has a gradient, whatever the gradients of the outputs.
    NotDifferentiable,
    /// The gradient is not known.
    Nothing,
}

/// The knowledge about the gradient of the op of that name; for an older name of an op, that of the newer one.
pub(super) fn of(name: &str) -> Known {
    let newer = || op::lookup(name).map(|op| op.runs_as().name).and_then(named);
    match named(name) {
        Some(rule) => Known::Rule(rule),
        None if is_not_differentiable(name) => Known::NotDifferentiable,
        None => newer().map_or(Known::Nothing, Known::Rule),
    }
}

fn named(name: &str) -> Option<Rule> {
    const FAMILIES: [fn(&str) -> Option<Rule>; 29] = [
        unary::named,
        binary::named,
        matmul::named,
        einsum::named,
        linalg::named,
        factor::named,
        activation::named,
        loss::named,
        convolution::named,
        pool::named,
        normalize::named,
        batch_norm::named,
        recurrent::named,
        quantize::named,
        arrange::named,
        join::named,
        index::named,
        image::named,
        reduce::named,
        scan::named,
        segment::named,
        flow::named,
        tensor_array::named,
        list::named,
        gamma::named,
        sparse::named,
        ragged::named,
        tridiagonal::named,
        complex::named,
    ];
    FAMILIES.iter().find_map(|family| family(name))
}

/// Whether no input of an op has a gradient: TensorFlow declares it so, or its outputs do not depend on the values of its
/// inputs smoothly or at all.
pub(super) fn is_not_differentiable(name: &str) -> bool {
    NOT_DIFFERENTIABLE.contains(&name)
}

/// In the order of their names.
const NOT_DIFFERENTIABLE: &[&str] = &[
    "All",
    "AllCandidateSampler",
    "Any",
    "ApproximateEqual",
    "ArgMax",
    "ArgMin",
    "AsString",
    "Assign",
    "AssignAdd",
    "AssignSub",
    "AudioSummary",
    "AudioSummaryV2",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "BroadcastArgs",
    "BroadcastGradientArgs",
    "CTCBeamSearchDecoder",
    "CTCGreedyDecoder",
    "Ceil",
    "ComputeAccidentalHits",
    "ConcatOffset",
    "DataFormatDimMap",
    "DataFormatVecPermute",
    "DecodeAndCropJpeg",
    "DecodeBase64",
    "DecodeBmp",
    "DecodeCSV",
    "DecodeCompressed",
    "DecodeGif",
    "DecodeImage",
    "DecodeJpeg",
    "DecodePaddedRaw",
    "DecodePng",
    "DecodeRaw",
    "DenseToDenseSetOperation",
    "DenseToSparseSetOperation",
    "DrawBoundingBoxes",
    "EditDistance",
    "EncodeBase64",
    "EncodeJpeg",
    "EncodePng",
    "Equal",
    "ExtractGlimpse",
    "ExtractJpegShape",
    "FakeQuantWithMinMaxArgsGradient",
    "FakeQuantWithMinMaxVarsGradient",
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    "Fingerprint",
    "FixedUnigramCandidateSampler",
    "Floor",
    "FloorDiv",
    "GenerateVocabRemapping",
    "Greater",
    "GreaterEqual",
    "HSVToRGB",
    "HistogramFixedWidth",
    "HistogramSummary",
    "ImageSummary",
    "InTopK",
    "InTopKV2",
    "Invert",
    "InvertPermutation",
    "IsFinite",
    "IsInf",
    "IsNan",
    "IsVariableInitialized",
    "LearnedUnigramCandidateSampler",
    "LeftShift",
    "Less",
    "LessEqual",
    "LinSpace",
    "LoadAndRemapMatrix",
    "LogUniformCandidateSampler",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
    "LowerBound",
    "MatchingFiles",
    "MergeSummary",
    "Multinomial",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "NonMaxSuppression",
    "NonMaxSuppressionV2",
    "NonMaxSuppressionV3",
    "NonMaxSuppressionV4",
    "NonMaxSuppressionWithOverlaps",
    "NotEqual",
    "OneHot",
    "OnesLike",
    "ParameterizedTruncatedNormal",
    "ParseExample",
    "ParseExampleV2",
    "ParseSequenceExample",
    "ParseSingleExample",
    "ParseSingleSequenceExample",
    "ParseTensor",
    "PopulationCount",
    "QueueDequeue",
    "QueueDequeueMany",
    "QueueDequeueUpTo",
    "QueueSize",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "Range",
    "Rank",
    "ReadFile",
    "ReaderNumRecordsProduced",
    "ReaderNumRecordsProducedV2",
    "ReaderNumWorkUnitsCompleted",
    "ReaderNumWorkUnitsCompletedV2",
    "ReaderRead",
    "ReaderReadUpTo",
    "ReaderReadUpToV2",
    "ReaderReadV2",
    "ReaderSerializeState",
    "ReaderSerializeStateV2",
    "ReduceJoin",
    "RegexFullMatch",
    "RegexReplace",
    "ResizeBilinearGrad",
    "RightShift",
    "Rint",
    "Round",
    "ScalarSummary",
    "ScatterAdd",
    "ScatterDiv",
    "ScatterMul",
    "ScatterNdAdd",
    "ScatterNdMax",
    "ScatterNdMin",
    "ScatterNdSub",
    "ScatterNdUpdate",
    "ScatterSub",
    "SerializeTensor",
    "SetSize",
    "Shape",
    "ShapeN",
    "ShardedFilename",
    "ShardedFilespec",
    "Size",
    "SparseToSparseSetOperation",
    "StackPop",
    "StackPush",
    "StatelessMultinomial",
    "StatelessRandomGetKeyCounter",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessRandomUniform",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StopGradient",
    "StringFormat",
    "StringJoin",
    "StringLength",
    "StringLower",
    "StringNGrams",
    "StringSplit",
    "StringSplitV2",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
    "Substr",
    "TensorArray",
    "TensorArrayGrad",
    "TensorArrayGradV2",
    "TensorArrayGradV3",
    "TensorArraySize",
    "TensorArraySizeV2",
    "TensorArraySizeV3",
    "TensorArrayV2",
    "TensorArrayV3",
    "TensorListConcatLists",
    "TensorListElementShape",
    "TensorListLength",
    "TensorSummary",
    "TensorSummaryV2",
    "ThreadUnsafeUnigramCandidateSampler",
    "TruncateDiv",
    "TruncatedNormal",
    "UnicodeDecode",
    "UnicodeDecodeWithOffsets",
    "UnicodeEncode",
    "UnicodeScript",
    "UnicodeTranscode",
    "UniformCandidateSampler",
    "UnsortedSegmentJoin",
    "UpperBound",
    "VarIsInitializedOp",
    "VariableShape",
    "Where",
    "ZerosLike",
];

/// A number as a scalar of a dtype; `None` for dtypes that are not numeric.
pub(super) fn number(dtype: DType, value: f64) -> Option<Tensor> {
    Some(match dtype {
        DType::F16 => Tensor::scalar(f16::from_f64(value)),
        DType::BF16 => Tensor::scalar(bf16::from_f64(value)),
        DType::F32 => Tensor::scalar(value as f32),
        DType::F64 => Tensor::scalar(value),
        DType::C64 => Tensor::scalar(Complex::new(value as f32, 0.0)),
        DType::C128 => Tensor::scalar(Complex::new(value, 0.0)),
        DType::I8 => Tensor::scalar(value as i8),
        DType::I16 => Tensor::scalar(value as i16),
        DType::I32 => Tensor::scalar(value as i32),
        DType::I64 => Tensor::scalar(value as i64),
        DType::U8 => Tensor::scalar(value as u8),
        DType::U16 => Tensor::scalar(value as u16),
        DType::U32 => Tensor::scalar(value as u32),
        DType::U64 => Tensor::scalar(value as u64),
        DType::Bool | DType::String | DType::Resource | DType::Variant => return None,
    })
}

/// A vector of int64, or otherwise of int32.
pub(super) fn integers(dtype: DType, values: &[i64]) -> Tensor {
    match dtype {
        DType::I64 => Tensor::vector(values.to_vec()),
        _ => Tensor::vector(values.iter().map(|&value| value as i32).collect()),
    }
}
