"""tf.keras of TensorFlow 1.15 with its session on a node: callbacks, saved models, datasets."""

import glob
import os

import numpy as np
import tensorflow as tf

from beside import hold
from keras_models import begin, classes, keras, layers, rows, sums


def small():
    model = keras.Sequential([layers.Dense(8, "relu", input_shape=(12,), kernel_regularizer="l2"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def fitted(model, epochs, *callbacks):
    """What came of some epochs, with these callbacks."""
    held = (rows, sums)
    more = {"batch_size": 8, "verbose": 0, "shuffle": False, "validation_data": held, "callbacks": list(callbacks)}
    return model.fit(rows, sums, epochs=epochs, **more).history


def same(model, wanted):
    np.testing.assert_allclose(model.predict(rows[:3]), wanted, rtol=1e-5)


def rates(folder):
    model = small()
    stops = keras.callbacks.EarlyStopping(patience=3, min_delta=100, restore_best_weights=True)
    slows = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=100, factor=0.5)
    history = fitted(model, 8, stops, slows, keras.callbacks.CSVLogger(folder + "/log.csv"))
    assert len(history["loss"]) == 4, history
    other = small()
    planned = fitted(other, 3, keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)))
    return [history, planned, model.predict(rows[:3]), keras.backend.get_value(model.optimizer.lr)]


def checkpoints(folder):
    model = small()
    whole = keras.callbacks.ModelCheckpoint(folder + "/{epoch}.h5")
    weights = keras.callbacks.ModelCheckpoint(folder + "/w{epoch}", save_weights_only=True)
    best = keras.callbacks.ModelCheckpoint(folder + "/best.h5", save_best_only=True)
    history = fitted(model, 2, whole, weights, best)
    answers = model.predict(rows[:3])
    for name in "2.h5", "best.h5":
        same(keras.models.load_model(os.path.join(folder, name)), answers)
    other = small()
    other.load_weights(folder + "/w2")
    same(other, answers)
    other.load_weights(folder + "/w1")
    return [history, answers, other.predict(rows[:3])]


def board(folder):
    model = small()
    tells = keras.callbacks.TensorBoard(folder, histogram_freq=1, write_images=True, write_grads=True, update_freq="batch")
    history = fitted(model, 2, tells)
    tags = {}
    for path in glob.glob(folder + "/**/events*", recursive=True):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                tags[value.tag] = tags.get(value.tag, 0) + 1
    assert any(tag.startswith("batch_") for tag in tags) and "dense/kernel_0" in tags, tags
    return [history, sorted(tags), [tags[tag] for tag in sorted(tags)]]


def saved(folder):
    model = small()
    history = fitted(model, 1)
    answers = model.predict(rows[:3])
    model.save(folder + "/model.h5")
    model.save(folder + "/model", save_format="tf")
    same(keras.models.load_model(folder + "/model"), answers)
    loaded = keras.models.load_model(folder + "/model.h5")
    same(loaded, answers)
    # The optimizer came along.
    history = [history, loaded.fit(rows, sums, epochs=1, verbose=0, shuffle=False).history["loss"]]
    keras.experimental.export_saved_model(model, folder + "/exported")
    same(keras.experimental.load_from_saved_model(folder + "/exported"), answers)
    for weights in "weights.h5", "weights", "in_folder/":
        model.save_weights(os.path.join(folder, weights))
        other = keras.models.model_from_json(model.to_json())
        other.load_weights(os.path.join(folder, weights))
        same(other, answers)
    return [history, answers]


def from_dataset(_):
    model = keras.Sequential([layers.Dense(8, "relu", input_shape=(12,)), layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    slices = tf.data.Dataset.from_tensor_slices((rows, classes))
    shuffled = slices.map(lambda x, y: (x * 2, y)).shuffle(30, seed=3).repeat().batch(8)
    plain = slices.batch(8)
    history = [model.fit(shuffled, epochs=2, steps_per_epoch=9, verbose=0).history]
    history.append(model.fit(plain, epochs=2, validation_data=plain, verbose=0).history)
    return [history, model.evaluate(plain, verbose=0), model.predict(plain)[:3]]


if __name__ == "__main__":
    hold([rates, checkpoints, board, saved, from_dataset], begin)
