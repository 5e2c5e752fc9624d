#!/usr/bin/env python3
"""Kernels, forward and backward, on one server: a meshtf binary beside TensorFlow's own server, by turns.

    kernels.py                                     every kernel on the binary that MESHTF names, and on TensorFlow
    kernels.py --rounds 9 --on old=PATH new=PATH softmax   that kernel on two binaries

A step runs a kernel several times, one after the other, on variables, mostly of float32, so that the client has next to no share in it.
Each line has the median milliseconds of one run, and the ratio of the rates. `backward` runs the gradient alone: what it needs of
the forward pass is computed once in the step. An output that may be a view is consumed by an add.
"""

import statistics

import turns

# Runs of a kernel in one step.
RUNS = 10


def matmul_256(tf, of):
    return tf.matmul(of(256, 256), of(256, 256))


def matmul_512(tf, of):
    return tf.matmul(of(512, 512), of(512, 512))


def matmul_1024(tf, of):
    return tf.matmul(of(1024, 1024), of(1024, 1024))


def matmul_2048(tf, of):
    return tf.matmul(of(2048, 2048), of(2048, 2048))


def matmul_of_an_lstm(tf, of):
    return tf.matmul(of(64, 156), of(156, 512))


def matmul_to_one_column(tf, of):
    return tf.matmul(of(2048, 1024), of(1024, 1))


def batch_matmul(tf, of):
    return tf.matmul(of(64, 64, 32), of(64, 32, 64))


def conv_3x3(tf, of):
    return tf.nn.conv2d(of(16, 32, 32, 32), of(3, 3, 32, 32), strides=1, padding="SAME")


def conv_5x5(tf, of):
    return tf.nn.conv2d(of(16, 14, 14, 32), of(5, 5, 32, 64), strides=1, padding="SAME")


def max_pool(tf, of):
    return tf.nn.max_pool2d(of(32, 28, 28, 32), 2, 2, "SAME")


def average_pool(tf, of):
    return tf.nn.avg_pool2d(of(32, 28, 28, 32), 2, 2, "SAME")


def max_pool_3x3(tf, of):
    return tf.nn.max_pool2d(of(16, 32, 32, 32), 3, 2, "SAME")


def average_pool_3x3(tf, of):
    return tf.nn.avg_pool2d(of(16, 32, 32, 32), 3, 1, "SAME")


def max_pool_of_volumes(tf, of):
    return tf.nn.max_pool3d(of(2, 16, 32, 32, 16), 2, 2, "SAME")


def depthwise_conv(tf, of):
    return tf.nn.depthwise_conv2d(of(16, 32, 32, 32), of(3, 3, 32, 1), [1, 1, 1, 1], "SAME")


def batch_norm(tf, of):
    return tf.nn.fused_batch_norm(of(32, 32, 32, 16), of(16), of(16))[0]


def layer_norm(tf, of):
    x, scale, offset = of(1024, 1024), of(1024), of(1024)
    mean, variance = tf.nn.moments(x, 1, keepdims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-5) * scale + offset


def softmax(tf, of):
    return tf.nn.softmax(of(1024, 1024))


def softmax_of_short_rows(tf, of):
    return tf.nn.softmax(of(32, 8, 64, 64))


def cross_entropy(tf, of):
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.nn.softmax(of(1024, 1000)), logits=of(1024, 1000))


def sum_of_rows(tf, of):
    return tf.reduce_sum(of(2048, 1024), 1)


def sum_of_short_rows(tf, of):
    return tf.reduce_sum(of(16_384, 64), 1)


def sum_of_columns(tf, of):
    return tf.reduce_sum(of(2048, 1024), 0)


def greatest(tf, of):
    return tf.reduce_max(of(2048, 1024), 1)


def place_of_greatest(tf, of):
    return tf.cast(tf.argmax(of(1024, 512), 1), tf.float32)


def place_of_greatest_class(tf, of):
    return tf.cast(tf.argmax(of(10_000, 10), 1), tf.float32)


def transpose(tf, of):
    return tf.transpose(of(1024, 1024))


def transpose_heads(tf, of):
    return tf.transpose(of(8, 128, 8, 64), [0, 2, 1, 3])


def concat(tf, of):
    return tf.concat([of(1024, 512), of(1024, 512)], 1)


def slice_columns(tf, of):
    return of(1024, 1024)[:, 256:768]


def gather(tf, of):
    rows = tf.cast(tf.abs(of(4096)) * 20_000, tf.int32)
    return tf.gather(of(50_000, 128), tf.minimum(rows, 49_999))


def bias(tf, of):
    return tf.nn.bias_add(of(2048, 1024), of(1024))


def multiply(tf, of):
    return of(2048, 1024) * of(2048, 1024)


def scaled_rows(tf, of):
    return of(16_384, 64) * of(16_384, 1)


def scaled_channels(tf, of):
    return of(16, 32, 32, 64) * of(16, 1, 1, 64)


