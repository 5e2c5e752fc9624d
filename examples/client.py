"""A graph of TensorFlow 1's own client on two tasks of a mesh. Prints 238.

With the nodes `meshtf node --name local/0 --grpc 127.0.0.1:2222` and `meshtf node --name local/1`:
python examples/client.py grpc://127.0.0.1:2222
"""

import sys

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

x = tf.constant(2)
with tf.device("/job:local/task:1"):
    y2 = x - 66
with tf.device("/job:local/task:0"):
    y = (x + 300) + y2
with tf.Session(sys.argv[1]) as session:
    print(session.run(y))
