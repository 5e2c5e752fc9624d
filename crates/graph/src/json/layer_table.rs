//! The layers that a document may have, and their options.

/// A kind of layer.
#[derive(Debug)]
pub struct LayerDef {
    /// The name in documents.
    pub name: &'static str,
    /// Names of the same layer elsewhere, in lowercase, for hints.
    pub also: &'static [&'static str],
    /// The least and the greatest number of inputs.
    pub inputs: (usize, usize),
    /// Whether the output has the dtype of the first input; it is float32 otherwise.
    pub keeps_dtype: bool,
    /// The options, by name.
    pub options: &'static [OptionDef],
}

/// An option of a layer.
#[derive(Debug)]
pub struct OptionDef {
    /// The name in documents.
    pub name: &'static str,
    /// The values that it takes.
    pub kind: OptionKind,
    /// Whether every document states it.
    pub required: bool,
}

/// The values of an option.
#[derive(Clone, Copy, Debug)]
pub enum OptionKind {
    /// A whole number of at least 1.
    Size,
    /// A number from 0 to below 1.
    Share,
    /// True or false.
    Truth,
    /// A whole number of 64 bits.
    Seed,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// The functions that a layer may apply to its result.
const ACTIVATIONS: OptionKind =
    OptionKind::Word(&["relu", "elu", "tanh", "sigmoid", "softplus", "softmax", "log_softmax"]);
const PADDINGS: OptionKind = OptionKind::Word(&["SAME", "VALID"]);

const fn option(name: &'static str, kind: OptionKind) -> OptionDef {
    OptionDef { name, kind, required: false }
}

const fn required(name: &'static str, kind: OptionKind) -> OptionDef {
    OptionDef { name, kind, required: true }
}

const SEED: OptionDef = option("seed", OptionKind::Seed);
const POOL: &[OptionDef] =
    &[option("size", OptionKind::Size), option("stride", OptionKind::Size), option("padding", PADDINGS)];
const RECURRENT: &[OptionDef] = &[required("units", OptionKind::Size), option("last", OptionKind::Truth), SEED];

/// All layers.
pub const LAYERS: &[LayerDef] = &[
    LayerDef {
        name: "dense",
        also: &["linear", "fully_connected", "fc", "affine"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[required("units", OptionKind::Size), option("activation", ACTIVATIONS), SEED],
    },
    LayerDef {
        name: "conv",
        also: &["conv2d", "convolution"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[
            required("filters", OptionKind::Size),
            required("size", OptionKind::Size),
            option("stride", OptionKind::Size),
            option("padding", PADDINGS),
            option("activation", ACTIVATIONS),
            SEED,
        ],
    },
    LayerDef {
        name: "max_pool",
        also: &["maxpool", "maxpooling2d", "maxpool2d", "pool"],
        inputs: (1, 1),
        keeps_dtype: true,
        options: POOL,
    },
    LayerDef {
        name: "avg_pool",
        also: &["avgpool", "averagepooling2d", "avgpool2d", "mean_pool"],
        inputs: (1, 1),
        keeps_dtype: true,
        options: POOL,
    },
    LayerDef { name: "flatten", also: &[], inputs: (1, 1), keeps_dtype: true, options: &[] },
    LayerDef {
        name: "dropout",
        also: &[],
        inputs: (1, 1),
        keeps_dtype: true,
        options: &[required("rate", OptionKind::Share), SEED],
    },
    LayerDef {
        name: "batch_norm",
        also: &["batchnorm", "batchnormalization", "batchnorm2d", "norm"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[option("activation", ACTIVATIONS)],
    },
    LayerDef {
        name: "layer_norm",
        also: &["layernorm", "layernormalization"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[],
    },
    LayerDef {
        name: "embedding",
        also: &["embed", "lookup"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[required("rows", OptionKind::Size), required("width", OptionKind::Size), SEED],
    },
    LayerDef { name: "lstm", also: &["rnn"], inputs: (1, 1), keeps_dtype: false, options: RECURRENT },
    LayerDef { name: "gru", also: &[], inputs: (1, 1), keeps_dtype: false, options: RECURRENT },
    LayerDef { name: "attention", also: &["attend"], inputs: (3, 4), keeps_dtype: true, options: &[] },
    LayerDef {
        name: "self_attention",
        also: &["selfattention", "multiheadattention", "multi_head_attention"],
        inputs: (1, 1),
        keeps_dtype: false,
        options: &[required("heads", OptionKind::Size), option("causal", OptionKind::Truth), SEED],
    },
];
