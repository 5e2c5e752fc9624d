"""Control flow over references to variables, resources that are closed, placeholders with and without a default."""

from recorder.sessions import step, tf

raw = tf.raw_ops

x = tf.placeholder(tf.float32, [2], name="x")
yes = tf.placeholder(tf.bool, [], name="yes")

# One of two variables is written to, by its reference.
first = tf.Variable([1.0, 2.0], use_resource=False, name="first")
second = tf.Variable([10.0, 20.0], use_resource=False, name="second")
_, chosen_first = raw.RefSwitch(data=first._ref(), pred=yes, name="switch_first")
chosen_second, _ = raw.RefSwitch(data=second._ref(), pred=yes, name="switch_second")
merged = raw.RefMerge(inputs=[chosen_second, chosen_first], name="merged")
added = raw.AssignAdd(ref=merged.output, value=x, name="added")

# A reference goes round a loop, and is written to in each round.
counter = tf.Variable(0, use_resource=False, name="counter")
limit = tf.placeholder(tf.int32, [], name="limit")
frame = "rounds"
entered = raw.RefEnter(data=counter._ref(), frame_name=frame, name="enter")
until = raw.Enter(data=limit, frame_name=frame, is_constant=True, name="until")
round_ = raw.RefMerge(inputs=[entered, entered], name="round")
going = raw.LoopCond(input=raw.Less(x=raw.Identity(input=round_.output), y=until), name="going")
leaves, stays = raw.RefSwitch(data=round_.output, pred=going, name="leave_or_stay")
with tf.control_dependencies([stays]):
    one = tf.constant(1, name="one")
counted = raw.AssignAdd(ref=stays, value=one, name="counted")
round_.output.op._update_input(1, raw.RefNextIteration(data=counted, name="next"))
left = raw.Identity(input=raw.RefExit(data=leaves, name="exit"), name="left")

# What is closed is gone, for this step.
array, flow = raw.TensorArrayV3(size=2, dtype=tf.float32, name="array")
written = raw.TensorArrayWriteV3(handle=array, index=0, value=x, flow_in=flow, name="written")
read = raw.TensorArrayReadV3(handle=array, index=0, flow_in=written, dtype=tf.float32, name="read")
with tf.control_dependencies([read]):
    close_array = raw.TensorArrayCloseV3(handle=array, name="close_array")
with tf.control_dependencies([close_array]):
    late = raw.TensorArrayReadV3(handle=array, index=0, flow_in=written, dtype=tf.float32, name="late")

stack = raw.StackV2(max_size=-1, elem_type=tf.float32, name="stack")
pushed = raw.StackPushV2(handle=stack, elem=x, name="pushed")
with tf.control_dependencies([pushed]):
    popped = raw.StackPopV2(handle=stack, elem_type=tf.float32, name="popped")
with tf.control_dependencies([popped]):
    close_stack = raw.StackCloseV2(handle=stack, name="close_stack")
with tf.control_dependencies([close_stack]):
    late_pop = raw.StackPopV2(handle=stack, elem_type=tf.float32, name="late_pop")

default = tf.placeholder_with_default([7.0, 8.0], [2], name="default")
doubled = tf.multiply(default, 2.0, name="doubled")
shown = tf.Print(doubled, [doubled, yes], message="shown: ", first_n=1, summarize=2, name="shown")

variables = tf.global_variables_initializer()
STEPS = [
    step(targets=[variables]),
    step([added, merged.value_index], feeds={x: [1.0, 1.0], yes: True}),
    step([added, merged.value_index], feeds={x: [2.0, 2.0], yes: False}),
    step([first, second]),
    step([left], feeds={limit: 5}),
    step([counter]),
    step([left], feeds={limit: 3}),
    step([counter]),
    step([read], feeds={x: [1.0, 2.0]}, targets=[close_array]),
    step([late], feeds={x: [1.0, 2.0]}),
    step([popped], feeds={x: [3.0, 4.0]}, targets=[close_stack]),
    step([late_pop], feeds={x: [3.0, 4.0]}),
    step([doubled]),
    step([doubled], feeds={default: [1.0, 2.0]}),
    step([shown], feeds={yes: True}),
    step([shown], feeds={default: [0.5, 0.25], yes: False}),
]
