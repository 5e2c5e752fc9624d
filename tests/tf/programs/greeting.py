"""A greeting that is not ASCII, from a cluster of one task."""

from client import check, target, tf

CLUSTER = {"local": 1}

greeting = tf.constant("Hello, 分散 TensorFlow!")
session = tf.Session(target("local/0"))
check(session.run(greeting) == "Hello, 分散 TensorFlow!".encode())
longer = tf.strings.join([greeting, tf.placeholder_with_default(" 안녕", [])])
check(session.run(longer).decode() == "Hello, 分散 TensorFlow! 안녕")
check(session.run(tf.strings.length(greeting)) == len("Hello, 分散 TensorFlow!".encode()))
session.close()
