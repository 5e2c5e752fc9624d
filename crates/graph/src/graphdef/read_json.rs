//! The reader of protobuf's JSON mapping of a GraphDef.
//!
//! As protobuf's own parsers: field names in camelCase or as in the .proto file, enums by name or number, 64-bit integers as
//! strings or numbers, bytes as base64 of either alphabet, null for a default, and no unknown fields. Every error has its
//! position in the document, which pbjson's readers cannot provide.

use std::collections::BTreeMap;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use meshtf_tensor::json::{Fault, Kind, Member, Path, Value, is_whole};

use super::proto::{
    ArgDef, AttrDef, AttrValue, Dim, FunctionDef, FunctionDefLibrary, GradientDef, GraphDef, ListValue, NameAttrList,
    NodeDef, Signature, TensorProto, TensorShapeProto, Value as Held, VariantTensorDataProto, VersionDef,
    data_type_number,
};

type Read<T> = Result<T, Fault>;

pub(super) fn graph(value: &Value) -> Read<GraphDef> {
    let mut graph = GraphDef::default();
    message(value, Path::Root, "GraphDef", |field, value, path| {
        match field {
            "node" => graph.node = list(value, path, node)?,
            "library" => graph.library = Some(library(value, path)?),
            "versions" => graph.versions = Some(versions(value, path)?),
            "version" | "debugInfo" => {}
            _ => return unknown(&["node", "library", "versions"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(graph)
}

fn versions(value: &Value, path: Path) -> Read<VersionDef> {
    let mut versions = VersionDef::default();
    message(value, path, "VersionDef", |field, value, path| {
        match field {
            "producer" => versions.producer = number(value, path)?,
            "minConsumer" | "badConsumers" => {}
            _ => return unknown(&["producer", "minConsumer", "badConsumers"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(versions)
}

fn library(value: &Value, path: Path) -> Read<FunctionDefLibrary> {
    let mut library = FunctionDefLibrary::default();
    message(value, path, "FunctionDefLibrary", |field, value, path| {
        match field {
            "function" => library.function = list(value, path, function)?,
            "gradient" => library.gradient = list(value, path, gradient)?,
            _ => {}
        }
        Ok(Known::Yes)
    })?;
    Ok(library)
}

fn gradient(value: &Value, path: Path) -> Read<GradientDef> {
    let mut gradient = GradientDef::default();
    message(value, path, "GradientDef", |field, value, path| {
        match field {
            "functionName" => gradient.function_name = string(value, path)?,
            "gradientFunc" => gradient.gradient_func = string(value, path)?,
            _ => return unknown(&["functionName", "gradientFunc"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(gradient)
}

/// A function; of its fields those that specify its call and its body.
fn function(value: &Value, path: Path) -> Read<FunctionDef> {
    let mut function = FunctionDef::default();
    message(value, path, "FunctionDef", |field, value, path| {
        match field {
            "signature" => function.signature = Some(signature(value, path)?),
            "nodeDef" => function.node_def = list(value, path, node)?,
            "ret" => function.ret = strings(value, path)?,
            "controlRet" => function.control_ret = strings(value, path)?,
            _ => {}
        }
        Ok(Known::Yes)
    })?;
    Ok(function)
}

fn signature(value: &Value, path: Path) -> Read<Signature> {
    let mut signature = Signature::default();
    message(value, path, "OpDef", |field, value, path| {
        match field {
            "name" => signature.name = string(value, path)?,
            "inputArg" => signature.input_arg = list(value, path, arg_def)?,
            "outputArg" => signature.output_arg = list(value, path, arg_def)?,
            "attr" => signature.attr = list(value, path, attr_def)?,
            _ => {}
        }
        Ok(Known::Yes)
    })?;
    Ok(signature)
}

fn arg_def(value: &Value, path: Path) -> Read<ArgDef> {
    let mut arg = ArgDef::default();
    message(value, path, "OpDef.ArgDef", |field, value, path| {
        match field {
            "name" => arg.name = string(value, path)?,
            "type" => arg.r#type = data_type(value, path)?,
            "typeAttr" => arg.type_attr = string(value, path)?,
            "numberAttr" => arg.number_attr = string(value, path)?,
            "typeListAttr" => arg.type_list_attr = string(value, path)?,
            _ => {}
        }
        Ok(Known::Yes)
    })?;
    Ok(arg)
}

fn attr_def(value: &Value, path: Path) -> Read<AttrDef> {
    let mut def = AttrDef::default();
    message(value, path, "OpDef.AttrDef", |field, value, path| {
        match field {
            "name" => def.name = string(value, path)?,
            "defaultValue" => def.default_value = Some(AttrValue { value: attr(value, path)? }),
            _ => {}
        }
        Ok(Known::Yes)
    })?;
    Ok(def)
}

fn name_attr_list(value: &Value, path: Path) -> Read<NameAttrList> {
    let mut function = NameAttrList::default();
    message(value, path, "NameAttrList", |field, value, path| {
        match field {
            "name" => function.name = string(value, path)?,
            "attr" => function.attr = attrs(value, path)?,
            _ => return unknown(&["name", "attr"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(function)
}

/// An object of strings.
fn strings(value: &Value, path: Path) -> Read<BTreeMap<String, String>> {
    let Kind::Object(members) = &value.kind else { return Err(expected("an object of strings", value, path)) };
    let read = |member: &Member| Ok((member.key.to_string(), string(&member.value, path.key(&member.key))?));
    members.iter().map(read).collect()
}

fn node(value: &Value, path: Path) -> Read<NodeDef> {
    let mut node = NodeDef::default();
    message(value, path, "NodeDef", |field, value, path| {
        match field {
            "name" => node.name = string(value, path)?,
            "op" => node.op = string(value, path)?,
            "input" => node.input = list(value, path, string)?,
            "device" => node.device = string(value, path)?,
            "attr" => node.attr = attrs(value, path)?,
            "experimentalDebugInfo" | "experimentalType" => {}
            _ => return unknown(&["name", "op", "input", "device", "attr"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(node)
}

fn attrs(value: &Value, path: Path) -> Read<BTreeMap<String, AttrValue>> {
    let Kind::Object(members) = &value.kind else { return Err(expected("an object of attributes", value, path)) };
    members
        .iter()
        .map(|member| {
            let held = attr(&member.value, path.key(&member.key))?;
            Ok((member.key.to_string(), AttrValue { value: held }))
        })
        .collect()
}

fn attr(value: &Value, path: Path) -> Read<Option<Held>> {
    let mut held = None;
    message(value, path, "AttrValue", |field, value, path| {
        if held.is_some() {
            return Err(Fault::content(value, path, "an attribute has one value"));
        }
        held = Some(match field {
            "s" => Held::S(bytes(value, path)?),
            "i" => Held::I(number(value, path)?),
            "f" => Held::F(real(value, path)?),
            "b" => Held::B(boolean(value, path)?),
            "type" => Held::Type(data_type(value, path)?),
            "shape" => Held::Shape(shape(value, path)?),
            "tensor" => Held::Tensor(Box::new(tensor(value, path)?)),
            "list" => Held::List(Box::new(attr_list(value, path)?)),
            "func" => Held::Func(name_attr_list(value, path)?),
            "placeholder" => Held::Placeholder(string(value, path)?),
            _ => return unknown(&["s", "i", "f", "b", "type", "shape", "tensor", "list", "func", "placeholder"]),
        });
        Ok(Known::Yes)
    })?;
    Ok(held)
}

fn attr_list(value: &Value, path: Path) -> Read<ListValue> {
    let mut all = ListValue::default();
    message(value, path, "AttrValue.ListValue", |field, value, path| {
        match field {
            "s" => all.s = list(value, path, bytes)?,
            "i" => all.i = list(value, path, number)?,
            "f" => all.f = list(value, path, real)?,
            "b" => all.b = list(value, path, boolean)?,
            "type" => all.r#type = list(value, path, data_type)?,
            "shape" => all.shape = list(value, path, shape)?,
            "tensor" => all.tensor = list(value, path, tensor)?,
            "func" => all.func = list(value, path, name_attr_list)?,
            _ => return unknown(&["s", "i", "f", "b", "type", "shape", "tensor", "func"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(all)
}

fn shape(value: &Value, path: Path) -> Read<TensorShapeProto> {
    let mut shape = TensorShapeProto::default();
    message(value, path, "TensorShapeProto", |field, value, path| {
        match field {
            "dim" => shape.dim = list(value, path, dim)?,
            "unknownRank" => shape.unknown_rank = boolean(value, path)?,
            _ => return unknown(&["dim", "unknownRank"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(shape)
}

fn dim(value: &Value, path: Path) -> Read<Dim> {
    let mut dim = Dim::default();
    message(value, path, "TensorShapeProto.Dim", |field, value, path| {
        match field {
            "size" => dim.size = number(value, path)?,
            "name" => {}
            _ => return unknown(&["size", "name"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(dim)
}

fn variant(value: &Value, path: Path) -> Read<VariantTensorDataProto> {
    let mut variant = VariantTensorDataProto::default();
    message(value, path, "VariantTensorDataProto", |field, value, path| {
        match field {
            "typeName" => variant.type_name = string(value, path)?,
            "metadata" => variant.metadata = bytes(value, path)?,
            // No content that a constant may have needs tensors.
            "tensors" => {}
            _ => return unknown(&["typeName", "metadata", "tensors"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(variant)
}

fn tensor(value: &Value, path: Path) -> Read<TensorProto> {
    let mut tensor = TensorProto::default();
    message(value, path, "TensorProto", |field, value, path| {
        match field {
            "dtype" => tensor.dtype = data_type(value, path)?,
            "tensorShape" => tensor.tensor_shape = Some(shape(value, path)?),
            "tensorContent" => tensor.tensor_content = bytes(value, path)?,
            "floatVal" => tensor.float_val = list(value, path, real)?,
            "doubleVal" => tensor.double_val = list(value, path, real)?,
            "intVal" => tensor.int_val = list(value, path, number)?,
            "scomplexVal" => tensor.scomplex_val = list(value, path, real)?,
            "dcomplexVal" => tensor.dcomplex_val = list(value, path, real)?,
            "stringVal" => tensor.string_val = list(value, path, bytes)?,
            "int64Val" => tensor.int64_val = list(value, path, number)?,
            "boolVal" => tensor.bool_val = list(value, path, boolean)?,
            "halfVal" => tensor.half_val = list(value, path, number)?,
            "uint32Val" => tensor.uint32_val = list(value, path, number)?,
            "uint64Val" => tensor.uint64_val = list(value, path, number)?,
            "variantVal" => tensor.variant_val = list(value, path, variant)?,
            // Such dtypes are refused by their name later.
            "versionNumber" | "resourceHandleVal" | "float8Val" => {}
            _ => return unknown(&["dtype", "tensorShape", "tensorContent", "floatVal", "intVal", "stringVal"]),
        }
        Ok(Known::Yes)
    })?;
    Ok(tensor)
}

/// Whether a message has a field of that name; if not, an error with the names of its fields.
enum Known {
    Yes,
    No(&'static [&'static str]),
}

fn unknown(fields: &'static [&'static str]) -> Read<Known> {
    Ok(Known::No(fields))
}

/// Calls `read` for every field of a message that is not null, by its name in camelCase.
fn message(
    value: &Value,
    path: Path,
    what: &'static str,
    mut read: impl FnMut(&str, &Value, Path) -> Read<Known>,
) -> Read<()> {
    let Kind::Object(members) = &value.kind else { return Err(expected(&format!("an object ({what})"), value, path)) };
    for member in members.iter().filter(|member| member.value.kind != Kind::Null) {
        let path = path.key(&member.key);
        if let Known::No(fields) = read(&camel(&member.key), &member.value, path)? {
            let near = meshtf_tensor::nearest::nearest(&member.key, fields.iter().copied());
            let hint = match near.first() {
                Some(name) => format!("did you mean {name:?}?"),
                None => format!("it has {}", fields.join(", ")),
            };
            let why = format!("{what} has no field {:?}; {hint}", member.key);
            return Err(Fault::of_content(member.at, path, why));
        }
    }
    Ok(())
}

/// `tensor_shape` as `tensorShape`.
fn camel(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut letters = name.chars();
    while let Some(c) = letters.next() {
        match c {
            '_' => camel.extend(letters.next().map(|c| c.to_ascii_uppercase())),
            c => camel.push(c),
        }
    }
    camel
}

fn list<T>(value: &Value, path: Path, read: impl Fn(&Value, Path) -> Read<T>) -> Read<Vec<T>> {
    match &value.kind {
        Kind::List(items) => items.iter().enumerate().map(|(i, item)| read(item, path.index(i))).collect(),
        _ => Err(expected("a list", value, path)),
    }
}

fn string(value: &Value, path: Path) -> Read<String> {
    match &value.kind {
        Kind::String(text) => Ok(text.to_string()),
        _ => Err(expected("a string", value, path)),
    }
}

fn boolean(value: &Value, path: Path) -> Read<bool> {
    match value.kind {
        Kind::Bool(value) => Ok(value),
        _ => Err(expected("true or false", value, path)),
    }
}

fn bytes(value: &Value, path: Path) -> Read<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
    const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
    let text = match &value.kind {
        Kind::String(text) => text,
        _ => return Err(expected("bytes, as a string of base64", value, path)),
    };
    let engine = if text.contains(['-', '_']) { URL_SAFE } else { STANDARD };
    engine.decode(text.as_bytes()).map_err(|error| Fault::content(value, path, format!("invalid base64: {error}")))
}

/// A whole number, as a number or as a string.
fn number<T: TryFrom<i128>>(value: &Value, path: Path) -> Read<T> {
    let text: &str = match &value.kind {
        Kind::Number(text) => text,
        Kind::String(text) => text,
        _ => return Err(expected("a whole number", value, path)),
    };
    let read = if is_whole(text) {
        text.parse::<i128>().ok()
    } else {
        text.parse::<f64>().ok().filter(|v| v.fract() == 0.0 && v.abs() < 9.1e15).map(|v| v as i128)
    };
    read.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        let bits = size_of::<T>() * 8;
        Fault::content(value, path, format!("{text} is not a whole number of {bits} bits"))
    })
}

/// A float, as a number, as a string, or as one of the words NaN, Infinity and -Infinity.
fn real<T: FromStr>(value: &Value, path: Path) -> Read<T> {
    let text: &str = match &value.kind {
        Kind::Number(text) => text,
        Kind::String(text) => text,
        _ => return Err(expected("a number", value, path)),
    };
    text.parse().map_err(|_| Fault::content(value, path, format!("{text:?} is not a number")))
}

/// A dtype, by its name (`DT_FLOAT`) or number.
fn data_type(value: &Value, path: Path) -> Read<i32> {
    match &value.kind {
        Kind::String(name) => data_type_number(name).ok_or_else(|| {
            Fault::content(value, path, format!("{name:?} is not a dtype; they are written as DT_FLOAT is"))
        }),
        Kind::Number(_) => number(value, path),
        _ => Err(expected("a dtype such as \"DT_FLOAT\"", value, path)),
    }
}

fn expected(what: &str, value: &Value, path: Path) -> Fault {
    Fault::content(value, path, format!("expected {what}, found {}", value.describe()))
}
