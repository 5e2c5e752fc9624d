#!/usr/bin/env python3
"""Models of other kinds than those of `models.py`, in the same way: what people bring."""

from models import data, dense, labels, main, trained, weights


def biased(tf, x, channels):
    return tf.nn.bias_add(x, tf.Variable(tf.zeros([channels])))


def conv(tf, x, size, inputs, outputs, stride=1):
    return tf.nn.conv2d(x, weights(tf, [size, size, inputs, outputs]), [1, stride, stride, 1], "SAME")


def batch_norm(tf, x):
    channels = x.shape[-1]
    return tf.nn.fused_batch_norm(x, tf.Variable(tf.ones([channels])), tf.Variable(tf.zeros([channels])))[0]


def ids(tf, shape, words):
    count = 1
    for size in shape:
        count *= size
    return tf.reshape(labels(tf, count, words), shape)


def sparse_loss(tf, wanted, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits))


def lstm_cell(tf, kernel, bias, x, h, c):
    i, j, f, o = tf.split(tf.nn.bias_add(tf.matmul(tf.concat([x, h], 1), kernel), bias), 4, axis=1)
    c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    return tf.tanh(c) * tf.sigmoid(o), c


def mobilenet(tf):
    """Depthwise separable convolutions with batch normalisation, 32x32, b16."""
    x = tf.nn.relu6(batch_norm(tf, conv(tf, data(tf, [16, 32, 32, 3]), 3, 3, 16)))
    for inputs, outputs, stride in [(16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]:
        x = tf.nn.depthwise_conv2d(x, weights(tf, [3, 3, inputs, 1]), [1, stride, stride, 1], "SAME")
        x = tf.nn.relu6(batch_norm(tf, conv(tf, tf.nn.relu6(batch_norm(tf, x)), 1, inputs, outputs)))
    return trained(tf, dense(tf, tf.reduce_mean(x, [1, 2]), 128, 10), labels(tf, 16, 10))


def inception(tf):
    """Blocks of 1x1, 3x3 and 5x5 convolutions and an average pool, 28x28, b16."""
    x, inputs = tf.nn.relu(conv(tf, data(tf, [16, 28, 28, 3]), 3, 3, 32)), 32
    for _ in range(2):
        branches = [
            conv(tf, x, 1, inputs, 16),
            conv(tf, tf.nn.relu(conv(tf, x, 1, inputs, 16)), 3, 16, 32),
            conv(tf, tf.nn.relu(conv(tf, x, 1, inputs, 8)), 5, 8, 16),
            conv(tf, tf.nn.avg_pool2d(x, 3, 1, "SAME"), 1, inputs, 16),
        ]
        x, inputs = tf.nn.relu(tf.concat(branches, 3)), 80
    return trained(tf, dense(tf, tf.reduce_mean(x, [1, 2]), 80, 10), labels(tf, 16, 10))


def alexnet(tf):
    """Local response normalisation, overlapping pools, dropout, momentum, gradients clipped by their norm, 32x32, b32."""
    x = data(tf, [32, 32, 32, 3])
    for inputs, outputs in [(3, 32), (32, 64)]:
        x = tf.nn.relu(biased(tf, conv(tf, x, 5, inputs, outputs), outputs))
        x = tf.nn.lrn(tf.nn.max_pool2d(x, 3, 2, "SAME"), 4, 1.0, 0.001 / 9, 0.75)
    x = tf.nn.dropout(tf.nn.relu(dense(tf, tf.reshape(x, [32, 4096]), 4096, 384)), rate=0.5, seed=4)
    loss = sparse_loss(tf, labels(tf, 32, 10), dense(tf, x, 384, 10))
    optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    return loss, optimizer.apply_gradients(zip(tf.clip_by_global_norm(gradients, 5.0)[0], variables))


def unet(tf):
    """Down and up again over two levels, joined, 64x64, b4."""
    x = data(tf, [4, 64, 64, 3])
    wide = tf.nn.relu(conv(tf, x, 3, 3, 16))
    middle = tf.nn.relu(conv(tf, tf.nn.max_pool2d(wide, 2, 2, "SAME"), 3, 16, 32))
    deep = tf.nn.relu(conv(tf, tf.nn.max_pool2d(middle, 2, 2, "SAME"), 3, 32, 64))
    up = tf.concat([tf.image.resize_bilinear(deep, [32, 32]), middle], 3)
    up = tf.image.resize_nearest_neighbor(tf.nn.relu(conv(tf, up, 3, 96, 32)), [64, 64])
    up = tf.nn.relu(conv(tf, tf.concat([up, wide], 3), 3, 48, 16))
    return trained(tf, conv(tf, up, 1, 16, 2), ids(tf, [4, 64, 64], 2))


def dcgan(tf):
    """A generator by transposed convolutions and a discriminator, 28x28, b32."""
    g = tf.reshape(dense(tf, tf.random_normal([32, 64], seed=1), 64, 7 * 7 * 64), [32, 7, 7, 64])
    g = tf.nn.relu(batch_norm(tf, g))
    g = tf.nn.conv2d_transpose(g, weights(tf, [5, 5, 32, 64]), [32, 14, 14, 32], [1, 2, 2, 1])
    g = tf.nn.conv2d_transpose(
        tf.nn.relu(batch_norm(tf, g)), weights(tf, [5, 5, 1, 32]), [32, 28, 28, 1], [1, 2, 2, 1]
    )
    generator = tf.trainable_variables()
    first, second, last = (weights(tf, shape) for shape in ([5, 5, 1, 32], [5, 5, 32, 64], [7 * 7 * 64, 1]))

    def judged(x):
        x = tf.nn.leaky_relu(tf.nn.conv2d(x, first, [1, 2, 2, 1], "SAME"))
        x = tf.nn.leaky_relu(tf.nn.conv2d(x, second, [1, 2, 2, 1], "SAME"))
        return tf.matmul(tf.reshape(x, [32, -1]), last)

    def entropy(logits, is_real):
        wanted = (tf.ones_like if is_real else tf.zeros_like)(logits)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits))

    made = judged(tf.tanh(g))
    losses = [entropy(judged(data(tf, [32, 28, 28, 1])), True) + entropy(made, False), entropy(made, True)]
    variables = [[first, second, last], generator]
    steps = [tf.train.AdamOptimizer(2e-4, 0.5).minimize(loss, var_list=own) for loss, own in zip(losses, variables)]
    return sum(losses), tf.group(*steps)


