//! Ops in words: inputs, attributes and an example, from the one line that an op has in the table. `meshtf ops`, docs/ops.md
//! and the descriptions in docs/graph.schema.json are made of these texts.

use meshtf_tensor::DType;

use super::{ArgDef, ArgType, AttrDef, AttrKind, OpDef};
use crate::attr::Attr;

/// Dtypes of an attribute that are listed; more are counted.
const MAX_TYPES: usize = 16;

/// Dtypes that are named together in a brief text.
const CLASSES: [(&str, &[DType]); 4] = [
    ("floats", &[DType::F16, DType::BF16, DType::F32, DType::F64]),
    ("complex", &[DType::C64, DType::C128]),
    ("ints", &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64]),
    ("quantized", &[DType::QI8, DType::QI16, DType::QI32, DType::QU8, DType::QU16]),
];

impl OpDef {
    /// The names of its inputs and outputs: `MatMul(a, b) -> product`.
    pub fn signature(&self) -> String {
        let names = |args: &[ArgDef]| joined(args.iter().map(|arg| arg.name.to_owned()));
        let outputs = if self.outputs.is_empty() { String::new() } else { format!(" -> {}", names(&self.outputs)) };
        format!("{}({}){outputs}", self.name, names(&self.inputs))
    }

    /// All of its inputs with their tensors: `a: T, b: T`.
    pub fn inputs_in_brief(&self) -> String {
        joined(self.inputs.iter().map(ArgDef::in_brief))
    }

    /// All of its attributes, each in brief: `transpose_a: bool = false`.
    pub fn attrs_in_brief(&self) -> Vec<String> {
        self.attrs.iter().map(|attr| self.attr_in_brief(attr)).collect()
    }

    /// A line with its inputs and outputs, and one for each attribute.
    pub fn in_brief(&self) -> String {
        let outputs = joined(self.outputs.iter().map(ArgDef::in_brief));
        let arrow = if outputs.is_empty() { "" } else { " -> " };
        let first = format!("({}){arrow}{outputs}", self.inputs_in_brief());
        std::iter::once(first).chain(self.attrs_in_brief()).collect::<Vec<_>>().join("\n")
    }

    /// The name, the kind, the range and the default of an attribute, in few words.
    fn attr_in_brief(&self, attr: &AttrDef) -> String {
        let choices = match (attr.types.is_empty(), attr.strings.is_empty()) {
            (true, true) => String::new(),
            (false, _) => format!(" ({})", by_class(&attr.types)),
            (true, false) => format!(" ({})", attr.strings.join(", ")),
        };
        let rest = match &attr.default {
            Some(default) => format!(" = {}", value(default)),
            None if self.is_inferred(attr) => ", of the inputs".to_owned(),
            None => ", required".to_owned(),
        };
        format!("{}: {}{choices}{rest}", attr.name, attr.limited_kind())
    }

    /// The kind, the range and the default of one of its attributes, in words.
    pub fn attr_in_words(&self, attr: &AttrDef) -> String {
        let mut text = attr.limited_kind();
        if !attr.types.is_empty() {
            let more = attr.types.len().saturating_sub(MAX_TYPES);
            let shown = joined(attr.types.iter().take(MAX_TYPES).map(|dtype| dtype.name().to_owned()));
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text.push_str(&format!(": {shown}{more}"));
        }
        if !attr.strings.is_empty() {
            text.push_str(&format!(": {}", attr.strings.join(", ")));
        }
        match &attr.default {
            Some(default) => text.push_str(&format!("; {} unless stated", value(default))),
            None if self.is_inferred(attr) => text.push_str("; that of the inputs"),
            None => text.push_str("; required"),
        }
        text
    }

    /// Whether an attribute follows from the inputs.
    fn is_inferred(&self, attr: &AttrDef) -> bool {
        self.inputs.iter().any(|input| match input.ty {
            ArgType::Fixed(_) => false,
            ArgType::Attr(name) | ArgType::ManyFixed(name, _) | ArgType::List(name) => name == attr.name,
            ArgType::Many(count, dtype) => count == attr.name || dtype == attr.name,
        })
    }

