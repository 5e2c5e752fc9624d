#!/usr/bin/env python3
"""Training steps of whole models on one server: meshtf binaries, and TensorFlow's own server, by turns.

    models.py                                       every model on the binary that MESHTF names, and on TensorFlow
    models.py --rounds 9 --on old=PATH new=PATH lstm   that model on two binaries
    models.py --device /gpu:0 --on meshtf=PATH tiny    on the binary's GPU; TensorFlow has none unless its wheel does

Each line has the median steps a second, and how many cores the server kept busy meanwhile. The data lie in variables, so that
neither the client nor the network has a share in a step.
"""

import statistics

import turns


def weights(tf, shape):
    fan = 1
    for size in shape[:-1]:
        fan *= size
    return tf.Variable(tf.random_normal(shape, stddev=fan**-0.5, seed=3))


def data(tf, shape):
    return tf.Variable(tf.random_normal(shape, seed=5), trainable=False)


def labels(tf, count, classes):
    return tf.Variable(tf.random_uniform([count], 0, classes, tf.int32, seed=7), trainable=False)


def dense(tf, x, inputs, outputs):
    return tf.nn.bias_add(tf.matmul(x, weights(tf, [inputs, outputs])), tf.Variable(tf.zeros([outputs])))


def trained(tf, logits, wanted):
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def mlp(tf):
    """784-1024-1024-10, b128."""
    x = data(tf, [128, 784])
    for inputs, outputs in [(784, 1024), (1024, 1024)]:
        x = tf.nn.relu(dense(tf, x, inputs, outputs))
    return trained(tf, dense(tf, x, 1024, 10), labels(tf, 128, 10))


def cnn(tf):
    """5x5x32, 5x5x64, 1024, b64."""
    x = data(tf, [64, 28, 28, 1])
    for inputs, outputs in [(1, 32), (32, 64)]:
        x = tf.nn.conv2d(x, weights(tf, [5, 5, inputs, outputs]), [1, 1, 1, 1], "SAME")
        x = tf.nn.relu(tf.nn.bias_add(x, tf.Variable(tf.zeros([outputs]))))
        x = tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    x = tf.nn.relu(dense(tf, tf.reshape(x, [64, 7 * 7 * 64]), 7 * 7 * 64, 1024))
    return trained(tf, dense(tf, x, 1024, 10), labels(tf, 64, 10))


def lstm(tf):
    """28 steps of 128 units, b64, unrolled."""
    x = data(tf, [64, 28, 28])
    kernel, bias = weights(tf, [28 + 128, 4 * 128]), tf.Variable(tf.zeros([4 * 128]))
    h = c = tf.zeros([64, 128])
    for step in tf.unstack(x, axis=1):
        gates = tf.nn.bias_add(tf.matmul(tf.concat([step, h], 1), kernel), bias)
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
    return trained(tf, dense(tf, h, 128, 10), labels(tf, 64, 10))


def lstm_loop(tf):
    """As lstm, by a while loop (tf.scan)."""
    x = tf.transpose(data(tf, [64, 28, 28]), [1, 0, 2])
    kernel, bias = weights(tf, [28 + 128, 4 * 128]), tf.Variable(tf.zeros([4 * 128]))

    def cell(state, step):
        h, c = state
        gates = tf.nn.bias_add(tf.matmul(tf.concat([step, h], 1), kernel), bias)
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        return tf.tanh(c) * tf.sigmoid(o), c

    h, _ = tf.scan(cell, x, (tf.zeros([64, 128]), tf.zeros([64, 128])))
    return trained(tf, dense(tf, h[-1], 128, 10), labels(tf, 64, 10))


def gru(tf):
    """28 steps of 128 units, b64, unrolled."""
    x, h = data(tf, [64, 28, 28]), tf.zeros([64, 128])
    gates, gate_bias = weights(tf, [28 + 128, 2 * 128]), tf.Variable(tf.ones([2 * 128]))
    candidate, bias = weights(tf, [28 + 128, 128]), tf.Variable(tf.zeros([128]))
    for step in tf.unstack(x, axis=1):
        both = tf.sigmoid(tf.nn.bias_add(tf.matmul(tf.concat([step, h], 1), gates), gate_bias))
        r, u = tf.split(both, 2, axis=1)
        c = tf.tanh(tf.nn.bias_add(tf.matmul(tf.concat([step, r * h], 1), candidate), bias))
        h = u * h + (1 - u) * c
    return trained(tf, dense(tf, h, 128, 10), labels(tf, 64, 10))


