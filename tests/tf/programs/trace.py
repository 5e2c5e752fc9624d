"""What a run says of itself: step statistics of all tasks, which `timeline` turns into a trace for Chrome;
partition graphs; costs.
"""

import json

from client import check, target, tf
from tensorflow.python.client import timeline

CLUSTER = {"local": 2}

config = tf.ConfigProto()
# Else TensorFlow computes constants beforehand and there is little to see.
config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
config.graph_options.rewrite_options.disable_meta_optimizer = True

x = tf.placeholder(tf.float32, [200, 200], name="x")
with tf.device("/job:local/task:1"):
    product = tf.matmul(x, x, name="product")
with tf.device("/job:local/task:0"):
    total = tf.reduce_sum(product, name="total")

with tf.Session(target("local/0"), config=config) as session:
    feed = {x: [[0.5] * 200] * 200}
    plain = tf.RunMetadata()
    session.run(total, feed, run_metadata=plain)
    check(not plain.step_stats.dev_stats)

    for _ in range(2):
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        check(abs(session.run(total, feed, options=options, run_metadata=metadata) - 200**3 / 4) < 1)
        where = {}
        for device in metadata.step_stats.dev_stats:
            for stats in device.node_stats:
                where[stats.node_name.split(":")[0]] = device.device
                check(stats.all_start_micros > 1_500_000_000_000_000, stats.all_start_micros)
                check(0 <= stats.op_end_rel_micros <= stats.all_end_rel_micros < 60_000_000, stats)
                for output in stats.output:
                    made = output.tensor_description
                    # A node's name is that of its kernel in TensorFlow's second account of a CPU.
                    if stats.node_name == "product":
                        check([dim.size for dim in made.shape.dim] == [200, 200] and made.dtype == tf.float32.as_datatype_enum)
                        check(made.allocation_description.requested_bytes == 4 * 200**2, stats)
                        check(made.allocation_description.allocator_name == "cpu", stats)
        check(where["product"].startswith("/job:local/replica:0/task:1/device:CPU:0"), where)
        check(where["total"].startswith("/job:local/replica:0/task:0/device:CPU:0"), where)
        check(len(metadata.partition_graphs) == 2, len(metadata.partition_graphs))

        trace = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(show_memory=True))
        events = trace["traceEvents"]
        # The memory that the tensors of a step take together, over its time.
        check(any(event["ph"] == "C" and max(event["args"].values()) >= 4 * 200**2 for event in events), events)
        # On some processors TensorFlow replaces a kernel by one of another name (_MklMatMul).
        kinds = {event["name"] for event in events if event["ph"] == "X"}
        check("Sum" in kinds and any("MatMul" in kind for kind in kinds), kinds)
        devices = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
        check(any("task:1" in name for name in devices) and any("task:0" in name for name in devices), devices)
        # It can be written down beside a program's summaries.
        check(tf.RunMetadata.FromString(metadata.SerializeToString()) == metadata)
