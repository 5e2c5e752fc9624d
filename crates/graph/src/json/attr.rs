//! The values of attributes. The definition of the op determines the kind of each, and the kind determines its JSON.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use meshtf_tensor::json::{Fault, Kind, Path, Value, is_whole};
use meshtf_tensor::{DType, PartialShape};

use crate::op::{AttrDef, AttrKind, OpDef};
use crate::{Attr, Attrs};

type Read<T> = Result<T, Fault>;

/// Reads the attributes of a node of this op.
pub(super) fn read_all(op: &OpDef, value: &Value, path: Path) -> Read<Attrs> {
    let mut attrs = Attrs::default();
    for member in value.object(path, "attrs is an object of attributes by their names")? {
        let path = path.key(&member.key);
        let read = match op.attr(&member.key) {
            Some(def) => read(def, &member.value, path)?,
            None if member.key.starts_with('_') => free(&member.value, path)?,
            None => {
                let near = meshtf_tensor::nearest::nearest(&member.key, op.attrs.iter().map(|attr| attr.name));
                let names: Vec<&str> = op.attrs.iter().map(|attr| attr.name).collect();
                let hint = match near.first() {
                    Some(name) => format!("did you mean {name:?}?"),
                    None if names.is_empty() => "it has none".to_owned(),
                    None => format!("it has {}", names.join(", ")),
                };
                let why = format!("{} has no attribute {:?}; {hint}", op.name, member.key);
                return Err(Fault::of_content(member.at, path, why));
            }
        };
        attrs.set(&*member.key, read);
    }
    Ok(attrs)
}

fn read(def: &AttrDef, value: &Value, path: Path) -> Read<Attr> {
    if !def.is_list {
        return Ok(match def.kind {
            AttrKind::Int => Attr::Int(int(value, path)?),
            AttrKind::Float => Attr::Float(float(value, path)?),
            AttrKind::Bool => Attr::Bool(boolean(value, path)?),
            AttrKind::Str => Attr::Str(bytes(value, path)?),
            AttrKind::Type => Attr::Type(dtype(value, path)?),
            AttrKind::Shape => Attr::Shape(shape(value, path)?),
            AttrKind::Tensor => {
                let literal = super::draft::literal(value, path, &[])?;
                literal.attr(literal.dtype, &mut super::Budget::new())?
            }
            AttrKind::Func => {
                return Err(Fault::content(value, path, "functions cannot be written in graph.json; use a GraphDef"));
            }
        });
    }
    Ok(match def.kind {
        AttrKind::Int => all(value, path, int, Attr::Ints)?,
        AttrKind::Float => all(value, path, float, Attr::Floats)?,
        AttrKind::Bool => all(value, path, boolean, Attr::Bools)?,
        AttrKind::Str => all(value, path, bytes, Attr::Strs)?,
        AttrKind::Type => all(value, path, dtype, Attr::Types)?,
        AttrKind::Shape => all(value, path, shape, Attr::Shapes)?,
        AttrKind::Tensor | AttrKind::Func => {
            return Err(Fault::content(value, path, "lists of these cannot be written in graph.json"));
        }
    })
}

fn all<T>(
    value: &Value,
    path: Path,
    read: impl Fn(&Value, Path) -> Read<T>,
    attr: impl Fn(Vec<T>) -> Attr,
) -> Read<Attr> {
    let items = value.list(path, "this attribute is a list")?;
    if items.is_empty() {
        return Ok(Attr::Empty);
    }
    items.iter().enumerate().map(|(i, item)| read(item, path.index(i))).collect::<Read<_>>().map(attr)
}

/// Reads an attribute whose name begins with `_`. No op defines its kind, so the JSON determines it: a whole number is an int,
/// for example.
fn free(value: &Value, path: Path) -> Read<Attr> {
    match &value.kind {
        Kind::Bool(v) => Ok(Attr::Bool(*v)),
        Kind::Number(text) if is_whole(text) => int(value, path).map(Attr::Int),
        Kind::Number(_) => float(value, path).map(Attr::Float),
        Kind::String(_) => bytes(value, path).map(Attr::Str),
        Kind::Object(_) => bytes(value, path).map(Attr::Str),
        Kind::List(items) => match items.first().map(|first| &first.kind) {
            None => Ok(Attr::Empty),
            Some(Kind::Bool(_)) => all(value, path, boolean, Attr::Bools),
            Some(Kind::Number(text)) if is_whole(text) => all(value, path, int, Attr::Ints),
            Some(Kind::Number(_)) => all(value, path, float, Attr::Floats),
            Some(Kind::String(_) | Kind::Object(_)) => all(value, path, bytes, Attr::Strs),
            Some(_) => Err(expected("numbers, strings, or true and false, all of one kind", value, path)),
        },
        Kind::Null => Err(expected("a number, a string, true or false, or a list of these", value, path)),
    }
}

