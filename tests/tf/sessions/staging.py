"""Staging areas: in order, by key and in the order of keys; tuples that come or go in parts; and what they refuse."""

from recorder.sessions import step, tf

raw = tf.raw_ops

x, y = tf.placeholder(tf.float32, name="x"), tf.placeholder(tf.int32, name="y")
key = tf.placeholder(tf.int64, name="key")
at = tf.placeholder(tf.int32, name="at")
STEPS = []

# In order.
types, area = [tf.float32, tf.int32], {"capacity": 3, "memory_limit": 64, "shared_name": "line"}
put = raw.Stage(values=[x, y], name="put", **area)
peek = raw.StagePeek(index=at, dtypes=types, name="peek", **area)
get = raw.Unstage(dtypes=types, name="get", **area)
size = raw.StageSize(dtypes=types, name="size", **area)
clear = raw.StageClear(dtypes=types, name="clear", **area)
for i in range(3):
    STEPS.append(step(targets=[put], feeds={x: [i, i + 0.5], y: i}))
STEPS += [step(list(peek), feeds={at: i}) for i in (0, 2)]
STEPS += [step([size]), step(list(get)), step([size]), step(list(peek), feeds={at: 0})]
# More than there is ever room for.
STEPS.append(step(targets=[put], feeds={x: [0.0] * 16, y: 1}))
STEPS += [step(targets=[clear]), step([size]), step(targets=[put], feeds={x: 7, y: [8]}), step(list(get)), step([size])]
few = raw.Unstage(dtypes=[tf.float32], shared_name="line", name="few")
STEPS += [step(targets=[put], feeds={x: 7, y: [8]}), step(list(few)), step(targets=[clear])]

# By key.
types = [tf.float32, tf.int32, tf.float32]
for ordered in (False, True):
    kind = "Ordered" if ordered else ""
    named = {"shared_name": f"{kind}map"}
    names = lambda what: {"name": f"{kind}{what}", **named}
    op = lambda what: getattr(raw, f"{kind}Map{what}")
    outer = op("Stage")(key=key, indices=[0, 2], values=[x, x * 2], dtypes=types, **names("outer"))
    inner = op("Stage")(key=key, indices=[1], values=[y], dtypes=types, **names("inner"))
    whole = op("Stage")(key=key, indices=[0, 1, 2], values=[x, y, x * 3], dtypes=types, **names("whole"))
    parts = op("Unstage")(key=key, indices=[0, 2], dtypes=[tf.float32, tf.float32], **names("parts"))
    middle = op("Unstage")(key=key, indices=[1], dtypes=[tf.int32], **names("middle"))
    seen = op("Peek")(key=key, indices=[0, 1], dtypes=[tf.float32, tf.int32], **names("seen"))
    next_ = op("UnstageNoKey")(indices=[0, 1, 2], dtypes=types, **names("next"))
    sizes = [op("Size")(dtypes=types, **names("size")), op("IncompleteSize")(dtypes=types, **names("isize"))]
    empty = op("Clear")(dtypes=types, **names("clear"))
    look = step(sizes)
    STEPS += [look, step(targets=[outer], feeds={key: 4, x: [1.0, 2.0]}), look, step(targets=[outer], feeds={key: -9, x: 5.0}), look]
    # It is there already.
    STEPS.append(step(targets=[outer], feeds={key: 4, x: [1.0, 2.0]}))
    STEPS += [step(targets=[inner], feeds={key: 4, y: [6]}), look, step(list(seen), feeds={key: 4}), step(list(parts), feeds={key: 4})]
    # They are gone.
    STEPS += [step(list(parts), feeds={key: 4}), step(list(seen), feeds={key: 4}), look, step(list(middle), feeds={key: 4}), look]
    STEPS += [step(targets=[inner], feeds={key: -9, y: 3}), look, step([next_.key, *next_.values]), look]
    if ordered:
        for k in (3, -5, 12, 0):
            STEPS.append(step(targets=[whole], feeds={key: k, x: k, y: k}))
        STEPS += [step([next_.key, *next_.values]) for _ in range(4)]
    STEPS += [step(targets=[whole], feeds={key: 1, x: 1, y: 1}), step(targets=[outer], feeds={key: 2, x: 1}), look]
    STEPS += [step(targets=[empty]), look]
    wrong = op("Stage")(key=key, indices=[2, 0], values=[x, x], dtypes=types, **names("wrong"))
    beyond = op("Stage")(key=key, indices=[5], values=[x], dtypes=types, **names("beyond"))
    STEPS += [step(targets=[wrong], feeds={key: 1, x: 1}), step(targets=[beyond], feeds={key: 1, x: 1})]
    STEPS += [step(targets=[whole], feeds={key: [1, 2, 3], x: 1, y: 1}), step(targets=[whole], feeds={key: [], x: 1, y: 1}), look]
    limited = op("Stage")(key=key, indices=[0], values=[x], dtypes=[tf.float32], memory_limit=8, shared_name=f"{kind}limited", name=f"{kind}limited")
    STEPS += [step(targets=[limited], feeds={key: 1, x: [1.0, 2.0, 3.0]}), step(targets=[limited], feeds={key: 1, x: [1.0, 2.0]})]