def word2vec(tf):
    """Embeddings of 50,000 x 128, b128, 64 negatives."""
    words, width = 50_000, 128
    table, out = weights(tf, [words, width]), weights(tf, [words, width])
    bias = tf.Variable(tf.zeros([words]))
    center, context = labels(tf, 128, words), labels(tf, 128, words)
    negative = tf.random_uniform([64], 0, words, tf.int32, seed=11)
    h = tf.nn.embedding_lookup(table, center)
    real = tf.reduce_sum(h * tf.nn.embedding_lookup(out, context), 1) + tf.nn.embedding_lookup(bias, context)
    noise = tf.matmul(h, tf.nn.embedding_lookup(out, negative), transpose_b=True)
    noise += tf.nn.embedding_lookup(bias, negative)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    loss = tf.reduce_mean(entropy(labels=tf.ones_like(real), logits=real))
    loss += tf.reduce_mean(tf.reduce_sum(entropy(labels=tf.zeros_like(noise), logits=noise), 1))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def autoencoder(tf):
    """784-256-64-256-784 with tanh and pow, b128."""
    x = h = tf.sigmoid(data(tf, [128, 784]))
    for inputs, outputs in [(784, 256), (256, 64), (64, 256), (256, 784)]:
        h = tf.tanh(dense(tf, h, inputs, outputs))
    loss = tf.reduce_mean(tf.pow(x - h, 2.0)) + 1e-3 * tf.reduce_mean(tf.pow(tf.abs(h), 1.5))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def vae(tf):
    """784-400-20-400-784, b128."""
    x = tf.sigmoid(data(tf, [128, 784]))
    h = tf.nn.relu(dense(tf, x, 784, 400))
    mean, log_variance = dense(tf, h, 400, 20), dense(tf, h, 400, 20)
    z = mean + tf.exp(0.5 * log_variance) * tf.random_normal([128, 20], seed=13)
    y = dense(tf, tf.nn.relu(dense(tf, z, 20, 400)), 400, 784)
    likelihood = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=y), 1)
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
    loss = tf.reduce_mean(likelihood + divergence)
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def residual(tf):
    """Residual blocks of 16, 32 and 64 channels with batch normalisation, 32x32, b32."""

    def layer(x, inputs, outputs, stride):
        x = tf.nn.conv2d(x, weights(tf, [3, 3, inputs, outputs]), [1, stride, stride, 1], "SAME")
        scale, offset = tf.Variable(tf.ones([outputs])), tf.Variable(tf.zeros([outputs]))
        return tf.nn.fused_batch_norm(x, scale, offset)[0]

    x = tf.nn.relu(layer(data(tf, [32, 32, 32, 3]), 3, 16, 1))
    for inputs, outputs, stride in [(16, 16, 1), (16, 32, 2), (32, 64, 2)]:
        y = tf.nn.relu(layer(x, inputs, outputs, stride))
        y = layer(y, outputs, outputs, 1)
        x = tf.nn.relu(y + (x if stride == 1 else layer(x, inputs, outputs, stride)))
    return trained(tf, dense(tf, tf.reduce_mean(x, [1, 2]), 64, 10), labels(tf, 32, 10))


def transformer(tf):
    """2 blocks of 256 with 4 heads, 8 sequences of 64."""
    batch, length, width, heads = 8, 64, 256, 4

    def norm(x):
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        return (x - mean) * tf.rsqrt(variance + 1e-5)

    def split(x):
        return tf.transpose(tf.reshape(x, [batch, length, heads, width // heads]), [0, 2, 1, 3])

    x = data(tf, [batch * length, width])
    for _ in range(2):
        h = norm(x)
        q, k, v = (split(dense(tf, h, width, width)) for _ in range(3))
        weight = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5)
        mixed = tf.reshape(tf.transpose(tf.matmul(weight, v), [0, 2, 1, 3]), [batch * length, width])
        x += dense(tf, mixed, width, width)
        x += dense(tf, tf.nn.relu(dense(tf, norm(x), width, 4 * width)), 4 * width, width)
    return trained(tf, dense(tf, x, width, 1000), labels(tf, batch * length, 1000))


def tiny(tf):
    """Ten layers of 16, b4: what many small ops cost."""
    x = data(tf, [4, 16])
    for _ in range(10):
        x = tf.nn.relu(dense(tf, x, 16, 16))
    return trained(tf, x, labels(tf, 4, 16))


MODELS = [mlp, cnn, residual, lstm, lstm_loop, gru, word2vec, transformer, autoencoder, vae, tiny]


def main(models):
    asked = turns.arguments()
    of_last = []
    for model in turns.chosen(models, asked):
        with turns.servers(asked) as (tf, clusters), turns.programs(tf, clusters, model, asked.device) as ones:
            quiet = turns.take(ones, asked)
            print(f"{model.__name__}: {model.__doc__} {quiet} quiet turns of {asked.rounds}", flush=True)
            for one in ones:
                print(
                    f"  {one.name:<12} {statistics.median(one.rates):8.1f} steps/s, at best {max(one.rates):8.1f}  "
                    f"{turns.ratio(one, ones[0]):5.2f} of {ones[0].name}  {statistics.median(one.cores):4.2f} cores  "
                    f"loss {one.session.run(one.value):.6f}",
                    flush=True,
                )
                if asked.trace:
                    turns.trace(tf, one)
            of_last.append(turns.ratio(ones[0], ones[-1]))
    turns.conclude(of_last, "models", asked)


if __name__ == "__main__":
    main(MODELS)
