//! Attributes and tensors chosen by bytes; once the bytes are used up, the first of each list.

use meshtf_graph::Attr;
use meshtf_graph::op::{AttrDef, AttrKind};
use meshtf_tensor::{Complex, DType, Data, Numeric, PartialShape, Tensor, with_float, with_stored};

/// Small numbers, numbers beyond every limit, and the ends of integer types.
const INTS: [i64; 24] = [
    0,
    1,
    2,
    3,
    4,
    -1,
    -2,
    7,
    1 << 31,
    1 << 32,
    1 << 33,
    1 << 62,
    (1 << 62) + 1,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
    i64::MIN + 1,
    -(1 << 31),
    -(1 << 33),
    -(1 << 62),
    u32::MAX as i64,
    -3,
    5,
    1 << 61,
];

const SMALL_INTS: usize = 5;

const FLOATS: [f64; 16] = [
    0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    3.0,
    -0.0,
    -2.5,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1e30,
    -1e30,
    1e-30,
    1e-40,
    1e300,
];

const TEXTS: [&[u8]; 16] = [
    b"",
    b"a",
    b"1",
    b"-1.5e3",
    b"nan",
    b"99999999999999999999999999",
    b"%s%d",
    b"(a|b)*[",
    b"a b,c",
    b"\xff\xfe",
    b"ij,jk->ik",
    b"...ij->...",
    b"i->iii",
    b"h\xc3\xa9",
    b"2 2 0,1:-",
    b"a{99999}{99999}",
];

const DTYPES: [DType; 23] = [
    DType::F32,
    DType::I32,
    DType::I64,
    DType::F64,
    DType::Bool,
    DType::String,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::C64,
    DType::C128,
    DType::QI8,
    DType::QU8,
    DType::QI16,
    DType::QU16,
    DType::QI32,
    DType::Resource,
    DType::Variant,
];

