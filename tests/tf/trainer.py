"""The trainer of TensorFlow's guide to distributed training, on handwritten digits: between-graph replication, a
client per worker.

The parameters lie on the tasks of `ps`, spread by `replica_device_setter`; each worker computes gradients on its
own task. Asynchronous workers apply each their own; synchronous ones average theirs first. The chief (worker 0)
starts the variables, and writes checkpoints and summaries. `Worker` runs one as a process and says how far it is.
"""

import json
import os
import select
import tempfile
import time

import numpy as np

import sandbox
from client import cluster, digits, target, tf

BATCH = 50


class Model:
    """The graph of one worker."""

    def __init__(self, index, sync):
        jobs = cluster()
        setter = tf.train.replica_device_setter(
            worker_device=f"/job:worker/task:{index}", cluster=tf.train.ClusterSpec(jobs)
        )
        with tf.device(setter):
            self.global_step = tf.train.get_or_create_global_step()
            self.images = tf.placeholder(tf.float32, [None, 64], name="images")
            self.labels = tf.placeholder(tf.int64, [None], name="labels")
            start = np.random.RandomState(1)
            hidden = tf.Variable((start.standard_normal((64, 64)) * 0.12).astype(np.float32), name="hidden")
            hidden_bias = tf.Variable(tf.zeros([64]), name="hidden_bias")
            output = tf.Variable((start.standard_normal((64, 10)) * 0.12).astype(np.float32), name="output")
            output_bias = tf.Variable(tf.zeros([10]), name="output_bias")
            layer = tf.nn.relu(tf.nn.xw_plus_b(self.images, hidden, hidden_bias))
            logits = tf.nn.xw_plus_b(layer, output, output_bias)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits)
            self.loss = tf.reduce_mean(each)
            self.right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), self.labels), tf.float32))
            self.optimizer = tf.train.AdagradOptimizer(0.1)
            if sync:
                count = len(jobs["worker"])
                self.optimizer = tf.train.SyncReplicasOptimizer(self.optimizer, count, total_num_replicas=count)
            train = self.optimizer.minimize(self.loss, global_step=self.global_step)
            # Read after the step was taken, so that all workers agree on which was the last.
            with tf.control_dependencies([train]):
                self.step = tf.identity(self.global_step.read_value(), name="step")
            tf.summary.scalar("loss", self.loss)
            tf.summary.scalar("right", self.right)
            tf.summary.histogram("weights", hidden)
            self.summary = tf.summary.merge_all()

    def batches(self, seed):
        (images, labels), _ = digits()
        order = np.random.RandomState(seed)
        while True:
            chosen = order.choice(len(labels), BATCH)
            yield {self.images: images[chosen], self.labels: labels[chosen]}

    def unseen(self):
        _, (images, labels) = digits()
        return {self.images: images, self.labels: labels}


def supervised(index, steps, logdir, sync, say):
    """As the guide has it, with a Supervisor."""
    chief = index == 0
    model = Model(index, sync)
    more = {}
    if sync:
        more["ready_for_local_init_op"] = model.optimizer.ready_for_local_init_op
        more["local_init_op"] = model.optimizer.chief_init_op if chief else model.optimizer.local_step_init_op
        tokens = model.optimizer.get_init_tokens_op(num_tokens=0)
    supervisor = tf.train.Supervisor(
        is_chief=chief,
        logdir=logdir,
        init_op=tf.global_variables_initializer(),
        # Batches are fed, which the supervisor's own thread could not do.
        summary_op=None,
        saver=tf.train.Saver(),
        global_step=model.global_step,
        save_model_secs=1,
        recovery_wait_secs=1,
        **more,
    )
    session = supervisor.prepare_or_wait_for_session(target(f"worker/{index}"))
    if sync and chief:
        session.run(tokens)
        supervisor.start_queue_runners(session, [model.optimizer.get_chief_queue_runner()])
    supervisor.start_queue_runners(session)
    say(ready=True)
    done, summarized = 0, -1
    for feed in model.batches(100 + index):
        if supervisor.should_stop() or done >= steps:
            break
        done = int(session.run(model.step, feed))
        say(step=done)
        if chief and done // 100 > summarized:
            summarized = done // 100
            supervisor.summary_computed(session, session.run(model.summary, feed))
    if chief:
        say(accuracy=float(session.run(model.right, model.unseen())))
        say(saved=supervisor.saver.save(session, os.path.join(logdir, "final"), global_step=done))
    # The thread that hands out the tokens waits for gradients that nobody will send; closing its session ends that.
    supervisor.request_stop()
    session.close()
    supervisor.stop()