    /// A node of a graph.json with this op.
    pub fn example(&self) -> String {
        let mut text = format!("\"y\": {{\"op\": \"{}\"", self.name);
        if !self.inputs.is_empty() {
            let names = joined(self.inputs.iter().map(|input| format!("\"{}\"", input.name)));
            text.push_str(&format!(", \"inputs\": [{names}]"));
        }
        // Lists of one op, such as strides and dilations, have the same length.
        let length = |attr: &AttrDef| match &attr.default {
            Some(Attr::Ints(numbers)) => numbers.len(),
            _ => attr.minimum.filter(|_| attr.is_list).unwrap_or(1).max(1) as usize,
        };
        let length = self.attrs.iter().map(length).max().unwrap_or(1);
        let required = self.attrs.iter().filter(|attr| attr.default.is_none() && !self.is_inferred(attr));
        let attrs = joined(required.map(|attr| format!("\"{}\": {}", attr.name, attr.stated(length))));
        if !attrs.is_empty() {
            text.push_str(&format!(", \"attrs\": {{{attrs}}}"));
        }
        text + "}"
    }
}

impl ArgDef {
    /// Its tensors: `T`, or `N tensors of T`.
    pub fn tensors(&self) -> String {
        let kind = match self.ty {
            ArgType::Fixed(dtype) => dtype.to_string(),
            ArgType::Attr(dtype) => dtype.to_owned(),
            ArgType::Many(count, dtype) => format!("{count} tensors of {dtype}"),
            ArgType::ManyFixed(count, dtype) => format!("{count} tensors of {dtype}"),
            ArgType::List(dtypes) => format!("a tensor for each of {dtypes}"),
        };
        if self.is_ref { format!("reference to {kind}") } else { kind }
    }

    fn in_brief(&self) -> String {
        format!("{}: {}", self.name, self.tensors())
    }
}

impl AttrKind {
    /// The word for such a value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AttrKind::Int => "int",
            AttrKind::Float => "float",
            AttrKind::Bool => "bool",
            AttrKind::Str => "string",
            AttrKind::Type => "dtype",
            AttrKind::Shape => "shape",
            AttrKind::Tensor => "tensor",
            AttrKind::Func => "function",
        }
    }
}

impl AttrDef {
    /// `int >= 1`, or `list of int, at least 4`.
    fn limited_kind(&self) -> String {
        let kind = self.kind.name();
        match (self.is_list, self.minimum) {
            (true, Some(least)) => format!("list of {kind}, at least {least}"),
            (true, None) => format!("list of {kind}"),
            (false, Some(least)) => format!("{kind} >= {least}"),
            (false, None) => kind.to_owned(),
        }
    }

    /// A value that it may have; a list of this length.
    fn stated(&self, length: usize) -> String {
        let item = match self.kind {
            AttrKind::Int => self.minimum.filter(|_| !self.is_list).unwrap_or(1).max(1).to_string(),
            AttrKind::Float => "0.5".to_owned(),
            AttrKind::Bool => "true".to_owned(),
            AttrKind::Str => format!("{:?}", self.strings.first().copied().unwrap_or("text")),
            AttrKind::Type => format!("{:?}", self.types.first().map_or("float32", |dtype| dtype.name())),
            AttrKind::Shape => "[2, 3]".to_owned(),
            AttrKind::Tensor => "1.5".to_owned(),
            AttrKind::Func => "\"f\"".to_owned(),
        };
        if !self.is_list {
            return item;
        }
        format!("[{}]", vec![item; length].join(", "))
    }
}

fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Dtypes, where those of a class that are all among them are named by the class.
fn by_class(types: &[DType]) -> String {
    let mut left = types.to_vec();
    let mut words: Vec<&str> = Vec::new();
    for (name, class) in CLASSES {
        if class.iter().all(|dtype| left.contains(dtype)) {
            left.retain(|dtype| !class.contains(dtype));
            words.push(name);
        }
    }
    words.extend(left.iter().map(|dtype| dtype.name()));
    words.join(", ")
}

