"""A chief that trains while a ps is killed and started again: `kept.py TARGET FOLDER STEPS`.

Prints a line for each 100 steps that were done, and at the end how many, and what the variables have counted. It runs on
TensorFlow 1.15 and 2 alike.
"""

import sys

try:
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
except ImportError:
    import tensorflow as tf

target, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])

with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]}))):
    step = tf.train.get_or_create_global_step()
    count = tf.get_variable("count", [], tf.float64, tf.zeros_initializer(), trainable=False)
    weights = tf.get_variable("weights", [1000])
    loss = tf.reduce_mean(tf.square(weights - 1))
    with tf.control_dependencies([tf.assign_add(count, 1.0, use_locking=True)]):
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)

done, print_at = 0, 100
session = tf.train.MonitoredTrainingSession(
    target, is_chief=True, checkpoint_dir=folder, save_checkpoint_secs=None, save_checkpoint_steps=5000, log_step_count_steps=None
)
with session:
    while done < steps:
        session.run(train)
        done += 1
        if done == print_at:
            print(done, flush=True)
            print_at += 100
    counted = session.run([step, count])
print("done", done, *(int(one) for one in counted), flush=True)
