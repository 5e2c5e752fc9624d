//! The parser of a line of `table.txt`. The table is part of the program: a wrong line is a bug and panics.

use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::attr::Attr;
use super::super::gradient::GradientRule;
use super::{ArgDef, ArgType, AttrDef, AttrKind, OpDef, Role, ShapeRule, Unchanged};

/// Parses `Name(arg: type, …) -> (arg: type, …) | attr: kind …; … | flag …`
pub(super) fn op(line: &'static str) -> OpDef {
    let mut sections = line.split(" | ");
    let signature = sections.next().expect("a line has a first section");
    let attrs = sections.next().unwrap_or("");
    let flags = sections.next().unwrap_or("");
    let (name, rest) = signature.split_once('(').unwrap_or_else(|| panic!("no ( in {line}"));
    let (inputs, outputs) = rest.split_once(") -> (").unwrap_or_else(|| panic!("no ) -> ( in {line}"));
    let attrs: Vec<AttrDef> = split(attrs, "; ").map(attr).collect();
    OpDef {
        name,
        inputs: split(inputs, ", ").map(arg).collect(),
        outputs: split(outputs.trim_end_matches(')'), ", ").map(arg).collect(),
        attrs,
        ..facts(flags)
    }
}

/// The flags, which the head of the table explains.
fn facts(flags: &'static str) -> OpDef {
    let mut op = OpDef { stateful: false, shape: ShapeRule::OF_NEWER, ..OpDef::unknown("") };
    let mut words = split(flags, " ");
    while let Some(word) = words.next() {
        let mut next = || words.next().unwrap_or_else(|| panic!("nothing follows {word} in {flags}"));
        match word {
            "stateful" => op.stateful = true,
            "repeatable" => op.repeatable = true,
            "uninitialized" => op.allows_uninitialized = true,
            "waits" => op.waits = true,
            "shape_only" => op.uses_only_shape = true,
            "fed" => op.is_fed = true,
            "files" => op.uses_files = true,
            "any_time" => op.takes_any_time = true,
            "variable" => op.makes_variable = true,
            "reads" => op.reads_variable = true,
            "assigns" => op.assigns = true,
            "unchanged" => op.unchanged = Some(unchanged(next())),
            "shape" => assert!(
                std::mem::replace(&mut op.shape, shape(next())) == ShapeRule::OF_NEWER,
                "two shape rules: {flags}"
            ),
            "gradient" => assert!(
                matches!(std::mem::replace(&mut op.gradient, gradient(next())), GradientRule::Unstated),
                "two gradient rules: {flags}"
            ),
            "is" => op.role = role(next()),
            "as" => op.newer = Some(next()),
            other => panic!("{other} is not a flag, in {flags}"),
        }
    }
    op
}

fn unchanged(when: &str) -> Unchanged {
    match when {
        "same_shape" => Unchanged::SameShape,
        "no_axes" => Unchanged::NoAxes,
        other => panic!("{other} does not say when an op outputs its input as it is"),
    }
}

fn shape(rule: &'static str) -> ShapeRule {
    ShapeRule::named(rule).unwrap_or_else(|| panic!("{rule} is not a shape rule"))
}

fn gradient(rule: &str) -> GradientRule {
    GradientRule::named(rule).unwrap_or_else(|| panic!("{rule} is not a gradient rule"))
}

fn role(name: &str) -> Role {
    match name {
        "const" => Role::Const,
        "placeholder" => Role::Placeholder,
        "nothing" => Role::Nothing,
        "forward" => Role::Forward,
        "switch" => Role::Switch,
        "merge" => Role::Merge,
        "enter" => Role::Enter,
        "exit" => Role::Exit,
        "next" => Role::NextIteration,
        "condition" => Role::LoopCond,
        "trigger" => Role::ControlTrigger,
        other => panic!("{other} is not a role"),
    }
}

fn split(text: &'static str, by: &'static str) -> impl Iterator<Item = &'static str> {
    text.split(by).filter(|part| !part.is_empty())
}

