"""Pictures and examples as an input pipeline of TensorFlow 1 has them: encoded, decoded, cut, summarised; and records of
`tf.train.Example`."""

import numpy as np
from tensorflow.core.framework import summary_pb2
from tensorflow.python.framework import errors

from client import check, near, raises, same, target, tf

CLUSTER = {"local": 2}

image = np.random.RandomState(3).randint(0, 256, (2, 6, 5, 3)).astype(np.uint8)
smooth = np.tile(np.linspace(30, 220, 24)[None, :, None], (16, 1, 3)).astype(np.uint8)

with tf.Graph().as_default(), tf.device("/job:local/task:1"):
    for channels in (1, 2, 3, 4):
        picture = np.random.RandomState(channels).randint(0, 65536, (4, 7, channels)).astype(np.uint16)
        back = tf.image.decode_png(tf.image.encode_png(picture), dtype=tf.uint16)
        small = tf.image.decode_image(tf.image.encode_png((picture >> 8).astype(np.uint8), compression=9))
        with tf.Session(target("local/0")) as session:
            same(session.run(back), picture)
            same(session.run(small), (picture >> 8).astype(np.uint8))
    files = tf.raw_ops.EncodePng(image=image)
    jpeg = tf.image.encode_jpeg(smooth, quality=98)
    decoded, grey = tf.image.decode_jpeg(jpeg), tf.image.decode_jpeg(jpeg, channels=1)
    shape = tf.image.extract_jpeg_shape(jpeg)
    part = tf.image.decode_and_crop_jpeg(jpeg, [3, 4, 5, 6])
    turned = tf.image.adjust_hue(tf.image.adjust_saturation(tf.constant(image[0]), 0.5), 0.5)
    boxes = tf.image.non_max_suppression([[0.0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]], [0.5, 0.9, 0.3], 3, iou_threshold=0.5)
    with tf.Session(target("local/0")) as session:
        check(session.run(files).shape == (2,))
        got = session.run(decoded)
        check(got.shape == smooth.shape and np.abs(got.astype(int) - smooth).max() <= 8)
        check(np.abs(session.run(grey)[..., 0].astype(int) - smooth[..., 0]).max() <= 8)
        check(session.run(shape).tolist() == [16, 24, 3])
        check(np.abs(session.run(part).astype(int) - smooth[3:8, 4:10]).max() <= 8)
        check(session.run(turned).shape == image[0].shape)
        check(session.run(boxes).tolist() == [1, 2])
        with raises(errors.InvalidArgumentError):
            session.run(tf.image.decode_png("no picture"))

# Summaries of pictures hold PNG files.
with tf.Graph().as_default():
    floats = np.array([[[[0.0], [1.0], [0.5]]], [[[-1.0], [0.5], [np.nan]]]], np.float32)
    summaries = [tf.summary.image("plain", tf.constant(image), max_outputs=1), tf.summary.image("floats", tf.constant(floats))]
    check("ImageSummary" in {node.op for node in tf.get_default_graph().as_graph_def().node})
    merged = tf.summary.merge(summaries)
    file = tf.placeholder(tf.string, [])
    pixels = tf.image.decode_png(file)
    with tf.Session(target("local/0")) as session:
        values = summary_pb2.Summary.FromString(session.run(merged)).value
        check([value.tag for value in values] == ["plain/image", "floats/image/0", "floats/image/1"], values)
        check([(value.image.height, value.image.width, value.image.colorspace) for value in values] == [(6, 5, 3), (1, 3, 1), (1, 3, 1)])
        pictures = [session.run(pixels, {file: value.image.encoded_image_string}) for value in values]
        same(pictures[0], image[0])
        same(pictures[1].ravel(), np.array([0, 255, 127], np.uint8))
        same(pictures[2].ravel(), np.array([1, 191, 255], np.uint8))


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


# Examples through a queue, in batches.
with tf.Graph().as_default():
    queue = tf.queue.FIFOQueue(9, [tf.string], shapes=[[]])
    put = queue.enqueue_many([[example(size=floats(1, 2), kind=ints(3)), example(size=floats(4, 5), kind=ints(6, 7))]])
    columns = {"size": tf.io.FixedLenFeature([2], tf.float32), "kind": tf.io.VarLenFeature(tf.int64), "weight": tf.io.FixedLenFeature([], tf.float32, 0.5)}
    parsed = tf.io.parse_example(queue.dequeue_many(2), columns)
    single = tf.io.parse_single_example(example(size=floats(7, 8)), columns)
    with tf.Session(target("local/0")) as session:
        session.run(put)
        got = session.run(parsed)
        near(got["size"], [[1, 2], [4, 5]])
        near(got["weight"], [0.5, 0.5])
        same(got["kind"].indices, np.array([[0, 0], [1, 0], [1, 1]]))
        same(got["kind"].values, np.array([3, 6, 7]))
        near(session.run(single)["size"], [7, 8])
