"""Complex numbers: fed, fetched, moved between tasks, held by variables and saved; arithmetic, products of matrices, Fourier
transforms and their gradients, each beside what NumPy computes."""

import numpy as np

from client import check, data, near as near_by, same, target, tf

CLUSTER = {"local": 2}

random = np.random.RandomState(5)


def near(got, wanted, by):
    near_by(got, wanted, by, by)


def numbers(dtype, *shape):
    return (random.randn(*shape) + 1j * random.randn(*shape)).astype(dtype)


for dtype in (np.complex64, np.complex128):
    name = np.dtype(dtype).name
    far = 1e-4 if dtype == np.complex64 else 1e-10
    a, b, square = numbers(dtype, 3, 4), numbers(dtype, 4), numbers(dtype, 4, 4)
    with tf.Graph().as_default():
        x = tf.placeholder(dtype, [None, 4])
        with tf.device("/job:local/task:1"):
            v = tf.get_variable(f"v_{name}", initializer=b, use_resource=True)
            old = tf.get_variable(f"old_{name}", initializer=b, use_resource=False)
            product = x * v
            turned = tf.matmul(x, square)
            parts = [tf.real(product), tf.imag(product), tf.abs(product), tf.angle(product), tf.math.conj(product)]
        sums = tf.reduce_sum(product, 0)
        functions = [tf.exp(x), tf.sqrt(x), tf.log(x), tf.sin(x), tf.tanh(x), x / v, tf.pow(x, v)]
        inverse = tf.linalg.inv(square)
        # A loss of complex weights is real; the weights go against its gradient.
        loss = tf.reduce_sum(tf.square(tf.abs(product - 1)))
        slope = tf.gradients(loss, [v, x])
        moved = old.assign_sub(tf.cast(0.5, dtype) * tf.math.conj(old))
        with tf.Session(target("local/0")) as session:
            session.run(tf.global_variables_initializer())
            feeds = {x: a}
            near(session.run(product, feeds), a * b, far)
            near(session.run(turned, feeds), a @ square, far)
            for got, wanted in zip(session.run(parts, feeds), [(a * b).real, (a * b).imag, np.abs(a * b), np.angle(a * b), (a * b).conj()]):
                near(got, wanted, far)
            near(session.run(sums, feeds), (a * b).sum(0), far)
            wanted = [np.exp(a), np.sqrt(a), np.log(a), np.sin(a), np.tanh(a), a / b, a**b]
            for got, value in zip(session.run(functions, feeds), wanted):
                near(got, value, far * 10)
            near(session.run(inverse) @ square, np.eye(4), far * 100)
            by_v, by_x = session.run(slope, feeds)
            near(by_v, (2 * (a * b - 1) * a.conj()).sum(0), far * 10)
            near(by_x, 2 * (a * b - 1) * b.conj(), far * 10)
            near(session.run(moved), b - 0.5 * b.conj(), far)
            same(session.run(v), b)

    # Saved and restored.
    with tf.Graph().as_default():
        v = tf.get_variable(f"kept_{name}", initializer=b)
        saver = tf.train.Saver()
        with tf.Session(target("local/0")) as session:
            session.run(v.initializer)
            path = saver.save(session, data(f"waves-{name}"))
            session.run(v.assign(b * 2))
            saver.restore(session, path)
            same(session.run(v), b)

    # Transforms, of lengths that are powers of two and others.
    with tf.Graph().as_default(), tf.device("/job:local/task:1"):
        real = tf.float32 if dtype == np.complex64 else tf.float64
        wave, volume = numbers(dtype, 3, 12), numbers(dtype, 2, 3, 5, 8)
        signal = random.randn(3, 12).astype(real.as_numpy_dtype)
        x = tf.constant(signal)
        pairs = [
            (tf.signal.fft(wave), np.fft.fft(wave)),
            (tf.signal.ifft(wave), np.fft.ifft(wave)),
            (tf.signal.fft2d(volume), np.fft.fft2(volume)),
            (tf.signal.ifft2d(volume), np.fft.ifft2(volume)),
            (tf.signal.fft3d(volume), np.fft.fftn(volume, axes=(1, 2, 3))),
            (tf.signal.ifft3d(volume), np.fft.ifftn(volume, axes=(1, 2, 3))),
            (tf.signal.rfft(x), np.fft.rfft(signal)),
            (tf.signal.rfft(x, [7]), np.fft.rfft(signal, 7)),
            (tf.signal.rfft2d(x), np.fft.rfft2(signal)),
            (tf.signal.irfft(tf.signal.rfft(x)), signal),
            (tf.signal.irfft(tf.constant(wave), [9]), np.fft.irfft(wave, 9)),
        ]
        power = tf.reduce_sum(tf.square(tf.abs(tf.signal.rfft(x))))
        by_x = tf.gradients(power, x)[0]
        with tf.Session(target("local/0")) as session:
            for got, wanted in pairs:
                value = session.run(got)
                check(value.dtype == got.dtype.as_numpy_dtype, value.dtype)
                near(value, wanted, far * 10)
            spectrum = np.fft.rfft(signal)
            mirrored = np.concatenate([spectrum, np.zeros([3, 5])], 1)
            near(session.run(by_x), 2 * 12 * np.fft.ifft(mirrored).real, far * 100)