/// Parses `x: T`, `x: float32`, `ref: ref T`, `values: N*T`, `components: *Tcomponents`
fn arg(text: &'static str) -> ArgDef {
    let (name, ty) = text.split_once(": ").unwrap_or_else(|| panic!("no type in {text}"));
    let (is_ref, ty) = ty.strip_prefix("ref ").map_or((false, ty), |ty| (true, ty));
    let ty = match (ty.split_once('*'), DType::from_name(ty)) {
        (Some(("", list)), _) => ArgType::List(list),
        (Some((number, one)), _) => match DType::from_name(one) {
            Some(dtype) => ArgType::ManyFixed(number, dtype),
            None => ArgType::Many(number, one),
        },
        (None, Some(dtype)) => ArgType::Fixed(dtype),
        (None, None) => ArgType::Attr(ty),
    };
    ArgDef { name, ty, is_ref }
}

/// Parses `T: type in float32|int32 = float32`, `N: int >= 1`, `ksize: list(int) >= 4`, `padding: string in "SAME"|"VALID"`
fn attr(text: &'static str) -> AttrDef {
    let (name, rest) = text.split_once(": ").unwrap_or_else(|| panic!("no kind in {text}"));
    let (rest, default) = rest.split_once(" = ").map_or((rest, None), |(rest, value)| (rest, Some(value)));
    let (rest, allowed) = rest.split_once(" in ").map_or((rest, ""), |(rest, values)| (rest, values));
    let (kind, minimum) = rest.split_once(" >= ").map_or((rest, None), |(rest, least)| (rest, Some(least)));
    let (is_list, kind) =
        kind.strip_prefix("list(").and_then(|k| k.strip_suffix(')')).map_or((false, kind), |kind| (true, kind));
    let kind = match kind {
        "int" => AttrKind::Int,
        "float" => AttrKind::Float,
        "bool" => AttrKind::Bool,
        "string" => AttrKind::Str,
        "type" => AttrKind::Type,
        "shape" => AttrKind::Shape,
        "tensor" => AttrKind::Tensor,
        "func" => AttrKind::Func,
        other => panic!("{other} is not a kind of attribute, in {text}"),
    };
    let allowed = split(allowed, "|");
    let (mut types, mut strings) = (Vec::new(), Vec::new());
    match kind {
        AttrKind::Type => types.extend(allowed.map(dtype)),
        AttrKind::Str => strings.extend(allowed.map(|s| s.trim_matches('"'))),
        _ => {}
    }
    AttrDef {
        name,
        kind,
        is_list,
        minimum: minimum.map(|m| m.parse().expect("a minimum is a number")),
        types,
        strings,
        default: default.filter(|&value| value != "none").map(|value| literal(kind, is_list, value)),
    }
}

fn dtype(name: &str) -> DType {
    DType::from_name(name).unwrap_or_else(|| panic!("{name} is not a dtype"))
}

fn literal(kind: AttrKind, is_list: bool, text: &'static str) -> Attr {
    let items = || split(text.trim_start_matches('[').trim_end_matches(']'), ",");
    let string = |s: &str| s.trim_matches('"').replace("\\n", "\n").into_bytes();
    match (kind, is_list) {
        (AttrKind::Int, false) => Attr::Int(text.parse().expect("an int")),
        (AttrKind::Float, false) => Attr::Float(text.parse().expect("a float")),
        (AttrKind::Bool, false) => Attr::Bool(text == "true"),
        (AttrKind::Str, false) => Attr::Str(string(text)),
        (AttrKind::Type, false) => Attr::Type(dtype(text)),
        (AttrKind::Shape, false) if text == "?" => Attr::Shape(PartialShape::UNKNOWN),
        (AttrKind::Shape, false) => Attr::Shape(PartialShape(Some(
            items().map(|d| d.parse::<i64>().ok().and_then(|d| usize::try_from(d).ok())).collect(),
        ))),
        (AttrKind::Int, true) => Attr::Ints(items().map(|i| i.parse().expect("an int")).collect()),
        (AttrKind::Float, true) => Attr::Floats(items().map(|i| i.parse().expect("a float")).collect()),
        (AttrKind::Bool, true) => Attr::Bools(items().map(|i| i == "true").collect()),
        (AttrKind::Str, true) => Attr::Strs(items().map(string).collect()),
        (AttrKind::Type, true) => Attr::Types(items().map(dtype).collect()),
        (AttrKind::Shape, true) => Attr::Shapes(Vec::new()),
        // A vector of bytes, for a colour.
        (AttrKind::Tensor, false) => {
            Attr::Tensor(Tensor::vector(items().map(|i| i.parse::<u8>().expect("a byte")).collect()))
        }
        (AttrKind::Tensor | AttrKind::Func, _) => panic!("a {kind:?} cannot have a default: {text}"),
    }
}
