//! SavedModel and MetaGraphDef: a graph with its signatures, and with the names under which its variables are saved.

// The messages and fields are documented by TensorFlow.
#![allow(missing_docs)]

use std::collections::{BTreeMap, HashMap};

use meshtf_tensor::failure::Code;
use meshtf_tensor::{DType, PartialShape, Shape};
use prost::Message as _;

use super::weigh::{self, Field, Schema};
use super::{GraphDef, TensorShapeProto, tensor};
use crate::{Attr, FormatError, NodeDef, split_tensor_name};

/// The outputs of a signature that are nodes to run first.
const INIT: &str = "__saved_model_init_op";
/// Collections with such nodes, in older files.
const INIT_COLLECTIONS: &[&str] = &["saved_model_main_op", "main_op", "legacy_init_op", "saved_model_initializers"];
/// The collection with the files that a graph reads, in older files.
const ASSETS_COLLECTION: &str = "saved_model_assets";
/// The folder beside a SavedModel's graph with the files that it reads.
pub const ASSETS: &str = "assets";
/// The version of TensorFlow whose files are written.
const WRITTEN_AS: &str = "2.21.0";
/// Longest chain of nodes that only pass a value.
const MAX_CHAIN: usize = 64;

pub mod proto {
    use std::collections::BTreeMap;