def volumes(tf):
    """3x3x3 convolutions and pools of volumes, 16x32x32, b2."""
    x = data(tf, [2, 16, 32, 32, 3])
    for inputs, outputs in [(3, 16), (16, 32)]:
        x = tf.nn.relu(tf.nn.conv3d(x, weights(tf, [3, 3, 3, inputs, outputs]), [1, 1, 1, 1, 1], "SAME"))
        x = tf.nn.max_pool3d(x, 2, 2, "SAME")
    return trained(tf, dense(tf, tf.reduce_mean(x, [1, 2, 3]), 32, 10), labels(tf, 2, 10))


def wavenet(tf):
    """Dilated convolutions along one dimension, gated, residual, 32 channels, b4 of 512."""
    x, skipped = tf.nn.conv1d(data(tf, [4, 512, 1]), weights(tf, [2, 1, 32]), 1, "SAME"), 0.0
    for dilation in (1, 2, 4, 8, 16, 32):
        past = tf.pad(x, [[0, 0], [dilation, 0], [0, 0]])
        kept, gate = (
            tf.nn.convolution(past, weights(tf, [2, 32, 32]), "VALID", dilation_rate=[dilation]) for _ in range(2)
        )
        y = tf.nn.conv1d(tf.tanh(kept) * tf.sigmoid(gate), weights(tf, [1, 32, 32]), 1, "SAME")
        x, skipped = x + y, skipped + y
    logits = tf.nn.conv1d(tf.nn.relu(skipped), weights(tf, [1, 32, 256]), 1, "SAME")
    return trained(tf, logits, ids(tf, [4, 512], 256))


