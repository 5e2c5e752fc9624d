//! The formats of a checkpoint as functions of bytes, for `meshtf::fuzz`.

use meshtf_tensor::{DType, Shape};

use super::bundle::Index;
use super::slice::Slice;
use super::v1::fuzz as v1;

pub fn index(bytes: &[u8]) -> bool {
    let Ok(index) = Index::decode(bytes) else { return false };
    assert_eq!(Index::decode(&index.encode()).as_ref(), Ok(&index));
    true
}

pub fn slice(text: &str) -> bool {
    let Ok(Some((shape, slice))) = Slice::parse(text) else { return false };
    let _ = slice.shape(&shape);
    let _ = slice.is_full(&shape);
    let _ = slice.key(text.as_bytes());
    true
}

/// The value of an entry of the older form: the number of a dtype, the number of elements, and the value.
pub fn part(bytes: &[u8]) -> bool {
    let [number, count, value @ ..] = bytes else { return false };
    let Some((dtype, _)) = DType::from_proto(i32::from(*number)) else { return false };
    let shape = Shape::from([usize::from(*count)]);
    let Ok(tensor) = v1::take(value, dtype, shape.clone()) else { return false };
    let again = v1::value(b"name", &Slice::full(1), &tensor).expect("what was read can be written");
    let again = v1::take(&again, dtype, shape).expect("what was written can be read");
    // NaN is not equal to itself, but its text is.
    assert_eq!(format!("{tensor:?}"), format!("{again:?}"));
    true
}

/// A pattern and a name, separated by a line feed.
pub fn pattern(text: &str) -> bool {
    text.split_once('\n').is_some_and(|(pattern, name)| v1::matches(pattern.as_bytes(), name.as_bytes()))
}

/// Examples of parts, as `(name, bytes)`.
pub fn examples() -> Vec<(&'static str, Vec<u8>)> {
    use meshtf_tensor::Tensor;

    let case = |tensor: Tensor| {
        let value = v1::value(b"name", &Slice::full(1), &tensor).expect("it is small");
        [&[tensor.dtype().proto_number() as u8, tensor.len() as u8][..], &value].concat()
    };
    vec![
        ("floats", case(Tensor::vector(vec![1.5f32, f32::NAN]))),
        ("int8", case(Tensor::vector(vec![-1i8, 127]))),
        ("strings", case(Tensor::vector(vec![b"a".to_vec(), vec![], vec![0xff, 0]]))),
    ]
}