/// The value of an attribute as a graph.json has it.
fn value(attr: &Attr) -> String {
    fn list<T: ToString>(items: &[T]) -> String {
        format!("[{}]", joined(items.iter().map(T::to_string)))
    }
    let text = |bytes: &Vec<u8>| format!("{:?}", String::from_utf8_lossy(bytes));
    match attr {
        Attr::Int(number) => number.to_string(),
        Attr::Float(number) => number.to_string(),
        Attr::Bool(truth) => truth.to_string(),
        Attr::Str(bytes) => text(bytes),
        Attr::Type(dtype) => dtype.to_string(),
        Attr::Shape(shape) => shape.to_string(),
        Attr::Ints(numbers) => list(numbers),
        Attr::Floats(numbers) => list(numbers),
        Attr::Bools(truths) => list(truths),
        Attr::Strs(all) => list(&all.iter().map(text).collect::<Vec<_>>()),
        Attr::Types(dtypes) => list(dtypes),
        Attr::Shapes(shapes) => list(shapes),
        Attr::Empty => "[]".to_owned(),
        Attr::Tensor(tensor) | Attr::Variant(tensor) => tensor.to_string(),
        Attr::Filled(_) | Attr::Func(_) | Attr::Funcs(_) => "a value".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{all, lookup};

    #[test]
    fn an_op_is_described_in_brief() {
        for (op, text) in [
            (
                "MatMul",
                "(a: T, b: T) -> product: T\ntranspose_a: bool = false\ntranspose_b: bool = false\n\
                 T: dtype (floats, complex, int32, int64, uint8, uint16, uint32, uint64), of the inputs\n\
                 grad_a: bool = false\ngrad_b: bool = false",
            ),
            (
                "AddN",
                "(inputs: N tensors of T) -> sum: T\nN: int >= 1, of the inputs\n\
                 T: dtype (floats, complex, ints, variant), of the inputs",
            ),
            ("AccumulatorNumAccumulated", "(handle: reference to string) -> num_accumulated: int32"),
            ("NoOp", "()"),
        ] {
            assert_eq!(lookup(op).unwrap().in_brief(), text);
        }
        let conv = lookup("Conv2D").unwrap().attrs_in_brief();
        for attr in [
            "strides: list of int, required",
            "padding: string (SAME, VALID, EXPLICIT), required",
            "data_format: string (NHWC, NCHW) = \"NHWC\"",
            "dilations: list of int = [1, 1, 1, 1]",
        ] {
            assert!(conv.iter().any(|own| own == attr), "{attr}: {conv:?}");
        }
        let split = lookup("Split").unwrap();
        assert_eq!(split.inputs_in_brief(), "split_dim: int32, value: T");
        assert!(split.in_brief().contains("output: num_split tensors of T\nnum_split: int >= 1, required\n"));
    }

    /// Each text is a cell of a table in docs/ops.md, and a line of its own in the schema.
    #[test]
    fn every_op_has_a_text_on_one_line_for_each_part() {
        for op in all() {
            assert_eq!(op.attrs_in_brief().len(), op.attrs.len(), "{}", op.name);
            for text in op.attrs_in_brief().into_iter().chain([op.inputs_in_brief(), op.signature(), op.example()]) {
                assert!(!text.contains(['\n', '|']) && !text.contains("a value"), "{}: {text}", op.name);
            }
        }
    }

    #[test]
    fn an_op_is_described_in_words() {
        let op = lookup("MatMul").unwrap();
        assert_eq!(op.signature(), "MatMul(a, b) -> product");
        assert_eq!(op.example(), "\"y\": {\"op\": \"MatMul\", \"inputs\": [\"a\", \"b\"]}");
        let conv = lookup("Conv2D").unwrap();
        let words = |name: &str| conv.attr_in_words(conv.attr(name).unwrap());
        assert_eq!(words("padding"), "string: SAME, VALID, EXPLICIT; required");
        assert_eq!(words("dilations"), "list of int; [1, 1, 1, 1] unless stated");
        assert!(words("T").starts_with("dtype: float16, ") && words("T").ends_with("; that of the inputs"));
    }
}
