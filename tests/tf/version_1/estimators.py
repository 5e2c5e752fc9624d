"""Estimators of TensorFlow 1.15 with their sessions on a node learn and answer what they do in the process itself."""

import json
import os

import numpy as np
import tensorflow as tf

from beside import hold

estimator, columns = tf.estimator, tf.feature_column
numbers = np.random.RandomState(0)
FEATURES = {
    "x": numbers.rand(96, 3).astype(np.float32),
    "age": numbers.randint(18, 80, (96, 1)).astype(np.float32),
    "city": numbers.choice(["ulm", "bonn", "kiel", "rom"], (96, 1)),
}
AMOUNTS = (FEATURES["x"].sum(1) * 2 + (FEATURES["city"][:, 0] == "ulm")).astype(np.float32)
CLASSES = (AMOUNTS > np.median(AMOUNTS)).astype(np.int32)
SERVER = [""]


def begin(place):
    SERVER[0] = place
    os.environ["TF_CONFIG"] = json.dumps({"session_master": place, "eval_session_master": place})


def config(folder):
    return estimator.RunConfig(folder + "/model", tf_random_seed=4, save_checkpoints_steps=10, save_summary_steps=5)


def examples(wanted, rounds=None):
    def dataset():
        slices = tf.data.Dataset.from_tensor_slices((dict(FEATURES), wanted))
        return (slices.shuffle(50, seed=2) if rounds is None else slices).repeat(rounds).batch(16)

    return dataset


def wide_and_deep():
    age = columns.bucketized_column(columns.numeric_column("age"), [25, 35, 50])
    city = columns.categorical_column_with_vocabulary_list("city", ["ulm", "bonn", "kiel"], num_oov_buckets=1)
    crossed = columns.crossed_column([age, "city"], 20)
    x = columns.numeric_column("x", (3,))
    return [x, age, city, crossed], [x, columns.indicator_column(city), columns.embedding_column(crossed, 3)]


def trained(made, wanted):
    """An evaluation after some steps, and predictions."""
    assert made.config.master == SERVER[0]
    made.train(examples(wanted), steps=12)
    measures = made.evaluate(examples(wanted, 1))
    predicted = [answer for _, answer in zip(range(4), made.predict(examples(wanted, 1)))]
    numeric = [{key: value for key, value in answer.items() if value.dtype.kind in "fi"} for answer in predicted]
    return [measures, numeric]


def linear(folder):
    return trained(estimator.LinearRegressor(wide_and_deep()[0], config=config(folder)), AMOUNTS)


def combined(folder):
    wide, deep = wide_and_deep()
    made = estimator.DNNLinearCombinedClassifier(
        config=config(folder),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[8, 4],
        dnn_dropout=0.2,
    )
    answers = trained(made, CLASSES)
    receives = estimator.export.build_parsing_serving_input_receiver_fn(columns.make_parse_example_spec(wide))
    exported = made.export_saved_model(folder + "/export", receives).decode()
    with tf.Graph().as_default(), tf.Session(SERVER[0]) as session:
        served = tf.saved_model.loader.load(session, ["serve"], exported).signature_def["predict"]
        outputs = {key: tensor.name for key, tensor in served.outputs.items()}
        got = session.run(outputs, {served.inputs["examples"].name: [example(i) for i in range(3)]})
    return answers + [got["logits"], got["probabilities"]]


def example(i):
    """An example as it is sent to a model that is served."""
    floats = {name: tf.train.FloatList(value=FEATURES[name][i]) for name in ("x", "age")}
    features = {name: tf.train.Feature(float_list=values) for name, values in floats.items()}
    features["city"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[FEATURES["city"][i, 0].encode()]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def model(features, labels, mode, params):
    trains = mode == estimator.ModeKeys.TRAIN
    layer = tf.layers.dense(columns.input_layer(features, params["columns"]), 8, tf.nn.relu)
    layer = tf.layers.batch_normalization(tf.layers.dropout(layer, 0.3, training=trains), training=trains)
    logits = tf.layers.dense(layer, 2)
    predictions = {"kind": tf.argmax(logits, 1), "share": tf.nn.softmax(logits)}
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    measures = {
        "accuracy": tf.metrics.accuracy(labels, predictions["kind"]),
        "auc": tf.metrics.auc(labels, predictions["share"][:, 1]),
    }
    if not trains:
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=measures)
    tf.summary.histogram("logits", logits)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, tf.train.get_global_step())
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train, training_hooks=[tf.train.NanTensorHook(loss)])


def of_own_model(folder):
    made = estimator.Estimator(model, config=config(folder), params={"columns": wide_and_deep()[1]})
    made.train(examples(CLASSES), steps=3)
    # From the checkpoint on.
    answers = trained(made, CLASSES)
    assert made.get_variable_value("global_step") == 15
    return answers


def of_trees():
    age = columns.bucketized_column(columns.numeric_column("age"), [25, 35, 50])
    city = columns.indicator_column(columns.categorical_column_with_vocabulary_list("city", ["ulm", "bonn", "kiel"]))
    return [age, city], dict(n_batches_per_layer=2, n_trees=3, max_depth=2)


# Two in one part would share an ensemble on the server: both name it alike.
def boosted_classes(folder):
    given, sizes = of_trees()
    return trained(estimator.BoostedTreesClassifier(given, config=config(folder), pruning_mode="post", tree_complexity=0.01, **sizes), CLASSES)


def boosted_amounts(folder):
    """Its bias is centred before it grows, and a feature is divided by quantiles."""
    given, sizes = of_trees()
    given.append(columns.numeric_column("age"))
    made = estimator.BoostedTreesRegressor(given, config=config(folder), center_bias=True, l2_regularization=0.1, **sizes)
    answers = trained(made, AMOUNTS)
    explained = made.experimental_predict_with_explanations(examples(AMOUNTS, 1))
    contributions = [{str(key): value for key, value in answer["dfc"].items()} for _, answer in zip(range(4), explained)]
    return answers + [contributions, made.experimental_feature_importances(normalize=True)]


if __name__ == "__main__":
    hold([linear, combined, of_own_model, boosted_classes, boosted_amounts], begin)