def text_cnn(tf):
    """Embeddings of 10,000 x 128, convolutions 3, 4 and 5 words wide, dropout, b32 of 50."""
    x = tf.nn.embedding_lookup(weights(tf, [10_000, 128]), ids(tf, [32, 50], 10_000))
    found = []
    for wide in (3, 4, 5):
        found.append(tf.reduce_max(tf.nn.relu(tf.nn.conv1d(x, weights(tf, [wide, 128, 64]), 1, "VALID")), 1))
    x = tf.nn.dropout(tf.concat(found, 1), rate=0.5, seed=3)
    return trained(tf, dense(tf, x, 192, 2), labels(tf, 32, 2))


def two_ways(tf):
    """An LSTM of 128 units forward and one backward, by while loops, over padded sequences of 40, b32."""
    x, lengths = tf.transpose(data(tf, [32, 40, 64]), [1, 0, 2]), labels(tf, 32, 40)

    def along(is_reversed):
        kernel, bias = weights(tf, [64 + 128, 4 * 128]), tf.Variable(tf.zeros([4 * 128]))

        def cell(state, given):
            x, step = given
            is_live = tf.less(tf.fill([32], step), lengths)
            new = lstm_cell(tf, kernel, bias, x, *state)
            return tuple(tf.where(is_live, after, before) for after, before in zip(new, state))

        zeros = tf.zeros([32, 128])
        h, _ = tf.scan(cell, (x, tf.range(40)), (zeros, zeros), reverse=is_reversed)
        return h[0 if is_reversed else -1]

    return trained(tf, dense(tf, tf.concat([along(False), along(True)], 1), 256, 10), labels(tf, 32, 10))


def layer_norm_lstm(tf):
    """20 steps of 128 units with layer normalisation of each gate, b32, unrolled."""

    def norm(x, scale, offset):
        mean, variance = tf.nn.moments(x, [1], keep_dims=True)
        return (x - mean) * tf.rsqrt(variance + 1e-5) * scale + offset

    kernel, h, c = weights(tf, [64 + 128, 4 * 128]), tf.zeros([32, 128]), tf.zeros([32, 128])
    norms = [(tf.Variable(tf.ones([128])), tf.Variable(tf.zeros([128]))) for _ in range(5)]
    for x in tf.unstack(data(tf, [32, 20, 64]), axis=1):
        gates = tf.split(tf.matmul(tf.concat([x, h], 1), kernel), 4, axis=1)
        i, j, f, o = (norm(gate, *own) for gate, own in zip(gates, norms))
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(norm(c, *norms[4])) * tf.sigmoid(o)
    return trained(tf, dense(tf, h, 128, 10), labels(tf, 32, 10))


def language_model(tf):
    """Two layers of 512 LSTM units, 10 steps, b20, 10,000 words, gradients clipped by their norm."""
    words = ids(tf, [20, 10], 10_000)
    steps = tf.unstack(tf.nn.embedding_lookup(weights(tf, [10_000, 512]), words), axis=1)
    for _ in range(2):
        kernel, bias = weights(tf, [1024, 2048]), tf.Variable(tf.zeros([2048]))
        h = c = tf.zeros([20, 512])
        for number, x in enumerate(steps):
            h, c = lstm_cell(tf, kernel, bias, x, h, c)
            steps[number] = h
    logits = dense(tf, tf.reshape(tf.stack(steps, 1), [200, 512]), 512, 10_000)
    loss = sparse_loss(tf, tf.reshape(words, [-1]), logits)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 5.0)
    return loss, tf.train.GradientDescentOptimizer(1.0).apply_gradients(zip(gradients, variables))