fn int(value: &Value, path: Path) -> Read<i64> {
    match value.kind {
        Kind::Number(text) if is_whole(text) => text
            .parse()
            .map_err(|_| Fault::content(value, path, format!("{text} is out of the range of a 64-bit integer"))),
        Kind::Number(text) => Err(Fault::content(value, path, format!("expected a whole number, found {text}"))),
        _ => Err(expected("a whole number", value, path)),
    }
}

fn float(value: &Value, path: Path) -> Read<f32> {
    let text: &str = match &value.kind {
        Kind::Number(text) => text,
        Kind::String(text) if matches!(&**text, "NaN" | "Infinity" | "-Infinity") => text,
        _ => return Err(expected("a number", value, path)),
    };
    match text.parse::<f32>() {
        Ok(read) if read.is_infinite() && matches!(value.kind, Kind::Number(_)) => {
            Err(Fault::content(value, path, format!("{text} is out of the range of float32")))
        }
        Ok(read) => Ok(read),
        Err(_) => Err(expected("a number", value, path)),
    }
}

fn boolean(value: &Value, path: Path) -> Read<bool> {
    match value.kind {
        Kind::Bool(read) => Ok(read),
        _ => Err(expected("true or false", value, path)),
    }
}

fn bytes(value: &Value, path: Path) -> Read<Vec<u8>> {
    match &value.kind {
        Kind::String(text) => Ok(text.as_bytes().to_vec()),
        Kind::Object(members) if matches!(members.as_slice(), [member] if member.key == "base64") => {
            let encoded = members[0].value.text(path.key("base64"))?;
            BASE64_STANDARD
                .decode(encoded)
                .map_err(|error| Fault::content(value, path, format!("invalid base64: {error}")))
        }
        _ => Err(expected("a string", value, path)),
    }
}

/// Reads the name of a dtype.
fn dtype(value: &Value, path: Path) -> Read<DType> {
    dtype_among(value, path, |_| true)
}

/// Reads the name of a dtype that literals can have: every dtype except those of handles.
pub(super) fn dtype_of_value(value: &Value, path: Path) -> Read<DType> {
    dtype_among(value, path, |dtype| !dtype.is_handle())
}

fn dtype_among(value: &Value, path: Path, is_right: impl Fn(DType) -> bool) -> Read<DType> {
    let name = match &value.kind {
        Kind::String(name) => name,
        _ => return Err(expected("a dtype such as \"float32\"", value, path)),
    };
    DType::from_name(name).filter(|&dtype| is_right(dtype)).ok_or_else(|| {
        let known: Vec<&str> = DType::all().filter(|&dtype| is_right(dtype)).map(DType::name).collect();
        let near = meshtf_tensor::nearest::nearest(name, known.iter().copied());
        let hint = match near.first() {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", known.join(", ")),
        };
        Fault::content(value, path, format!("{name:?} is not a dtype here; {hint}"))
    })
}

fn shape(value: &Value, path: Path) -> Read<PartialShape> {
    let sizes = match &value.kind {
        Kind::Null => return Ok(PartialShape::UNKNOWN),
        Kind::List(sizes) => sizes,
        _ => {
            return Err(expected(
                "a shape: a list of sizes, null for an unknown one, or null for an unknown rank",
                value,
                path,
            ));
        }
    };
    let size = |(i, size): (usize, &Value)| match size.kind {
        Kind::Null => Ok(None),
        Kind::Number(text) if is_whole(text) && text.parse::<u32>().is_ok() => Ok(text.parse().ok()),
        _ => Err(expected("a size: a whole number of at least 0, or null for an unknown one", size, path.index(i))),
    };
    sizes.iter().enumerate().map(size).collect::<Read<_>>().map(|sizes| PartialShape(Some(sizes)))
}

fn expected(what: &str, value: &Value, path: Path) -> Fault {
    let found = match value.kind {
        Kind::Number(text) => text,
        _ => value.describe(),
    };
    Fault::content(value, path, format!("expected {what}, found {found}"))
}
