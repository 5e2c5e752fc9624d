"""One role of a distributed Estimator: chief, worker, parameter server or evaluator, as TF_CONFIG says. Takes the folder of the model."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

estimator, columns = tf.estimator, tf.feature_column
numbers = np.random.RandomState(0)
features = {"x": numbers.rand(128, 3).astype(np.float32), "city": numbers.choice(["ulm", "bonn", "kiel"], (128, 1))}
classes = ((features["x"].sum(1) + (features["city"][:, 0] == "ulm")) > 1.7).astype(np.int32)
STEPS = 200


def examples(rounds):
    def dataset():
        return tf.data.Dataset.from_tensor_slices((dict(features), classes)).shuffle(128).repeat(rounds).batch(16)

    return dataset


city = columns.categorical_column_with_vocabulary_list("city", ["ulm", "bonn", "kiel"])
inputs = [columns.numeric_column("x", (3,)), columns.embedding_column(city, 2)]
config = estimator.RunConfig(sys.argv[1], save_checkpoints_steps=50)
model = estimator.DNNClassifier([8], inputs, config=config, optimizer=lambda: tf.train.AdamOptimizer(0.03))
receives = estimator.export.build_parsing_serving_input_receiver_fn(columns.make_parse_example_spec(inputs))
last = estimator.FinalExporter("final", receives)
evaluates = estimator.EvalSpec(examples(1), steps=None, exporters=[last], start_delay_secs=0, throttle_secs=0)
estimator.train_and_evaluate(model, estimator.TrainSpec(examples(None), max_steps=STEPS), evaluates)
role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
if role == "evaluator":
    measures = model.evaluate(examples(1))
    assert measures["global_step"] >= STEPS and measures["accuracy"] > 0.85, measures
    print("note: accuracy %.3f after step %d" % (measures["accuracy"], measures["global_step"]))
print(role, "has ended", flush=True)
