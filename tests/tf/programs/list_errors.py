"""Errors of lists of tensors in TensorFlow's words, and files that only some versions of TensorFlow decode."""

import struct

import numpy as np

from client import check, on_tensorflow, raises, target, tf

CLUSTER = {"local": 1}

raw = tf.raw_ops


def shape(*sizes):
    return tf.placeholder_with_default(np.array(sizes, np.int32), None)


def given(value):
    """A value whose shape and contents the client does not know."""
    return tf.placeholder_with_default(value, None)


def rows(count=2, *sizes):
    sizes = sizes or (2,)
    return raw.TensorListFromTensor(tensor=given(np.zeros((count, *sizes), np.float32)), element_shape=shape(*sizes))


def unset(count, *sizes):
    return raw.TensorListReserve(element_shape=shape(*sizes), num_elements=given(count), element_dtype=tf.float32)


def scattered(tensor, indices, sizes, count=-1):
    return raw.TensorListScatterV2(
        tensor=given(np.float32(tensor)), indices=given(indices), element_shape=shape(*sizes), num_elements=given(count)
    )


def length(made):
    return raw.TensorListLength(input_handle=made)


FLOATS = {"element_dtype": tf.float32}
NO_LENGTHS = np.zeros([0], np.int64)

CASES = [
    (
        lambda: length(raw.TensorListSetItem(input_handle=rows(), index=0, item=given(np.int32([1, 2])))),
        "Invalid data types; op elements int32 but list elements float",
    ),
    (
        lambda: raw.TensorListStack(input_handle=unset(3, -1), element_shape=shape(-1), **FLOATS),
        "Tried to stack list which only contains uninitialized tensors and has a non-fully-defined element_shape: [?]",
    ),
    (
        lambda: raw.TensorListGather(
            input_handle=unset(0, -1), indices=given(np.zeros([0], np.int32)), element_shape=shape(-1), **FLOATS
        ),
        "Tried to gather 0-elements from a list with non-fully-defined shape: [?]",
    ),
    (lambda: length(scattered([[1, 2]], [-1], [2])), "Indices in TensorListScatter must all be non-negative."),
    (
        lambda: length(scattered([[1, 2]], [5], [2], 2)),
        "TensorListScatter: Trying to scatter at index 5 in list with size 2",
    ),
    (lambda: length(scattered(1, [0], [2])), "Tensor must be at least a vector, but saw shape: []"),
    (lambda: length(scattered([[1, 2]], [0], [3])), "Specified a list with shape [3] from a tensor with shape [2]"),
    (
        lambda: length(raw.TensorListFromTensor(tensor=given(np.float32([[1, 2]])), element_shape=shape(3))),
        "Specified a list with shape [3] from a tensor with shape [2]",
    ),
    (lambda: length(unset(-2, 2)), "The num_elements to reserve must be a non negative number, but got -2"),
    (
        lambda: length(raw.TensorListResize(input_handle=rows(), size=given(-1))),
        "TensorListSlice expects size to be non-negative. Got: -1",
    ),
    (
        lambda: raw.TensorListConcatV2(
            input_handle=unset(0, -1, -1), element_shape=shape(-1, -1), leading_dims=given(NO_LENGTHS), **FLOATS
        )[0],
        "All except the first dimension must be fully defined when concating an empty tensor list. element_shape: [?]",
    ),
    (
        lambda: raw.TensorListConcatV2(
            input_handle=unset(3, -1, 2), element_shape=shape(-1, 2), leading_dims=given(NO_LENGTHS), **FLOATS
        )[0],
        "List contains uninitialized tensor at index 0 but leading_dims has only 0 elements.",
    ),
    (
        lambda: length(raw.TensorListConcatLists(input_a=rows(2, 2), input_b=rows(2, 3), **FLOATS)),
        "input_a and input_b TensorList element shapes are not identical at index 0.  Saw [2] vs. [3]",
    ),
    (
        lambda: length(raw.AddN(inputs=[rows(2, 2), rows(2, 3)])),
        "Trying to add two lists of tensors with incompatible element shapes. One is [2] and the other is [3]",
    ),
]

for make, words in CASES:
    with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
        made = make()
        with raises(tf.errors.InvalidArgumentError, words):
            session.run(made)

# Elements that are scattered into a list need not have its shape.
with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
    into = raw.TensorListScatterIntoExistingList(input_handle=rows(), tensor=given(np.float32([[1, 2, 3]])), indices=given([4]))
    check(session.run(length(into)) == 5)

if not on_tensorflow():
    # TensorFlow 1 decodes a BMP whatever its first two bytes; its own test has these. TensorFlow 2 does not.
    pixels = bytes(range(16))
    file = struct.pack("<2sIHHI", b"B@", 70, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 24, 0, 16, 0, 0, 0, 0) + pixels
    with tf.Graph().as_default(), tf.Session(target("local/0")) as session:
        # Rows from below, blue before red, two bytes of padding.
        expected = [[[10, 9, 8], [13, 12, 11]], [[2, 1, 0], [5, 4, 3]]]
        check(session.run(tf.image.decode_bmp(file)).tolist() == expected)
