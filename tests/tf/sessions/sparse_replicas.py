"""SyncReplicasOptimizer over an embedding: the gradients of some rows go through an accumulator before they are applied."""

from recorder.sessions import step, tf

words = tf.placeholder(tf.int32, [None], name="words")
with tf.variable_scope("model", use_resource=False):
    table = tf.get_variable("table", [5, 2], initializer=tf.constant_initializer([[1.0, -1.0]] * 5))
    bias = tf.get_variable("bias", [2], initializer=tf.zeros_initializer())
global_step = tf.train.get_or_create_global_step()
looked_up = tf.nn.embedding_lookup(table, words) + bias
loss = tf.reduce_sum(tf.square(looked_up))
optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=1)
train = optimizer.minimize(loss, global_step=global_step, name="train")
# What the chief's queue runner does.
apply = optimizer.get_chief_queue_runner().enqueue_ops[0]

STEPS = [step(targets=[tf.global_variables_initializer()]), step(targets=[optimizer.local_step_init_op])]
for chosen in ([0, 1], [3, 3, 2], [4]):
    STEPS += [step(targets=[train, apply], feeds={words: chosen}), step([table, bias, global_step])]
