//! The layers that a document may have, and their options.

use crate::op;

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

/// The layer of that name here or elsewhere, in whatever spelling: `dense`, `Dense`, `self attention`.
pub fn layer_named(word: &str) -> Option<&'static LayerDef> {
    let word = op::plain(word);
    let names =
        |def: &LayerDef| std::iter::once(def.name).chain(def.also.iter().copied()).any(|own| op::plain(own) == word);
    // A name here comes before one elsewhere.
    LAYERS.iter().find(|def| op::plain(def.name) == word).or_else(|| LAYERS.iter().find(|def| names(def)))
}

/// The layers of which a word means one, or is a part of their names; the one that it means comes first.
pub fn layers_like(word: &str) -> Vec<&'static LayerDef> {
    let meant = layer_named(word);
    let plain = op::plain(word);
    let others = LAYERS.iter().filter(|def| !plain.is_empty() && op::plain(def.name).contains(&plain));
    meant.into_iter().chain(others.filter(|def| meant.is_none_or(|meant| meant.name != def.name))).collect()
}

impl LayerDef {
    /// Its beginning in a document, for hints: `{"layer": "dense", …}`.
    pub fn begun(&self) -> String {
        format!("{{\"layer\": {:?}, …}}", self.name)
    }

    /// A line of a document with the options that every document states.
    pub fn example(&self) -> String {
        let inputs = if self.inputs.0 == 1 { &["x"][..] } else { &["query", "keys", "values"] };
        let required = self.options.iter().filter(|option| option.required);
        let required: String =
            required.map(|option| format!(", {:?}: {}", option.name, option.kind.example())).collect();
        format!("\"y\": {{\"layer\": {:?}, \"inputs\": {inputs:?}{required}}}", self.name)
    }
}

impl OptionKind {
    /// Its values in words.
    pub fn in_words(self) -> String {
        match self {
            OptionKind::Size => "a whole number from 1 to 1073741824".to_owned(),
            OptionKind::Share => "a number from 0 to below 1".to_owned(),
            OptionKind::Truth => "true or false".to_owned(),
            OptionKind::Seed => "a whole number of 64 bits".to_owned(),
            OptionKind::Word(words) => format!("one of {}", words.join(", ")),
        }
    }

    /// One of its values in a document.
    fn example(self) -> String {
        match self {
            OptionKind::Size => "8".to_owned(),
            OptionKind::Share => "0.5".to_owned(),
            OptionKind::Truth => "true".to_owned(),
            OptionKind::Seed => "1".to_owned(),
            OptionKind::Word(words) => format!("{:?}", words.first().copied().unwrap_or_default()),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_found_by_its_names_elsewhere() {
        let named = |word: &str| layer_named(word).map(|def| def.name);
        for (word, name) in [
            ("Dense", "dense"),
            ("Linear", "dense"),
            ("Dropout", "dropout"),
            ("LSTM", "lstm"),
            ("BatchNorm", "batch_norm"),
            ("BatchNormalization", "batch_norm"),
            ("Embedding", "embedding"),
            ("self attention", "self_attention"),
            ("MultiHeadAttention", "self_attention"),
            ("MaxPooling2D", "max_pool"),
        ] {
            assert_eq!(named(word), Some(name), "{word}");
        }
        assert_eq!([named("MatMul"), named("")], [None, None]);
        let like = |word: &str| layers_like(word).iter().map(|def| def.name).collect::<Vec<_>>();
        assert_eq!(like("pool"), ["max_pool", "avg_pool"]);
        assert_eq!(like("attention"), ["attention", "self_attention"]);
        assert_eq!(like(""), [""; 0]);
        assert_eq!(
            layer_named("fc").map(LayerDef::example).as_deref(),
            Some(r#""y": {"layer": "dense", "inputs": ["x"], "units": 8}"#)
        );
    }
}