def divide(tf, of):
    return of(2048, 1024) / (of(2048, 1024) + 3.0)


def power(tf, of):
    return tf.pow(tf.abs(of(512, 1024)) + 0.1, 1.7)


def exp(tf, of):
    return tf.exp(of(1024, 1024))


def log(tf, of):
    return tf.log(tf.abs(of(1024, 1024)) + 0.1)


def tanh(tf, of):
    return tf.tanh(of(1024, 1024))


def sigmoid(tf, of):
    return tf.sigmoid(of(1024, 1024))


def sine(tf, of):
    return tf.sin(of(512, 1024))


def angle(tf, of):
    return tf.atan2(of(512, 512), of(512, 512) + 2)


def floor(tf, of):
    return tf.floor(10 * of(1024, 1024))


def relu(tf, of):
    return tf.nn.relu(of(2048, 1024))


def elu(tf, of):
    return tf.nn.elu(of(1024, 1024))


def square_root(tf, of):
    return tf.sqrt(tf.abs(of(1024, 1024)) + 0.1)


def select(tf, of):
    x = of(1024, 1024)
    return tf.where(x > 0, x, of(1024, 1024))


def select_rows(tf, of):
    x = of(1024, 1024)
    return tf.where(x[:, 0] > 0, x, of(1024, 1024))


def leaky_relu(tf, of):
    return tf.nn.leaky_relu(of(2048, 1024))


def dropout(tf, of):
    return tf.nn.dropout(of(1024, 1024), rate=0.1, seed=5)


def random_normal(tf, of):
    return tf.random_normal([512, 1024], seed=5)


def masked_add(tf, of):
    return of(16, 8, 128, 128) + of(16, 1, 1, 128)


def greatest_over_time(tf, of):
    return tf.reduce_max(of(64, 128, 256), 1)


def cast_ints(tf, of):
    return tf.cast(of(2048, 1024, dtype=tf.int32), tf.float32)


def cast_images(tf, of):
    return tf.cast(of(64, 96, 96, 3, dtype=tf.uint8), tf.float32)


def embedding(tf, of):
    table = of(50_000, 128, resource=True)
    rows = tf.cast(tf.abs(of(4096)) * 20_000, tf.int32)
    return tf.gather(table, tf.minimum(rows, 49_999))


def l2_loss(tf, of):
    return tf.nn.l2_loss(of(2048, 1024))


