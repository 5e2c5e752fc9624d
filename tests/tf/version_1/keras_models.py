"""tf.keras of TensorFlow 1.15: models of each kind learn with their session on a node what they learn in the process itself."""

import numpy as np
import tensorflow as tf

from beside import hold

keras, layers = tf.keras, tf.keras.layers
numbers = np.random.RandomState(0)
rows = numbers.rand(48, 12).astype(np.float32)
sums = rows.sum(1)
classes = (sums > 6).astype(np.int32)
pictures = numbers.rand(24, 10, 10, 3).astype(np.float32)
kinds = numbers.randint(0, 4, 24)
series = numbers.rand(24, 7, 5).astype(np.float32)
words = numbers.randint(0, 20, (24, 7))


def begin(place):
    keras.backend.clear_session()
    tf.set_random_seed(5)
    keras.backend.set_session(tf.Session(place))


def learned(model, inputs, wanted, **more):
    """The losses and measures of each epoch, an evaluation, and some answers."""
    history = model.fit(inputs, wanted, epochs=2, batch_size=8, verbose=0, shuffle=False, **more).history
    first = inputs[:3] if isinstance(inputs, np.ndarray) else [part[:3] for part in inputs]
    return [history, model.evaluate(inputs, wanted, verbose=0), model.predict(first)]


def perceptron(_):
    regular = keras.regularizers.l1_l2(0.01, 0.01)
    model = keras.Sequential(
        [
            layers.Dense(16, input_shape=(12,), kernel_regularizer=regular, kernel_constraint="max_norm"),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.GaussianNoise(0.1),
            layers.Dropout(0.2),
            layers.Dense(1, "sigmoid"),
        ]
    )
    measures = ["accuracy", keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()]
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, decay=1e-3), "binary_crossentropy", measures)
    history = model.fit(
        rows, classes, epochs=2, batch_size=8, verbose=0, validation_split=0.25, class_weight={0: 1.0, 1: 2.0}
    ).history
    return [history, model.train_on_batch(rows[:8], classes[:8]), model.predict(rows[:3])]


def convolution(_):
    model = keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu", input_shape=(10, 10, 3)),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(6, 3, padding="same"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.UpSampling2D(interpolation="bilinear"),
            layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
            layers.ZeroPadding2D(),
            layers.AveragePooling2D(),
            layers.Flatten(),
            layers.Dense(4, "softmax"),
        ]
    )
    measures = ["sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"]
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", measures)
    return learned(model, pictures, kinds)


def recurrent(_):
    model = keras.Sequential(
        [
            layers.LSTM(6, input_shape=(7, 5), return_sequences=True, dropout=0.1, recurrent_dropout=0.1),
            layers.GRU(4, go_backwards=True),
            layers.Dense(1),
        ]
    )
    model.compile("rmsprop", "mse")
    return learned(model, series, series.sum((1, 2)))


def stateful(_):
    model = keras.Sequential([layers.LSTM(6, batch_input_shape=(8, 7, 5), stateful=True), layers.Dense(1)])
    model.compile("adam", "mse")
    losses = []
    for _ in range(2):
        losses += model.fit(series, series[:, 0, 0], batch_size=8, verbose=0, shuffle=False).history["loss"]
        model.reset_states()
    return [losses, model.predict(series, batch_size=8)]


def bidirectional(_):
    model = keras.Sequential(
        [
            layers.Masking(0.0, input_shape=(7, 5)),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.Bidirectional(layers.GRU(3), merge_mode="sum"),
            layers.Dense(1),
        ]
    )
    model.compile("adagrad", "mae")
    masked = series.copy()
    masked[::2, 4:] = 0
    return learned(model, masked, series.sum((1, 2)))


def embedding(_):
    model = keras.Sequential([layers.Embedding(20, 6, mask_zero=True), layers.LSTM(5), layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return learned(model, words, (words.sum(1) > 66).astype(np.int32))


def functional(_):
    one, other, shared = keras.Input((12,)), keras.Input((12,)), layers.Dense(8, "tanh")
    both = layers.LayerNormalization()(layers.concatenate([shared(one), shared(other)]))
    both = layers.Multiply()([both, layers.Lambda(lambda x: x * 2 + 1)(both)])
    outputs = [layers.Dense(1, name="amount")(both), layers.Dense(2, "softmax", name="kind")(both)]
    model = keras.Model([one, other], outputs)
    model.add_loss(tf.reduce_mean(both) * 0.01)
    losses = {"amount": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile("nadam", losses, loss_weights=[1, 0.5], metrics={"kind": "accuracy", "amount": "mape"})
    return learned(model, [rows, rows[::-1].copy()], [sums, classes])


if __name__ == "__main__":
    hold([perceptron, convolution, recurrent, stateful, bidirectional, embedding, functional], begin)
