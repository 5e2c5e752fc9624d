//! Tests of the reader and the writer of .npy.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::Complex;

/// A version 1.0 file with this header and these bytes.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn plain(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    file(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

#[test]
fn every_layout_is_read() {
    let check = |bytes: Vec<u8>, want: Tensor| assert_eq!(read(&bytes).unwrap(), want);
    check(plain("<i4", "()", &[2, 0, 0, 0]), Tensor::scalar(2i32));
    check(plain(">i4", "(2,)", &[0, 0, 0, 2, 255, 255, 255, 255]), Tensor::vector(vec![2i32, -1]));
    check(plain("|b1", "(2,)", &[1, 0]), Tensor::vector(vec![true, false]));
    check(plain("<f2", "(1, 1)", &[0, 0x3c]), Tensor::from_vec([1, 1], vec![f16::ONE]));
    check(plain("<V2", "(1,)", &[0x80, 0x3f]), Tensor::vector(vec![bf16::ONE]));
    check(plain(">u2", "(1L,)", &[1, 2]), Tensor::vector(vec![0x102u16]));
    check(plain("<f8", "(0, 3)", &[]), Tensor::zeros(DType::F64, [0, 3]).unwrap());
    check(plain("|S3", "(2,)", b"ab\0\0\0c"), Tensor::vector(vec![b"ab".to_vec(), b"\0\0c".to_vec()]));
    check(plain("<U2", "(1,)", &[0xe9, 0, 0, 0, 0, 0, 0, 0]), Tensor::vector(vec!["é".as_bytes().to_vec()]));
    check(plain(">U1", "()", &[0, 0, 0, b'a']), Tensor::scalar(b"a".to_vec()));
    let fortran = |descr: &str, data: &[u8]| {
        file(&format!("{{'shape': (2, 3), 'fortran_order': True, 'descr': \"{descr}\"}}"), data)
    };
    check(fortran("|u1", &[1, 4, 2, 5, 3, 6]), Tensor::from_vec([2, 3], vec![1u8, 2, 3, 4, 5, 6]));
    let halves = [0x3c00u16, 0x4400, 0x4000, 0x4500, 0x4200, 0x4600].map(u16::to_be_bytes).concat();
    check(fortran(">f2", &halves), Tensor::from_vec([2, 3], [1f32, 2., 3., 4., 5., 6.].map(f16::from_f32).to_vec()));
    let letters = ["a", "d", "b", "e", "c", "f"];
    let wide: Vec<u8> = letters.iter().flat_map(|letter| [0, 0, 0, letter.as_bytes()[0]]).collect();
    let strings = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.as_bytes().to_vec()).to_vec();
    check(fortran(">U1", &wide), Tensor::from_vec([2, 3], strings));
    check(plain(">V2", "(2,)", &[0x3f, 0x80, 0xbf, 0x80]), Tensor::vector(vec![bf16::ONE, -bf16::ONE]));
    check(plain(">f8", "(1,)", &(-2.5f64).to_be_bytes()), Tensor::vector(vec![-2.5f64]));
    let parts = [1.5f32, -2.0];
    let complex = Tensor::vector(vec![Complex::new(1.5f32, -2.0)]);
    check(plain("<c8", "(1,)", &parts.map(f32::to_le_bytes).concat()), complex.clone());
    check(plain(">c8", "(1,)", &parts.map(f32::to_be_bytes).concat()), complex);
    check(plain(">c16", "()", &[0.5f64, 3.0].map(f64::to_be_bytes).concat()), Tensor::scalar(Complex::new(0.5, 3.0)));
    check(plain("f4", "(1,)", &1.5f32.to_le_bytes()), Tensor::vector(vec![1.5f32]));
    check(plain("=i2", "(1,)", &[1, 2]), Tensor::vector(vec![0x201i16]));
    // The dtypes of TensorFlow's arrays of quantised numbers.
    let quantized = |field: &str, data: &[u8]| {
        file(&format!("{{'descr': [{field}], 'fortran_order': False, 'shape': (2,), }}"), data)
    };
    let of = |plain: Tensor, dtype| plain.retyped(dtype).unwrap();
    check(quantized("('qint8', '|i1')", &[1, 255]), of(Tensor::vector(vec![1i8, -1]), DType::QI8));
    check(quantized("('quint16', '<u2')", &[1, 2, 3, 0]), of(Tensor::vector(vec![0x201u16, 3]), DType::QU16));
    check(quantized("(\"qint16\", \">i2\")", &[1, 2, 255, 255]), of(Tensor::vector(vec![0x102i16, -1]), DType::QI16));
    // Versions 2.0 and 3.0 differ in the width of the header's length.
    for version in [2, 3] {
        let mut bytes = plain("|i1", "(2,)", &[1, 255]);
        bytes[6] = version;
        bytes.splice(10..10, [0, 0]);
        check(bytes, Tensor::vector(vec![1i8, -1]));
    }
}