def translation(tf):
    """A GRU reads 20 words, another writes 10 and attends to those, 128 units, b32, 5,000 words, RMSProp."""
    table, read, written = weights(tf, [5000, 128]), ids(tf, [32, 20], 5000), ids(tf, [32, 10], 5000)

    def gru(inputs):
        gates, gate_bias = weights(tf, [inputs + 128, 256]), tf.Variable(tf.ones([256]))
        candidate, bias = weights(tf, [inputs + 128, 128]), tf.Variable(tf.zeros([128]))

        def step(x, h):
            r, u = tf.split(tf.sigmoid(tf.matmul(tf.concat([x, h], 1), gates) + gate_bias), 2, axis=1)
            return u * h + (1 - u) * tf.tanh(tf.matmul(tf.concat([x, r * h], 1), candidate) + bias)

        return step

    reader, h, memory = gru(128), tf.zeros([32, 128]), []
    for x in tf.unstack(tf.nn.embedding_lookup(table, read), axis=1):
        h = reader(x, h)
        memory.append(h)
    memory = tf.stack(memory, 1)
    keys = tf.tensordot(memory, weights(tf, [128, 128]), [[2], [0]])
    writer, query, value, states = gru(256), weights(tf, [128, 128]), weights(tf, [128]), []
    for x in tf.unstack(tf.nn.embedding_lookup(table, written), axis=1):
        score = tf.reduce_sum(value * tf.tanh(keys + tf.expand_dims(tf.matmul(h, query), 1)), 2)
        context = tf.reduce_sum(tf.expand_dims(tf.nn.softmax(score), 2) * memory, 1)
        h = writer(tf.concat([x, context], 1), h)
        states.append(h)
    logits = dense(tf, tf.reshape(tf.stack(states, 1), [320, 128]), 128, 5000)
    loss = sparse_loss(tf, tf.reshape(written, [-1]), logits)
    return loss, tf.train.RMSPropOptimizer(1e-3).minimize(loss)