pub(super) struct Choices<'a> {
    bytes: &'a [u8],
    /// The first dtype that was chosen. The other dtypes mostly have to match it.
    wanted: Option<DType>,
    /// The largest int32 to choose. It is small if elements have one byte: `i32::MAX` of those would be within the limit, and
    /// really be allocated.
    pub most: i32,
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Choices { bytes, wanted: None, most: i32::MAX }
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    /// A number from 0 to before `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    /// One of `allowed`, or of all if it is empty.
    pub fn dtype(&mut self, allowed: &[DType]) -> DType {
        if allowed.is_empty() { DTYPES[self.below(DTYPES.len())] } else { allowed[self.below(allowed.len())] }
    }

    /// Mostly a number that a well-meaning program has.
    fn int(&mut self) -> i64 {
        let most = if self.below(4) == 0 { INTS.len() } else { SMALL_INTS };
        INTS[self.below(most)]
    }

    fn text(&mut self) -> Vec<u8> {
        TEXTS[self.below(TEXTS.len())].to_vec()
    }

    fn partial_shape(&mut self) -> PartialShape {
        if self.below(4) == 0 {
            return PartialShape(None);
        }
        let dim = |choices: &mut Self| match choices.below(16) {
            0 => None,
            1 => Some(1 << 62),
            2 => Some(usize::MAX),
            3 => Some(1 << 33),
            small => Some(small % 4),
        };
        PartialShape(Some((0..self.below(4)).map(|_| dim(self)).collect()))
    }

    /// `None` for an attribute that is inferred or has a default.
    pub fn attr(&mut self, def: &AttrDef) -> Option<Attr> {
        if def.kind == AttrKind::Type && self.below(8) != 0 {
            // A dtype that most kernels support, so that many ops get as far as computing.
            let allowed = |dtype: &DType| def.types.is_empty() || def.types.contains(dtype);
            let common: Vec<DType> = DTYPES[..4].iter().copied().filter(allowed).collect();
            let dtype = match self.wanted.filter(allowed) {
                Some(dtype) => dtype,
                None => self.dtype(if common.is_empty() { &def.types } else { &common }),
            };
            self.wanted.get_or_insert(dtype);
            return Some(if def.is_list { Attr::Types(vec![dtype]) } else { Attr::Type(dtype) });
        }
        if def.default.is_some() && self.below(2) == 0 {
            return None;
        }
        let least = def.minimum.unwrap_or(i64::MIN);
        if def.is_list && def.kind == AttrKind::Int && self.below(4) != 0 {
            // Windows and strides over images.
            let length = if least == 5 { 5 } else { 4 };
            let inner = |i: usize| i > 0 && i + 1 < length;
            let size = |choices: &mut Self, i| if inner(i) { INTS[1 + choices.below(2)] } else { 1 };
            return Some(Attr::Ints((0..length).map(|i| size(self, i)).collect()));
        }
        let length = if def.is_list { self.below(6).max(usize::try_from(least).unwrap_or(0).min(6)) } else { 1 };
        Some(match (def.kind, def.is_list) {
            (AttrKind::Int, false) => Attr::Int(self.int().max(least)),
            (AttrKind::Int, true) => Attr::Ints((0..length).map(|_| self.int()).collect()),
            (AttrKind::Float, false) => Attr::Float(FLOATS[self.below(FLOATS.len())] as f32),
            (AttrKind::Float, true) => {
                Attr::Floats((0..length).map(|_| FLOATS[self.below(FLOATS.len())] as f32).collect())
            }
            (AttrKind::Bool, false) => Attr::Bool(self.below(2) == 1),
            (AttrKind::Bool, true) => Attr::Bools((0..length).map(|_| self.below(2) == 1).collect()),
            (AttrKind::Str, false) if !def.strings.is_empty() => {
                Attr::Str(def.strings[self.below(def.strings.len())].as_bytes().to_vec())
            }
            (AttrKind::Str, false) => Attr::Str(self.text()),
            (AttrKind::Str, true) => Attr::Strs((0..length).map(|_| self.text()).collect()),
            (AttrKind::Type, false) => Attr::Type(self.dtype(&def.types)),
            (AttrKind::Type, true) => Attr::Types((0..length.min(3)).map(|_| self.dtype(&def.types)).collect()),
            (AttrKind::Shape, false) => Attr::Shape(self.partial_shape()),
            (AttrKind::Shape, true) => Attr::Shapes((0..length).map(|_| self.partial_shape()).collect()),
            (AttrKind::Tensor, _) => {
                let dtype = self.dtype(&DTYPES[..21]);
                Attr::Tensor(self.tensor(dtype, None))
            }
            (AttrKind::Func, _) => return None,
        })
    }

    /// A few elements. Mostly of the shape `beside` (the shape of another input), or as many numbers as it has dimensions.
    pub fn tensor(&mut self, dtype: DType, beside: Option<&[usize]>) -> Tensor {
        let dims = match (self.below(12), beside) {
            (0..=5, Some(dims)) => dims.to_vec(),
            (0..=3, None) => vec![1, 4, 4, 1 + self.below(3)],
            (6..=7, Some(dims)) => vec![dims.len()],
            (8, _) => Vec::new(),
            (9, _) => vec![self.below(5)],
            (10, _) => vec![1 + self.below(2), 1 + self.below(4), 1 + self.below(4), 1 + self.below(3)],
            _ => (0..self.below(5)).map(|_| self.below(4)).collect(),
        };
        self.filled(dtype, dims)
    }

    pub fn scalar(&mut self, dtype: DType) -> Tensor {
        self.filled(dtype, Vec::new())
    }

    pub fn filled(&mut self, dtype: DType, dims: Vec<usize>) -> Tensor {
        let count = dims.iter().product();
        let data = match dtype {
            DType::Bool => Data::Bool((0..count).map(|_| self.below(2) == 1).collect()),
            DType::String | DType::Resource | DType::Variant => Data::String((0..count).map(|_| self.text()).collect()),
            DType::C64 | DType::C128 => {
                let mut part = || FLOATS[self.below(FLOATS.len())];
                let pairs: Vec<Complex<f64>> = (0..count).map(|_| Complex::new(part(), part())).collect();
                match dtype {
                    DType::C64 => Data::C64(pairs.iter().map(|x| Complex::new(x.re as f32, x.im as f32)).collect()),
                    _ => Data::C128(pairs),
                }
            }
            _ if dtype.is_float() => {
                return with_float!(dtype, T => {
                    let floats = (0..count).map(|_| <T as Numeric>::from_f64(FLOATS[self.below(FLOATS.len())]));
                    Tensor::from_vec(dims, floats.collect::<Vec<T>>())
                })
                .expect("it is a float");
            }
            _ => {
                let int = |choices: &mut Self| match choices.int() {
                    n if dtype == DType::I64 || i32::try_from(n).is_ok() => n,
                    n if n < 0 => i64::from(i32::MIN),
                    _ => i64::from(choices.most),
                };
                return with_stored!(dtype, T => {
                    let ints = (0..count).map(|_| <T as Numeric>::from_i64(int(self)));
                    Tensor::from_stored(dtype, dims, ints.collect::<Vec<T>>())
                })
                .expect("it is a whole number");
            }
        };
        Tensor::new(dims, data).expect("as many as the shape holds")
    }
}