#[test]
fn what_a_header_claims_takes_no_memory() {
    let check = |bytes: &[u8], part: &str| {
        let failure = memory::Budget::of(1 << 20).run(|| read(bytes)).unwrap_err();
        assert!(failure.message.contains(part), "{failure}");
    };
    // Petabytes, then a size that a tensor may have but this process may not allocate.
    check(&plain("<f8", "(1000000000000000,)", &[]), "exceeds the limit");
    check(&plain("<f8", "(33554432, 33554432, 33554432)", &[]), "exceeds the limit");
    check(&plain("|S1000000000000000", "(1,)", &[]), "takes 1000000000000000 bytes, but 0 follow");
    check(&plain("<f8", "(100000000,)", &[]), "OOM");
    // Nesting costs neither time nor stack.
    for nested in ["{", "(", "[", "{'descr': {", "{'shape': ("] {
        let header = nested.repeat(MAX_HEADER / 2 / nested.len());
        assert!(read(&file(&header, &[])).is_err(), "{nested}");
    }
}

#[test]
fn what_is_cut_off_or_lies_is_refused() {
    let check = |bytes: &[u8], part: &str| {
        let failure = read(bytes).unwrap_err();
        assert!(failure.message.contains(part), "{failure}");
    };
    let good = plain("<i4", "(2,)", &[0; 8]);
    check(b"", "begin with");
    check(&good[..9], "cut off within its header");
    check(&good[..30], "cut off within its header");
    check(&good[..good.len() - 1], "takes 8 bytes, but 7 follow");
    check(&plain("<i4", "(2,)", &[0; 9]), "takes 8 bytes, but 9 follow");
    check(&plain("<i4", "(1000000000000,)", &[]), "exceeds the limit");
    check(&plain("<i4", "(9223372036854775807, 4)", &[]), "exceeds the limit");
    check(&plain("<U9223372036854775807", "(2,)", &[]), "wider than memory");
    check(&plain("|S9223372036854775807", "(4,)", &[]), "more than memory holds");
    check(&plain("<i4", "(-1,)", &[]), "\"-1\" in 'shape' is not a size");
    check(&plain("|O", "(1,)", &[0]), "pickled");
    check(&plain("|S0", "(2000000000,)", &[]), "width 0");
    check(&plain("<c32", "(1,)", &[0; 32]), "complex");
    check(&plain("<f3", "(1,)", &[0; 3]), "no dtype");
    check(&plain("|b1", "(1,)", &[2]), "0 or 1");
    check(&file("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", &[0; 4]), "records");
    check(&file("{'descr': [('qint8', '<i4')], 'fortran_order': False, 'shape': (1,)}", &[0; 4]), "records");
    check(
        &file("{'descr': [('qint8', '|i1'), ('a', '|i1')], 'fortran_order': False, 'shape': (1,)}", &[0; 2]),
        "records",
    );
    check(&file("{'descr': [('qint8', '|i1'", &[]), "records");
    check(&file("{'descr': '<i4', 'shape': (1,)}", &[0; 4]), "lacks one of");
    check(&file("[[[[", &[]), "not a dict");
    check(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "the limit is 65536");
    check(b"\x93NUMPY\x09\x00", "version is 9.0");
}

#[test]
fn what_is_written_is_numpys_own() {
    // The bytes that numpy.save writes for np.array([[1, 2, 3]], '<i4').
    let mut want = b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1, 3), }".to_vec();
    want.resize(127, b' ');
    want.extend_from_slice(b"\n\x01\0\0\0\x02\0\0\0\x03\0\0\0");
    assert_eq!(write(&Tensor::from_vec([1, 3], vec![1i32, 2, 3])).unwrap(), want);
    // np.array([1, 255], tf.quint8.as_numpy_dtype).
    let mut want =
        b"\x93NUMPY\x01\x00v\x00{'descr': [('quint8', '|u1')], 'fortran_order': False, 'shape': (2,), }".to_vec();
    want.resize(127, b' ');
    want.extend_from_slice(b"\n\x01\xff");
    assert_eq!(write(&Tensor::vector(vec![1u8, 255]).retyped(DType::QU8).unwrap()).unwrap(), want);
    assert!(write(&Tensor::scalar(b"a".to_vec())).unwrap_err().message.contains("as JSON"));
}

proptest! {
    #[test]
    fn what_is_written_is_read(values in proptest::collection::vec(any::<i16>(), 0..8)) {
        for dtype in DType::all().filter(|dtype| dtype.size().is_some()) {
            let bytes: Vec<u8> = values.iter().flat_map(|&v| {
                let mut bytes = i128::from(v).to_le_bytes()[..dtype.size().unwrap()].to_vec();
                if dtype == DType::Bool { bytes[0] &= 1; }
                bytes
            }).collect();
            let tensor = Tensor::from_bytes(dtype, [values.len(), 1], &bytes).unwrap();
            let read = read(&write(&tensor).unwrap()).unwrap();
            prop_assert_eq!((read.dtype(), read.shape(), read.bytes()), (dtype, tensor.shape(), tensor.bytes()));
        }
    }

    #[test]
    fn no_damaged_file_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        for mut bytes in [plain(">U2", "(2, 1)", &[0; 16]), plain("<f8", "(3,)", &[0; 24])] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut { bytes.truncate(at); }
            let _ = read(&bytes);
        }
    }

    #[test]
    fn no_header_panics(header in r#"\{('descr'|'shape'|'fortran_order'|: |, |\(|\)|[0-9]{1,21}|True|'<[a-z][0-9]{1,2}'|"|\}){0,12}"#) {
        let _ = read(&file(&header, &[0; 8]));
    }
}
