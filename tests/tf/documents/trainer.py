import time

import tensorflow as tf

# Flags for defining the tf.train.ClusterSpec
tf.app.flags.DEFINE_string("ps_hosts", "",
                           "Comma-separated list of hostname:port pairs")
tf.app.flags.DEFINE_string("worker_hosts", "",
                           "Comma-separated list of hostname:port pairs")

# Flags for defining the tf.train.Server
tf.app.flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
tf.app.flags.DEFINE_integer("task_index", 0, "Index of task within the job")

# Flags that the guide's program does not have
tf.app.flags.DEFINE_integer("steps", 1000000, "Number of steps")
tf.app.flags.DEFINE_string("logdir", "/tmp/train_logs", "Folder of checkpoints")

FLAGS = tf.app.flags.FLAGS


def main(_):
  ps_hosts = FLAGS.ps_hosts.split(",")
  worker_hosts = FLAGS.worker_hosts.split(",")

  # Create a cluster from the parameter server and worker hosts.
  cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})

  # Create and start a server for the local task.
  server = tf.train.Server(cluster,
                           job_name=FLAGS.job_name,
                           task_index=FLAGS.task_index)

  if FLAGS.job_name == "ps":
    server.join()
  elif FLAGS.job_name == "worker":

    # Assigns ops to the local worker by default.
    with tf.device(tf.train.replica_device_setter(
        worker_device="/job:worker/task:%d" % FLAGS.task_index,
        cluster=cluster)):

      # Build model...
      import numpy as np
      numbers = np.random.RandomState(0)
      xs = numbers.rand(1000, 10).astype(np.float32)
      ys = xs.dot(np.full([10, 1], 0.1, np.float32))
      x, y = tf.train.slice_input_producer([tf.constant(xs), tf.constant(ys)])
      x, y = tf.train.batch([x, y], 64)
      w = tf.Variable(tf.zeros([10, 1]))
      b = tf.Variable(tf.zeros([1]))
      loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
      tf.scalar_summary("loss", loss)
      global_step = tf.Variable(0)

      train_op = tf.train.AdagradOptimizer(0.01).minimize(
          loss, global_step=global_step)

      saver = tf.train.Saver()
      summary_op = tf.merge_all_summaries()
      init_op = tf.initialize_all_variables()

    # Create a "supervisor", which oversees the training process.
    sv = tf.train.Supervisor(is_chief=(FLAGS.task_index == 0),
                             logdir=FLAGS.logdir,
                             init_op=init_op,
                             summary_op=summary_op,
                             saver=saver,
                             global_step=global_step,
                             recovery_wait_secs=1,
                             save_model_secs=600)

    # The supervisor takes care of session initialization and restoring from
    # a checkpoint.
    sess = sv.prepare_or_wait_for_session(server.target)

    # Start queue runners for the input pipelines (if any).
    sv.start_queue_runners(sess)

    # Loop until the supervisor shuts down (or 1000000 steps have completed).
    step = 0
    first = None
    while not sv.should_stop() and step < FLAGS.steps:
      # Run a training step asynchronously.
      # See `tf.train.SyncReplicasOptimizer` for additional details on how to
      # perform *synchronous* training.
      _, step = sess.run([train_op, global_step])
      if first is None:
        first, begun = step, time.time()

    rate = (step - first) / (time.time() - begun)
    print("worker %d: step %d, %.0f steps/s, loss %.4f" % (FLAGS.task_index, step, rate, sess.run(loss)))
    if FLAGS.task_index == 0:
      print("saved", saver.save(sess, FLAGS.logdir + "/final"))


if __name__ == "__main__":
  tf.app.run()
