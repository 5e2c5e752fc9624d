//! Inputs and attributes that ops answer with values, from `fitting.txt`.

use std::sync::LazyLock;

use meshtf_graph::Attr;
use meshtf_graph::op::{AttrDef, AttrKind, OpDef};
use meshtf_tensor::{Complex, DType, Data, Numeric, PartialShape, Tensor, with_float, with_stored};

/// A line of the file.
pub(super) struct Fitting {
    ops: Vec<&'static str>,
    /// By the name of the input or the attribute.
    given: Vec<(&'static str, &'static str)>,
}

static ALL: LazyLock<Vec<Fitting>> = LazyLock::new(|| {
    let lines = include_str!("fitting.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let fitting = |line: &'static str| {
        let (ops, given) = line.split_once(" | ").expect("a line has both parts");
        let given = given.split(' ').map(|given| given.split_once('=').expect("a name has a value"));
        Fitting { ops: ops.split(' ').collect(), given: given.collect() }
    };
    lines.map(fitting).collect()
});

/// The description of an input.
#[derive(Clone, Debug)]
pub(super) struct Like {
    pub dims: Vec<usize>,
    values: Option<&'static str>,
}

impl Fitting {
    pub fn of(op: &OpDef) -> Option<&'static Fitting> {
        ALL.iter().find(|fitting| fitting.ops.iter().any(|pattern| matches(pattern.as_bytes(), op.name.as_bytes())))
    }

    fn given(&self, name: &str) -> Option<&'static str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| *value)
    }

    pub fn input(&self, name: &str, is_variable: bool) -> Option<Like> {
        let given = self.given(if is_variable { "ref" } else { name }).or_else(|| self.given("*"))?;
        let (dims, values) = given.split_once(':').unwrap_or((given, ""));
        let values = Some(values).filter(|values| !values.is_empty());
        Some(Like { dims: numbers(dims).into_iter().map(|size| size as usize).collect(), values })
    }

    pub fn attr(&self, def: &AttrDef) -> Option<Attr> {
        let value = self.given.iter().find(|(name, _)| name.strip_prefix('@') == Some(def.name))?.1;
        Some(match (def.kind, def.is_list) {
            (AttrKind::Int, false) => Attr::Int(value.parse().expect("a number")),
            (AttrKind::Int, true) => Attr::Ints(numbers(value)),
            (AttrKind::Shape, true) => {
                let dims = numbers(value).into_iter().map(|size| Some(size as usize));
                Attr::Shapes(vec![PartialShape(Some(dims.collect()))])
            }
            (AttrKind::Shape, false) => {
                let dims = numbers(value).into_iter().map(|size| Some(size as usize));
                Attr::Shape(PartialShape(Some(dims.collect())))
            }
            (AttrKind::Type, false) => Attr::Type(DType::from_name(value).expect("a dtype")),
            (AttrKind::Str, false) => Attr::Str(value.as_bytes().to_vec()),
            (kind, _) => panic!("fitting.txt has no attributes of kind {kind:?} yet"),
        })
    }
}

impl Like {
    /// The given values; `None` if they are to be chosen.
    pub fn tensor(&self, dtype: DType) -> Option<Tensor> {
        let values = self.values?;
        let data = match dtype {
            DType::Bool => Data::Bool(numbers(values).into_iter().map(|n| n != 0).collect()),
            DType::String => Data::String(values.split(',').map(|text| text.as_bytes().to_vec()).collect()),
            DType::Resource | DType::Variant => return None,
            DType::C64 => Data::C64(numbers(values).into_iter().map(|n| Complex::new(n as f32, 1.0)).collect()),
            DType::C128 => Data::C128(numbers(values).into_iter().map(|n| Complex::new(n as f64, 1.0)).collect()),
            _ => {
                let dims = self.dims.clone();
                let number = |n: i64| n as f64;
                return with_float!(dtype, T => {
                    let floats = numbers(values).into_iter().map(|n| <T as Numeric>::from_f64(number(n)));
                    Tensor::from_vec(dims.clone(), floats.collect::<Vec<T>>())
                })
                .or_else(|| {
                    with_stored!(dtype, T => {
                        let ints = numbers(values).into_iter().map(<T as Numeric>::from_i64);
                        Tensor::from_stored(dtype, dims, ints.collect::<Vec<T>>())
                    })
                });
            }
        };
        Some(Tensor::new(self.dims.clone(), data).expect("as many as the shape holds"))
    }
}

fn numbers(list: &str) -> Vec<i64> {
    list.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().expect("a number")).collect()
}

/// Whether a name matches a pattern of `fitting.txt`: `?` is any one byte, `*` any number of them.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        (Some((b'?', pattern)), Some((_, name))) => matches(pattern, name),
        (Some((a, pattern)), Some((b, name))) => a == b && matches(pattern, name),
        _ => false,
    }
}