    use super::super::{GraphDef, TensorShapeProto};

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SavedModel {
        #[prost(int64, tag = "1")]
        pub saved_model_schema_version: i64,
        #[prost(message, repeated, tag = "2")]
        pub meta_graphs: Vec<MetaGraphDef>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct MetaGraphDef {
        #[prost(message, optional, tag = "1")]
        pub meta_info_def: Option<MetaInfoDef>,
        #[prost(message, optional, tag = "2")]
        pub graph_def: Option<GraphDef>,
        #[prost(message, optional, tag = "3")]
        pub saver_def: Option<SaverDef>,
        #[prost(btree_map = "string, message", tag = "4")]
        pub collection_def: BTreeMap<String, CollectionDef>,
        #[prost(btree_map = "string, message", tag = "5")]
        pub signature_def: BTreeMap<String, SignatureDef>,
        #[prost(message, repeated, tag = "6")]
        pub asset_file_def: Vec<AssetFileDef>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct MetaInfoDef {
        #[prost(string, repeated, tag = "4")]
        pub tags: Vec<String>,
        #[prost(string, tag = "5")]
        pub tensorflow_version: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SaverDef {
        #[prost(string, tag = "1")]
        pub filename_tensor_name: String,
        #[prost(string, tag = "2")]
        pub save_tensor_name: String,
        #[prost(string, tag = "3")]
        pub restore_op_name: String,
        #[prost(int32, tag = "4")]
        pub max_to_keep: i32,
        #[prost(bool, tag = "5")]
        pub sharded: bool,
        #[prost(int32, tag = "7")]
        pub version: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct CollectionDef {
        #[prost(message, optional, tag = "1")]
        pub node_list: Option<NodeList>,
        #[prost(message, optional, tag = "2")]
        pub bytes_list: Option<BytesList>,
        #[prost(message, optional, tag = "5")]
        pub any_list: Option<AnyList>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AnyList {
        #[prost(message, repeated, tag = "1")]
        pub value: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Any {
        #[prost(string, tag = "1")]
        pub type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct NodeList {
        #[prost(string, repeated, tag = "1")]
        pub value: Vec<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct BytesList {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub value: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SignatureDef {
        #[prost(btree_map = "string, message", tag = "1")]
        pub inputs: BTreeMap<String, TensorInfo>,
        #[prost(btree_map = "string, message", tag = "2")]
        pub outputs: BTreeMap<String, TensorInfo>,
        #[prost(string, tag = "3")]
        pub method_name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TensorInfo {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(int32, tag = "2")]
        pub dtype: i32,
        #[prost(message, optional, tag = "3")]
        pub tensor_shape: Option<TensorShapeProto>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AssetFileDef {
        #[prost(message, optional, tag = "1")]
        pub tensor_info: Option<TensorInfo>,
        #[prost(string, tag = "2")]
        pub filename: String,
    }
}

/// More than any message or entry of a map that is not of the graph takes.
const LARGEST: usize = 512;
static TEXTS: Schema = Schema(&[(1, Field::Texts), (2, Field::Text), (4, Field::Texts), (5, Field::Text)]);
static INFO: Schema = Schema(&[(1, Field::Text), (3, Field::Many(LARGEST, &ANY))]);
static INFO_ENTRY: Schema = Schema(&[(1, Field::Text), (2, Field::One(&INFO))]);
static SIGNATURE: Schema =
    Schema(&[(1, Field::Entries(LARGEST, &INFO_ENTRY)), (2, Field::Entries(LARGEST, &INFO_ENTRY)), (3, Field::Text)]);
static SIGNATURE_ENTRY: Schema = Schema(&[(1, Field::Text), (2, Field::One(&SIGNATURE))]);
static PACKED: Schema = Schema(&[(1, Field::Text), (2, Field::Text)]);
static PACKED_LIST: Schema = Schema(&[(1, Field::Many(LARGEST, &PACKED))]);
static COLLECTION: Schema = Schema(&[(1, Field::One(&TEXTS)), (2, Field::One(&TEXTS)), (5, Field::One(&PACKED_LIST))]);
static COLLECTION_ENTRY: Schema = Schema(&[(1, Field::Text), (2, Field::One(&COLLECTION))]);
static ASSET: Schema = Schema(&[(1, Field::One(&INFO)), (2, Field::Text)]);
static ANY: Schema = Schema(&[(1, Field::Numbers(8)), (2, Field::Many(LARGEST, &ANY))]);
static META: Schema = Schema(&[
    (1, Field::One(&TEXTS)),
    (2, Field::One(&weigh::GRAPH)),
    (3, Field::One(&TEXTS)),
    (4, Field::Entries(LARGEST, &COLLECTION_ENTRY)),
    (5, Field::Entries(LARGEST, &SIGNATURE_ENTRY)),
    (6, Field::Many(LARGEST, &ASSET)),
]);
static SAVED: Schema = Schema(&[(2, Field::Many(LARGEST, &META))]);

/// A graph with everything that a SavedModel or a MetaGraph says of it.
#[derive(Clone, Debug, Default)]
pub struct MetaGraph {
    /// The words by which TensorFlow chooses among the graphs of a SavedModel, such as `serve`.
    pub tags: Vec<String>,
    /// The version of TensorFlow that wrote it.
    pub tensorflow: String,
    /// Its nodes, functions expanded.
    pub nodes: Vec<NodeDef>,
    /// Its signatures, by name.
    pub signatures: BTreeMap<String, Signature>,
    /// The variables that its saver restores.
    pub restored: Vec<Restored>,
    /// Nodes to run before the first step, besides the restoration of variables.
    pub init: Vec<String>,
    /// Tensors whose value is the path of a file, and the name of that file in the folder `assets`.
    pub assets: Vec<(String, String)>,
}

/// Named inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// The inputs.
    pub inputs: Vec<Port>,
    /// The outputs.
    pub outputs: Vec<Port>,
}

/// An input or an output of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name in the signature.
    pub name: String,
    /// The tensor in the graph.
    pub tensor: String,
    /// Its dtype; `None` if meshtf lacks it.
    pub dtype: Option<DType>,
    /// Its shape.
    pub shape: PartialShape,
}

/// A variable and its tensor in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// The node of the variable.
    pub variable: String,
    /// The key in the checkpoint.
    pub key: String,
    /// The part of that tensor, as TensorFlow writes it; empty for all of it.
    pub part: String,
}

/// The nodes by which TensorFlow saves and restores the variables of a graph, by the names that a SaverDef has for them.
#[derive(Clone, Debug)]
pub struct Saver {
    /// The tensor that is fed with the prefix of a checkpoint.
    pub filename: String,
    /// The tensor that is fetched to save.
    pub save: String,
    /// The node that is run to restore.
    pub restore: String,
}

/// A SavedModel with one graph, which serves by one signature.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The nodes.
    pub nodes: &'a [NodeDef],
    /// Their inputs and outputs.
    pub signature: &'a Signature,
    /// How the variables are restored, if there are some.
    pub saver: Option<&'a Saver>,
    /// The node to run before the first step.
    pub init: Option<&'a str>,
    /// Tensors whose value is the path of a file, and the name of that file in the folder [`ASSETS`].
    pub assets: &'a [(String, String)],
}

/// The bytes of a SavedModel.
pub fn to_saved_model(model: &Written) -> Vec<u8> {
    let Written { nodes, signature, saver, init, assets } = *model;
    let infos = |ports: &[Port]| {
        let info = |port: &Port| proto::TensorInfo {
            // TensorFlow takes names of tensors with their port alone.
            name: if port.tensor.contains(':') { port.tensor.clone() } else { format!("{}:0", port.tensor) },
            dtype: port.dtype.map_or(0, DType::proto_number),
            tensor_shape: Some(tensor::shape_proto(&port.shape)),
        };
        ports.iter().map(|port| (port.name.clone(), info(port))).collect()
    };
    let signature = proto::SignatureDef {
        inputs: infos(&signature.inputs),
        outputs: infos(&signature.outputs),
        method_name: "tensorflow/serving/predict".to_owned(),
    };
    let saver_def = saver.map(|saver| proto::SaverDef {
        filename_tensor_name: saver.filename.clone(),
        save_tensor_name: saver.save.clone(),
        restore_op_name: saver.restore.clone(),
        max_to_keep: 5,
        sharded: false,
        version: 2,
    });
    let mut signatures = BTreeMap::from([("serving_default".to_owned(), signature)]);
    let info = |name: String, dtype: Option<DType>, shape: PartialShape| proto::TensorInfo {
        name,
        dtype: dtype.map_or(0, DType::proto_number),
        tensor_shape: Some(tensor::shape_proto(&shape)),
    };
    if let Some(init) = init {
        // The name of a node, whose dtype is none.
        let outputs = BTreeMap::from([(INIT.to_owned(), info(init.to_owned(), None, PartialShape::UNKNOWN))]);
        signatures.insert(INIT.to_owned(), proto::SignatureDef { outputs, ..proto::SignatureDef::default() });
    }
    let asset = |(tensor, file): &(String, String)| proto::AssetFileDef {
        tensor_info: Some(info(tensor.clone(), Some(DType::String), (&Shape::scalar()).into())),
        filename: file.clone(),
    };
    let asset_file_def = assets.iter().map(asset).collect();
    let info = proto::MetaInfoDef { tags: vec!["serve".to_owned()], tensorflow_version: WRITTEN_AS.to_owned() };
    let meta = proto::MetaGraphDef {
        meta_info_def: Some(info),
        graph_def: Some(super::graph_def(nodes)),
        saver_def,
        signature_def: signatures,
        asset_file_def,
        ..proto::MetaGraphDef::default()
    };
    proto::SavedModel { saved_model_schema_version: 1, meta_graphs: vec![meta] }.encode_to_vec()
}

/// Whether a file is a SavedModel, by its first fields: a version, then a graph.
pub fn is_saved_model(bytes: &[u8]) -> bool {
    bytes.len() > 4 && bytes[0] == 0x08 && bytes[1] < 0x10 && bytes[2] == 0x12
}

/// Whether a file is a MetaGraphDef: what a GraphDef has no field for comes first.
pub fn is_meta_graph(bytes: &[u8]) -> bool {
    // Its first field is a message whose last field is a version of TensorFlow; a node's first is its name, its second its op.
    if bytes.first() != Some(&0x0a) || weigh::weigh(bytes, &META, weigh::MAX_GRAPH_BYTES).is_err() {
        return false;
    }
    let first = |bytes: &[u8]| {
        let mut rest = &bytes[1..];
        let length = prost::encoding::decode_varint(&mut rest).ok()?;
        let info = rest.get(..usize::try_from(length).ok()?)?;
        let after = rest.get(info.len()).copied();
        Some((proto::MetaInfoDef::decode(info).ok()?, after))
    };
    first(bytes).is_some_and(|(info, after)| {
        after == Some(0x12) && info.tensorflow_version.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// The graphs of a SavedModel.
///
/// # Errors
/// NoGraph if it is damaged or too large; those of its graphs.
pub fn saved_model(bytes: &[u8]) -> Result<Vec<MetaGraph>, FormatError> {
    check(bytes, &SAVED)?;
    let saved = proto::SavedModel::decode(bytes).map_err(|error| damaged("SavedModel", &error))?;
    saved.meta_graphs.into_iter().map(meta_graph).collect()
}

/// The graph of a MetaGraphDef.
///
/// # Errors
/// As [`saved_model`].
pub fn read_meta_graph(bytes: &[u8]) -> Result<MetaGraph, FormatError> {
    check(bytes, &META)?;
    meta_graph(proto::MetaGraphDef::decode(bytes).map_err(|error| damaged("MetaGraph", &error))?)
}

fn damaged(kind: &str, error: &prost::DecodeError) -> FormatError {
    FormatError::NoGraph { why: format!("not a valid {kind}: {error}") }
}

fn check(bytes: &[u8], schema: &'static Schema) -> Result<(), FormatError> {
    match weigh::weigh(bytes, schema, weigh::MAX_GRAPH_BYTES) {
        Err(failure) if failure.code == Code::ResourceExhausted => Err(FormatError::NoGraph { why: failure.message }),
        _ => Ok(()),
    }
}

fn meta_graph(meta: proto::MetaGraphDef) -> Result<MetaGraph, FormatError> {
    let info = meta.meta_info_def.unwrap_or_default();
    let graph: GraphDef = meta.graph_def.unwrap_or_default();
    let nodes = super::nodes(graph)?;
    let mut init: Vec<String> = Vec::new();
    let mut signatures = BTreeMap::new();
    for (name, signature) in meta.signature_def {
        if name == INIT {
            init.extend(signature.outputs.values().map(|info| split_tensor_name(&info.name).0.to_owned()));
        } else {
            signatures.insert(name, Signature { inputs: ports(signature.inputs), outputs: ports(signature.outputs) });
        }
    }
    if init.is_empty() {
        let list =
            |name: &&str| meta.collection_def.get(*name)?.node_list.as_ref().filter(|list| !list.value.is_empty());
        let named = INIT_COLLECTIONS.iter().find_map(list).into_iter().flat_map(|list| &list.value);
        init = named.map(|name| split_tensor_name(name).0.to_owned()).collect();
    }
    let assets = match meta.asset_file_def.is_empty() {
        false => meta.asset_file_def,
        true => packed_assets(meta.collection_def.get(ASSETS_COLLECTION)),
    };
    let assets = assets.into_iter().map(|asset| (asset.tensor_info.unwrap_or_default().name, asset.filename)).collect();
    let restored = restored(&nodes);
    Ok(MetaGraph { tags: info.tags, tensorflow: info.tensorflow_version, nodes, signatures, restored, init, assets })
}

/// The files that a collection names, as TensorFlow 1 wrote them.
fn packed_assets(collection: Option<&proto::CollectionDef>) -> Vec<proto::AssetFileDef> {
    let all = collection.and_then(|collection| collection.any_list.as_ref()).into_iter().flat_map(|list| &list.value);
    all.filter(|one| one.type_url.ends_with("AssetFileDef"))
        .filter_map(|one| proto::AssetFileDef::decode(one.value.as_slice()).ok())
        .collect()
}

fn ports(of: BTreeMap<String, proto::TensorInfo>) -> Vec<Port> {
    let one = |(name, info): (String, proto::TensorInfo)| Port {
        name,
        dtype: DType::from_proto(info.dtype).map(|(dtype, _)| dtype),
        shape: shape(info.tensor_shape.as_ref()),
        tensor: info.name,
    };
    // A tensor that is not one, sparse or composite, has no name.
    of.into_iter().map(one).filter(|port| !port.tensor.is_empty()).collect()
}

fn shape(of: Option<&TensorShapeProto>) -> PartialShape {
    of.and_then(|shape| tensor::partial_shape(shape).ok()).unwrap_or(PartialShape::UNKNOWN)
}

/// The variables that are assigned a tensor of a RestoreV2, and its key.
fn restored(nodes: &[NodeDef]) -> Vec<Restored> {
    let by_name: HashMap<&str, &NodeDef> = nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    // The node and the port that a value comes from, through nodes that only pass it.
    let origin = |input: &str| {
        let (mut name, mut port) = split_tensor_name(input);
        for _ in 0..MAX_CHAIN {
            let node = *by_name.get(name)?;
            match node.op.as_str() {
                "Identity" | "IdentityN" => (name, port) = split_tensor_name(node.inputs.get(port as usize)?),
                _ => return Some((node, port)),
            }
        }
        None
    };
    let texts = |input: &str| match origin(input)?.0.attrs.get("value")? {
        Attr::Tensor(value) => value.slice::<Vec<u8>>().ok().map(<[Vec<u8>]>::to_vec),
        _ => None,
    };
    let mut found = Vec::new();
    for node in nodes.iter().filter(|node| matches!(node.op.as_str(), "AssignVariableOp" | "Assign")) {
        let [variable, value, ..] = &node.inputs[..] else { continue };
        let restored = || {
            let (variable, _) = origin(variable)?;
            let (restore, port) = origin(value).filter(|(node, _)| node.op == "RestoreV2")?;
            let key = texts(restore.inputs.get(1)?)?.get(port as usize)?.clone();
            let part = texts(restore.inputs.get(2)?)?.get(port as usize)?.clone();
            let text = |bytes| String::from_utf8(bytes).ok();
            Some(Restored { variable: variable.name.clone(), key: text(key)?, part: text(part)? })
        };
        found.extend(restored());
    }
    found.sort_by(|a, b| a.variable.cmp(&b.variable));
    found.dedup_by(|a, b| a.variable == b.variable);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_model_has_its_init_and_its_files_in_the_places_of_both_versions() {
        let node = NodeDef { name: "fill".to_owned(), op: "NoOp".to_owned(), ..NodeDef::default() };
        let assets = [("path:0".to_owned(), "words.txt".to_owned())];
        let written = Written {
            nodes: &[node],
            signature: &Signature::default(),
            saver: None,
            init: Some("fill"),
            assets: &assets,
        };
        let bytes = to_saved_model(&written);
        let read = saved_model(&bytes).unwrap().remove(0);
        assert_eq!((read.init, &read.assets[..]), (vec!["fill".to_owned()], &assets[..]));
        assert_eq!(read.signatures.keys().collect::<Vec<_>>(), ["serving_default"]);
        // TensorFlow 1 names both in collections.
        let mut old = proto::SavedModel::decode(&bytes[..]).unwrap();
        let meta = &mut old.meta_graphs[0];
        let packed = |asset: &proto::AssetFileDef| proto::Any {
            type_url: "type.googleapis.com/tensorflow.AssetFileDef".to_owned(),
            value: asset.encode_to_vec(),
        };
        let any_list = Some(proto::AnyList { value: meta.asset_file_def.iter().map(packed).collect() });
        meta.asset_file_def.clear();
        meta.signature_def.remove(INIT);
        let collection = |node_list, any_list| proto::CollectionDef { node_list, any_list, ..Default::default() };
        let node_list = Some(proto::NodeList { value: vec!["fill".to_owned()] });
        meta.collection_def.insert("saved_model_main_op".to_owned(), collection(node_list, None));
        meta.collection_def.insert(ASSETS_COLLECTION.to_owned(), collection(None, any_list));
        let read = saved_model(&old.encode_to_vec()).unwrap().remove(0);
        assert_eq!((read.init, &read.assets[..]), (vec!["fill".to_owned()], &assets[..]));
    }
}
