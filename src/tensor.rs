//! Values: dtypes, shapes, elements, and the file format of NumPy.

/// An element of complex64 (`Complex<f32>`) and complex128 (`Complex<f64>`).
///
/// ```
/// use meshtf::tensor::{Complex, DType, Tensor};
///
/// let z = Tensor::from([Complex { re: 3f32, im: 4.0 }, Complex { re: 0.0, im: -1.0 }]);
/// assert_eq!(z.dtype(), DType::C64);
/// assert_eq!(z.slice::<Complex<f32>>()?[0].norm(), 5.0);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::Complex;
/// The dtype of a tensor, for programs that learn it as they run.
///
/// ```
/// use meshtf::tensor::{DType, Tensor};
///
/// let dtype = DType::from_name("float32").unwrap();
/// assert_eq!((dtype, dtype.size(), dtype.is_float()), (DType::F32, Some(4), true));
/// // TensorFlow's number for it: DT_FLOAT.
/// assert_eq!(dtype.proto_number(), 1);
/// assert_eq!(Tensor::zeros(dtype, [2, 3])?.byte_len(), 24);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::DType;
/// The bound of functions that work with the elements of any dtype.
///
/// ```
/// use meshtf::tensor::{Element, Tensor};
///
/// /// The first element of a tensor.
/// fn first<T: Element>(tensor: &Tensor) -> meshtf::Result<Option<T>> {
///     Ok(tensor.slice::<T>()?.first().cloned())
/// }
///
/// assert_eq!(first::<i64>(&Tensor::from([7i64, 8]))?, Some(7));
/// assert!(first::<f32>(&Tensor::from([7i64, 8])).is_err());
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::Element;
/// The shape of a placeholder or of an attribute.
///
/// ```
/// use meshtf::tensor::PartialShape;
///
/// // Any number of examples, of three numbers each.
/// let shape = PartialShape::from([None, Some(3)]);
/// assert_eq!(shape.to_string(), "[?,3]");
/// assert!(shape.admits(&[64, 3].into()) && !shape.admits(&[3].into()));
/// assert_eq!(shape.known(), None);
/// assert!(PartialShape::UNKNOWN.admits(&[3].into()));
/// ```
#[doc(inline)]
pub use meshtf_tensor::PartialShape;
/// The shape of a tensor.
///
/// ```
/// use meshtf::tensor::Shape;
///
/// let shape = Shape::from([2, 3]);
/// assert_eq!((shape.rank(), shape.elements()), (2, Some(6)));
/// assert_eq!(shape.broadcast(&[4, 1, 3].into())?, [4, 2, 3].into());
/// let failure = shape.broadcast(&[4, 5].into()).unwrap_err();
/// assert_eq!(failure.message, "Incompatible shapes: [2,3] vs. [4,5]");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::Shape;
/// The value that a run takes and returns.
///
/// ```
/// use meshtf::tensor::{DType, Tensor};
///
/// let x = Tensor::from([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
/// assert_eq!((x.dtype(), x.dims(), x.to_string().as_str()), (DType::F32, &[2, 3][..], "[[1. 2. 3.]\n [4. 5. 6.]]"));
///
/// // A clone shares the elements until one of the two is written to.
/// let mut y = x.clone().reshaped([6])?;
/// y.slice_mut::<f32>()?[0] = -1.0;
/// assert_eq!(x.slice::<f32>()?[0], 1.0);
/// assert_eq!(y.into_vec::<f32>()?, [-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::Tensor;
/// Reads an array that NumPy saved with `numpy.save`.
///
/// ```
/// use meshtf::tensor::{DType, read_npy};
///
/// // numpy.save("x.npy", numpy.array([1, 2], dtype=numpy.uint8))
/// let mut bytes = b"\x93NUMPY\x01\x00\x38\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}".to_vec();
/// bytes.extend(b"\n\x01\x02");
/// let x = read_npy(&bytes)?;
/// assert_eq!((x.dtype(), x.slice::<u8>()?), (DType::U8, &[1, 2][..]));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::npy::read as read_npy;
/// Writes an array that NumPy reads with `numpy.load`.
///
/// ```
/// use meshtf::tensor::{Tensor, read_npy, write_npy};
///
/// let x = Tensor::from([[1.5f64, 2.5], [3.5, 4.5]]);
/// let bytes = write_npy(&x)?;
/// assert!(bytes.starts_with(b"\x93NUMPY"));
/// assert_eq!(read_npy(&bytes)?, x);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::npy::write as write_npy;