def bert(tf):
    """2 layers of 128 with 4 heads by einsum, gelu, masks, dropout, 8 sequences of 128, 8,000 words."""
    batch, length, width, heads = 8, 128, 128, 4

    def norm(x):
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        offset, scale = tf.Variable(tf.zeros([width])), tf.Variable(tf.ones([width]))
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-12)

    table, words = weights(tf, [8000, width]), ids(tf, [batch, length], 8000)
    x = norm(tf.nn.embedding_lookup(table, words) + weights(tf, [length, width]))
    mask = tf.cast(tf.sequence_mask(labels(tf, batch, length), length), tf.float32)
    for seed in range(2):
        q, k, v = (tf.einsum("blw,whd->blhd", x, weights(tf, [width, heads, width // heads])) for _ in range(3))
        score = tf.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5 + (1 - mask[:, None, None, :]) * -1e4
        mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.dropout(tf.nn.softmax(score), rate=0.1, seed=seed), v)
        mixed = tf.einsum("bqhd,hdw->bqw", mixed, weights(tf, [heads, width // heads, width]))
        x = norm(x + tf.nn.dropout(mixed, rate=0.1, seed=seed))
        h = tf.einsum("blw,wf->blf", x, weights(tf, [width, 4 * width]))
        h = 0.5 * h * (1 + tf.erf(h / 2**0.5))
        x = norm(x + tf.einsum("blf,fw->blw", h, weights(tf, [4 * width, width])))
    logits = tf.matmul(tf.reshape(x, [batch * length, width]), table, transpose_b=True)
    return trained(tf, logits, tf.reshape(words, [-1]))


def wide_and_deep(tf):
    """26 embeddings of 10,000 x 16 and 13 numbers, b256, Adagrad; beside them a weight for each word, FTRL."""
    words = ids(tf, [256, 26], 10_000)
    looked_up = [tf.nn.embedding_lookup(weights(tf, [10_000, 16]), words[:, i]) for i in range(26)]
    h = tf.concat([*looked_up, data(tf, [256, 13])], 1)
    for inputs, outputs in [(429, 256), (256, 128)]:
        h = tf.nn.relu(dense(tf, h, inputs, outputs))
    deep = tf.squeeze(dense(tf, h, 128, 1), 1)
    deep_variables, wide = tf.trainable_variables(), tf.Variable(tf.zeros([260_000]))
    logits = deep + tf.reduce_sum(tf.nn.embedding_lookup(wide, words + tf.range(26) * 10_000), 1)
    wanted = tf.cast(labels(tf, 256, 2), tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits))
    of_wide = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001).minimize(loss, var_list=[wide])
    return loss, tf.group(tf.train.AdagradOptimizer(0.05).minimize(loss, var_list=deep_variables), of_wide)


def factorization(tf):
    """Matrices of 100,000 x 32 and 20,000 x 32, b1024, gradient descent."""
    users, items = labels(tf, 1024, 100_000), labels(tf, 1024, 20_000)
    look_up = tf.nn.embedding_lookup
    user, item = look_up(weights(tf, [100_000, 32]), users), look_up(weights(tf, [20_000, 32]), items)
    bias = look_up(tf.Variable(tf.zeros([100_000])), users) + look_up(tf.Variable(tf.zeros([20_000])), items)
    off = tf.squared_difference(tf.reduce_sum(user * item, 1) + bias, data(tf, [1024]))
    loss = tf.reduce_mean(off) + 1e-4 * (tf.nn.l2_loss(user) + tf.nn.l2_loss(item))
    return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def triplets(tf):
    """Embeddings of 128, normalised, the hardest triplets by distances of all pairs, b256."""
    x = tf.nn.relu(dense(tf, data(tf, [256, 512]), 512, 256))
    x, wanted = tf.nn.l2_normalize(dense(tf, x, 256, 128), 1), labels(tf, 256, 20)
    distance = 2 - 2 * tf.matmul(x, x, transpose_b=True)
    same = tf.cast(tf.equal(wanted[:, None], wanted[None, :]), tf.float32)
    far, near = tf.reduce_max(distance * same, 1), tf.reduce_min(distance + 10 * same, 1)
    loss = tf.reduce_mean(tf.maximum(far - near + 0.2, 0))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def q_learning(tf):
    """A network 4-128-128-6 and the one it follows, b64, Huber loss."""
    sizes = [(4, 128), (128, 128), (128, 6)]

    def network():
        layers = [(weights(tf, list(size)), tf.Variable(tf.zeros([size[1]]))) for size in sizes]

        def value(x):
            for number, (weight, bias) in enumerate(layers):
                x = tf.matmul(x, weight) + bias
                x = tf.nn.relu(x) if number < 2 else x
            return x

        return value, [variable for layer in layers for variable in layer]

    (value, own), (followed, others) = network(), network()
    target = data(tf, [64]) + 0.99 * tf.reduce_max(followed(data(tf, [64, 4])), 1)
    chosen = tf.reduce_sum(value(data(tf, [64, 4])) * tf.one_hot(labels(tf, 64, 6), 6), 1)
    loss = tf.losses.huber_loss(tf.stop_gradient(target), chosen)
    with tf.control_dependencies([tf.train.AdamOptimizer(1e-3).minimize(loss, var_list=own)]):
        return loss, tf.group(*(tf.assign(b, 0.99 * b + 0.01 * a) for a, b in zip(own, others)))


def gaussian_process(tf):
    """The likelihood of 200 points by a kernel's Cholesky decomposition."""
    x, y, size, scale = data(tf, [200, 4]), data(tf, [200, 1]), tf.Variable(0.0), tf.Variable(0.0)
    distance = tf.reduce_sum(tf.squared_difference(x[:, None], x[None]), 2)
    root = tf.cholesky(tf.exp(scale) * tf.exp(-0.5 * distance * tf.exp(-2 * size)) + 0.1 * tf.eye(200))
    loss = 0.5 * tf.reduce_sum(tf.matrix_triangular_solve(root, y) ** 2) + tf.reduce_sum(tf.log(tf.diag_part(root)))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


OTHERS = [
    mobilenet, inception, alexnet, unet, dcgan, volumes, wavenet, text_cnn, two_ways, layer_norm_lstm, language_model,
    translation, bert, wide_and_deep, factorization, triplets, q_learning, gaussian_process,
]  # fmt: skip


if __name__ == "__main__":
    main(OTHERS)
