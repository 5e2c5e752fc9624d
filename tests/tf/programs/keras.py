"""tf.keras of TensorFlow 1 (tf_keras, in graph mode) with its session on a node: what it learns is what it learns in the program's own process."""

import os

import numpy as np

from client import check, data, near, target, tf

CLUSTER = {"local": 1}

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tf_keras as keras  # noqa: E402
from tf_keras.src.backend import set_session  # noqa: E402

layers = keras.layers
numbers = np.random.RandomState(0)
rows = numbers.rand(48, 12).astype(np.float32)
classes = (rows.sum(1) > 6).astype(np.int32)
pictures = numbers.rand(24, 10, 10, 3).astype(np.float32)
kinds = numbers.randint(0, 4, 24)
series = numbers.rand(24, 7, 5).astype(np.float32)
sums = series.sum((1, 2))
words = numbers.randint(0, 20, (24, 7))


def learned(model, inputs, wanted, **more):
    """The losses and measures of each epoch, and some answers."""
    history = model.fit(inputs, wanted, epochs=2, batch_size=8, verbose=0, shuffle=False, **more).history
    first = inputs[:3] if isinstance(inputs, np.ndarray) else [part[:3] for part in inputs]
    answers = model.predict(first)
    return [history[name] for name in sorted(history)] + (answers if isinstance(answers, list) else [answers])


def perceptron():
    model = keras.Sequential([layers.Dense(16, "relu", input_shape=(12,)), layers.Dropout(0.2, seed=1), layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return learned(model, rows, classes, validation_split=0.25)


def convolution():
    model = keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu", input_shape=(10, 10, 3)),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(6, 3, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.legacy.SGD(0.1, momentum=0.9), loss, metrics=["sparse_categorical_accuracy"])
    return learned(model, pictures, kinds)


def recurrent(layer):
    model = keras.Sequential([layer(6, input_shape=(7, 5), return_sequences=True), layer(4), layers.Dense(1)])
    model.compile("rmsprop", "mse")
    return learned(model, series, sums)


def bidirectional():
    inner = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    model = keras.Sequential([layers.Masking(0.0, input_shape=(7, 5)), inner, layers.Bidirectional(layers.GRU(3)), layers.Dense(1)])
    model.compile("adagrad", "mae")
    return learned(model, series, sums)


def embedding():
    model = keras.Sequential([layers.Embedding(20, 6, mask_zero=True), layers.LSTM(5), layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["AUC"])
    return learned(model, words, (words.sum(1) > 66).astype(np.int32))


def functional():
    one, other, shared = keras.Input((12,)), keras.Input((12,)), layers.Dense(8, "tanh")
    both = layers.LayerNormalization()(layers.concatenate([shared(one), shared(other)]))
    both = layers.Add()([both, layers.Dense(16)(both)])
    outputs = [layers.Dense(1, name="amount")(both), layers.Dense(2, "softmax", name="kind")(both)]
    model = keras.Model([one, other], outputs)
    model.compile("nadam", {"amount": "mse", "kind": "sparse_categorical_crossentropy"}, loss_weights=[1, 0.5])
    return learned(model, [rows, rows[::-1].copy()], [rows.sum(1), classes])


def from_dataset():
    dataset = tf.data.Dataset.from_tensor_slices((rows, classes)).map(lambda x, y: (x * 2, y)).shuffle(48, seed=3).batch(8)
    model = keras.Sequential([layers.Dense(8, "relu", input_shape=(12,)), layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    history = model.fit(dataset.repeat(), epochs=2, steps_per_epoch=4, verbose=0).history["loss"]
    plain = tf.data.Dataset.from_tensor_slices((rows, classes)).batch(8)
    history += model.fit(plain, epochs=2, validation_data=plain, verbose=0).history["val_loss"]
    return [history, model.predict(plain)[:3]]


def callbacks():
    model = keras.Sequential([layers.Dense(8, "relu", input_shape=(12,), kernel_regularizer="l2"), layers.Dense(1)])
    model.compile(keras.optimizers.legacy.Adam(0.01, clipnorm=1.0), "mse")
    kept = data(f"kept-{os.getpid()}.h5")
    all_callbacks = [
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.ModelCheckpoint(kept, save_best_only=True),
    ]
    answers = learned(model, rows, rows.sum(1), validation_data=(rows, rows.sum(1)), callbacks=all_callbacks)
    loaded = keras.models.load_model(kept)
    near(loaded.predict(rows[:3]), answers[-1], relative=1e-5)
    weights = data(f"weights-{os.getpid()}/model")
    model.save_weights(weights, save_format="tf")
    model.set_weights([part * 0 for part in model.get_weights()])
    model.load_weights(weights)
    near(model.predict(rows[:3]), answers[-1], relative=1e-5)
    return answers


parts = [perceptron, convolution, bidirectional, embedding, functional, from_dataset, callbacks]
parts += [lambda layer=layer: recurrent(layer) for layer in (layers.LSTM, layers.GRU, layers.SimpleRNN)]
for part in parts:
    seen = []
    for where in "", target("local/0"):
        keras.backend.clear_session()
        if where:
            tf.Session.reset(where)
        with tf.Graph().as_default(), tf.Session(where).as_default() as session:
            tf.set_random_seed(5)
            set_session(session)
            seen.append(part())
            session.close()
    check(len(seen[0]) == len(seen[1]) > 1)
    for here, there in zip(*seen):
        near(there, here, relative=1e-3, absolute=1e-4)