def local_response(tf, of):
    return tf.nn.lrn(of(32, 24, 24, 64), 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def block_lstm(tf, of):
    """70 steps of 32 examples, by 64 cells."""
    x, states, outputs = of(70, 32, 64), of(32, 64), of(32, 64)
    w, wci, wcf, wco, b = of(128, 256), of(64), of(64), of(64), of(256)
    steps = tf.constant(70, tf.int64)
    lstm = tf.raw_ops.BlockLSTM
    return lstm(seq_len_max=steps, x=x, cs_prev=states, h_prev=outputs, w=w, wci=wci, wcf=wcf, wco=wco, b=b)[6]


def block_lstm_of_one(tf, of):
    """One example, 128 cells."""
    x, states, outputs = of(70, 1, 64), of(1, 128), of(1, 128)
    w, wci, wcf, wco, b = of(192, 512), of(128), of(128), of(128), of(512)
    steps = tf.constant(70, tf.int64)
    lstm = tf.raw_ops.BlockLSTMV2
    return lstm(seq_len_max=steps, x=x, cs_prev=states, h_prev=outputs, w=w, wci=wci, wcf=wcf, wco=wco, b=b)[6]


def lstm_block_cell(tf, of):
    x, states, outputs = of(32, 64), of(32, 64), of(32, 64)
    w, wci, wcf, wco, b = of(128, 256), of(64), of(64), of(64), of(256)
    return tf.raw_ops.LSTMBlockCell(x=x, cs_prev=states, h_prev=outputs, w=w, wci=wci, wcf=wcf, wco=wco, b=b)[6]


def lstm_block_cell_grad(tf, of):
    x, w, wci, wcf, wco, b = of(32, 64), of(128, 256), of(64), of(64), of(64), of(256)
    names = ("cs_prev", "h_prev", "i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad")
    more = {name: of(32, 64) for name in names}
    return tf.raw_ops.LSTMBlockCellGrad(x=x, w=w, wci=wci, wcf=wcf, wco=wco, b=b, use_peephole=False, **more)[1]


def gru_block_cell(tf, of):
    x, outputs, w_ru, w_c, b_ru, b_c = of(32, 64), of(32, 64), of(128, 128), of(128, 64), of(128), of(64)
    return tf.raw_ops.GRUBlockCell(x=x, h_prev=outputs, w_ru=w_ru, w_c=w_c, b_ru=b_ru, b_c=b_c)[3]


def gru_block_cell_grad(tf, of):
    x, outputs, w_ru, w_c, b_ru, b_c = of(32, 64), of(32, 64), of(128, 128), of(128, 64), of(128), of(64)
    more = {name: of(32, 64) for name in ("r", "u", "c", "d_h")}
    return tf.raw_ops.GRUBlockCellGrad(x=x, h_prev=outputs, w_ru=w_ru, w_c=w_c, b_ru=b_ru, b_c=b_c, **more)[1]


def momentum(tf, of):
    rate, gradient = tf.constant(1e-6), of(2048, 1024)
    return tf.raw_ops.ApplyMomentum(var=of(2048, 1024), accum=of(2048, 1024), lr=rate, grad=gradient, momentum=rate)


FORWARD = [
    matmul_256, matmul_512, matmul_1024, matmul_2048, matmul_of_an_lstm, matmul_to_one_column, batch_matmul,
    conv_3x3, conv_5x5, depthwise_conv, max_pool, max_pool_3x3, max_pool_of_volumes, average_pool, average_pool_3x3,
    batch_norm, layer_norm, softmax, softmax_of_short_rows, cross_entropy, sum_of_rows, sum_of_short_rows, sum_of_columns,
    greatest, place_of_greatest, place_of_greatest_class, transpose, transpose_heads, concat, slice_columns, gather,
    bias, multiply, scaled_rows, scaled_channels, divide, power, exp, log, tanh, sigmoid, sine, angle, floor, relu, elu,
    square_root, select, select_rows, leaky_relu, dropout, random_normal, masked_add, greatest_over_time,
    cast_ints, cast_images, embedding, l2_loss, local_response,
    block_lstm, block_lstm_of_one, lstm_block_cell, lstm_block_cell_grad, gru_block_cell, gru_block_cell_grad,
]  # fmt: skip
# Kernels that nothing is differentiated by.
CONSTANT = [
    place_of_greatest, place_of_greatest_class, floor, random_normal, cast_ints, cast_images,
    lstm_block_cell, lstm_block_cell_grad, gru_block_cell, gru_block_cell_grad,
]  # fmt: skip
# Kernels that change their first input, and have no gradient.
UPDATES = [momentum]
# Kernels whose output, or that of their gradient, may be another view of the input: an add consumes it, on either side, so that
# the elements are moved within the step.
VIEWS = [transpose, transpose_heads, slice_columns]


def program(kernel, is_backward):
    """The kernel as a graph that runs it several times a step."""

    def build(tf):
        inputs = []

        def of(*shape, dtype=None, resource=False):
            """The kernel's next input: the same variable each time that the kernel is built."""
            nonlocal place
            if place == len(inputs):
                initial = tf.random_normal(shape, stddev=0.5, seed=3 + place)
                initial = tf.cast(tf.abs(100 * initial), dtype) if dtype else initial
                inputs.append(tf.Variable(initial, use_resource=resource, trainable=dtype is None))
            place += 1
            return inputs[place - 1]

        place = 0
        with tf.control_dependencies(None):
            once = kernel(tf, of)
            weight = tf.Variable(tf.ones(once.shape), trainable=False, use_resource=False)
        # Each run is a target of the step: what nobody takes need not be computed otherwise.
        targets, outputs = [], []
        for _ in range(RUNS):
            with tf.control_dependencies(outputs):
                if is_backward:
                    # Rows that were gathered are added up here, as optimizers without a sparse update need them.
                    outputs = [tf.convert_to_tensor(g) for g in tf.gradients(once, inputs, weight) if g is not None]
                else:
                    place = 0
                    outputs = [kernel(tf, of)]
                if kernel in VIEWS:
                    outputs = [output + 1.0 for output in outputs]
                targets += [output.op for output in outputs]
        return tf.reduce_sum(outputs[0]), targets

    build.__name__ = kernel.__name__ + ("_backward" if is_backward else "")
    return build


def main():
    asked = turns.arguments()
    programs = [program(kernel, is_backward) for kernel in FORWARD for is_backward in (False, True)[: 2 - (kernel in CONSTANT)]]
    programs += [program(kernel, False) for kernel in UPDATES]
    ratios = []
    with turns.servers(asked) as (tf, clusters):
        for build in turns.chosen(programs, asked):
            with turns.programs(tf, clusters, build) as ones:
                turns.take(ones, asked)
                ratios.append(turns.ratio(ones[0], ones[-1]))
                times = ", ".join(f"{one.name} {1e3 / statistics.median(one.rates) / RUNS:8.3f} ms" for one in ones)
                values = ", ".join(f"{one.session.run(one.value):.5g}" for one in ones)
                print(f"{build.__name__:<28} {times}, {ratios[-1]:5.2f} of {ones[-1].name}'s rate   (sums {values})", flush=True)
                if asked.trace:
                    for one in ones:
                        turns.trace(tf, one)
    turns.conclude(ratios, "kernels", asked)


if __name__ == "__main__":
    main()