def monitored(index, steps, logdir, sync, say, save_steps=100):
    """With a MonitoredTrainingSession, which comes back by itself when a server is lost."""
    chief = index == 0
    model = Model(index, sync)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    if sync:
        hooks.append(model.optimizer.make_session_run_hook(chief, num_tokens=0))
    if chief:
        hooks.append(tf.train.CheckpointSaverHook(logdir, save_steps=save_steps, saver=tf.train.Saver(max_to_keep=3)))
    with tf.train.MonitoredTrainingSession(
        master=target(f"worker/{index}"),
        is_chief=chief,
        checkpoint_dir=logdir,
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=100,
        log_step_count_steps=None,
        max_wait_secs=60,
        # The thread that hands out tokens waits in the server until its session is closed, which comes after this.
        stop_grace_period_secs=1,
    ) as session:
        say(ready=True)
        batches = model.batches(100 + index)
        while not session.should_stop():
            done = int(session.run(model.step, next(batches)))
            say(step=done)


def accuracy_of(checkpoint):
    """How much a checkpoint knows of the digits that nobody learned from, by numpy alone."""
    reader = tf.train.load_checkpoint(checkpoint)
    _, (images, labels) = digits()
    hidden = np.maximum(images @ reader.get_tensor("hidden") + reader.get_tensor("hidden_bias"), 0)
    logits = hidden @ reader.get_tensor("output") + reader.get_tensor("output_bias")
    return float((logits.argmax(1) == labels).mean())


class Worker:
    """A worker's client as a process. What it says arrives as it comes."""

    def __init__(self, index, train, *arguments, environment=None, **more):
        self.index, self.step, self.steps_said, self.ready, self.ended = index, None, 0, False, False
        # Whatever else it said: its accuracy, where it saved.
        self.said = {}
        self.rest = b""
        self.pipe, to = os.pipe()
        os.set_blocking(self.pipe, False)

        def body():
            os.environ.update(environment or {})
            # TensorFlow looks every 30 s whether the chief has started the variables; a test has no time for that.
            look = list(tf.train.SessionManager.__init__.__defaults__)
            look[look.index(30)] = 1
            tf.train.SessionManager.__init__.__defaults__ = tuple(look)
            train(index, *arguments, say=lambda **what: os.write(to, json.dumps(what).encode() + b"\n"), **more)

        log = os.path.join(tempfile.gettempdir(), f"worker-{index}-{time.monotonic_ns()}.log")
        self.process = sandbox.Process.fork(f"worker {index}", log, body)
        os.close(to)

    def read(self):
        """Takes in what was said. Whether there may be more."""
        try:
            part = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self.rest = (self.rest + part).split(b"\n")
        for line in lines:
            for key, value in json.loads(line).items():
                if key == "step":
                    self.step = value
                    self.steps_said += 1
                elif key == "ready":
                    self.ready = True
                else:
                    self.said[key] = value
        return bool(part)

    def kill(self):
        self.process.end()


def watch(workers, until, limit_s, what):
    """Takes in what the workers say until `until()` holds. A worker that ends badly before that is a failure."""
    deadline = time.monotonic() + limit_s
    speaking = {worker.pipe: worker for worker in workers if not worker.ended}
    while not until():
        left = deadline - time.monotonic()
        heard = select.select(list(speaking), [], [], left)[0] if speaking and left > 0 else []
        for pipe in heard:
            worker = speaking[pipe]
            if not worker.read():
                del speaking[pipe]
                worker.ended = True
                if worker.process.wait(30) != 0:
                    raise sandbox.Failed(f"worker {worker.index} died: {told(workers)}")
        if not heard and not until():
            raise sandbox.Failed(f"not within {limit_s} s: {what}; {told(workers)}")


def finish(workers, limit_s):
    """Waits until all have ended well."""
    watch(workers, lambda: all(worker.ended for worker in workers), limit_s, "all workers end")


def told(workers):
    lines = [f"worker {worker.index}: exit {worker.process.wait(0)}, step {worker.step}" for worker in workers]
    for worker in workers:
        lines += [f"--- what worker {worker.index} said", worker.process.output()[-6000:]]
    return "\n".join(lines)
