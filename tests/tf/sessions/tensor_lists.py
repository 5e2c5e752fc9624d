"""Lists of tensors that are scattered, split and concatenated, with what is wrong with their indices and lengths."""

from recorder.sessions import step, tf

raw = tf.raw_ops

rows = tf.placeholder(tf.float32, [None, 2], name="rows")
indices = tf.placeholder(tf.int32, [None], name="indices")
lengths = tf.placeholder(tf.int64, [None], name="lengths")
at = tf.placeholder(tf.int32, [], name="at")

VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def item(handle, name):
    return raw.TensorListGetItem(input_handle=handle, index=at, element_shape=[2], element_dtype=tf.float32, name=name)


def length(handle, name):
    return raw.TensorListLength(input_handle=handle, name=name)


scattered = raw.TensorListScatter(tensor=rows, indices=indices, element_shape=[2], name="scattered")
sized = raw.TensorListScatterV2(tensor=rows, indices=indices, element_shape=[2], num_elements=5, name="sized")
three = raw.TensorListFromTensor(tensor=[[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]], element_shape=[2], name="three")
added = raw.TensorListScatterIntoExistingList(input_handle=three, tensor=rows, indices=indices, name="added")

split = raw.TensorListSplit(tensor=rows, element_shape=[-1, 2], lengths=lengths, name="split")
whole = raw.TensorListConcat(input_handle=split, element_dtype=tf.float32, element_shape=[None, 2], name="whole")
unknown = raw.TensorListConcat(input_handle=split, element_dtype=tf.float32, element_shape=None, name="unknown")
leading = tf.constant([2, 3], tf.int64, name="leading")
padded = raw.TensorListReserve(element_shape=[-1, 2], num_elements=2, element_dtype=tf.float32, name="padded")
filled = raw.TensorListSetItem(input_handle=padded, index=1, item=rows, name="filled")
with_gap = raw.TensorListConcatV2(
    input_handle=filled, element_shape=[-1, 2], leading_dims=leading, element_dtype=tf.float32, name="with_gap"
)

several = [item(scattered, "of_scattered"), length(scattered, "n_scattered")]
STEPS = [
    step(several, feeds={rows: VALUES, indices: [2, 0, 3], at: 2}),
    step(several, feeds={rows: VALUES, indices: [2, 0, 3], at: 0}),
    step(several, feeds={rows: VALUES, indices: [1, 0, -1], at: 0}),
    step([length(sized, "n_sized"), item(sized, "of_sized")], feeds={rows: VALUES, indices: [4, 0, 2], at: 4}),
    step([tf.get_default_graph().get_tensor_by_name("of_sized:0")], feeds={rows: VALUES, indices: [4, 0, 2], at: 1}),
    step([length(added, "n_added"), item(added, "of_added")], feeds={rows: VALUES, indices: [1, 2, 4], at: 1}),
    step([tf.get_default_graph().get_tensor_by_name("of_added:0")], feeds={rows: VALUES, indices: [1, 2, 4], at: 0}),
    step([tf.get_default_graph().get_tensor_by_name("of_added:0")], feeds={rows: VALUES, indices: [1, 2, 4], at: 4}),
    # Three rows as two pieces, and together again.
    step([whole.tensor, whole.lengths, unknown.tensor], feeds={rows: VALUES, lengths: [1, 2]}),
    step([whole.tensor, whole.lengths], feeds={rows: VALUES, lengths: [0, 3, 0]}),
    step([whole.tensor], feeds={rows: VALUES, lengths: [1, 1]}),
    step([whole.tensor], feeds={rows: VALUES, lengths: [4, -1]}),
    # What was never set is zeros, as long as it says.
    step([with_gap.tensor, with_gap.lengths], feeds={rows: VALUES}),
    step([with_gap.tensor, with_gap.lengths], feeds={rows: VALUES[:1]}),
]
