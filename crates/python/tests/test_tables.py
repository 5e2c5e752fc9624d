"""Columns and tables of pandas and Arrow as feeds and as data of trainings."""

import tracemalloc
import unittest

import numpy as np
from needs import need
from test_train import line

import meshtf


class Columns(unittest.TestCase):
    """A graph over named columns, and one over a table."""

    def setUp(self):
        g = meshtf.Graph()
        a, b = g.placeholder("a", "float32", [None]), g.placeholder("b", "int64", [None])
        self.sum = (a + b.astype("float32")).named("sum")
        self.words = g.placeholder("words", "string", [None])
        self.lengths = g.op("StringLength", self.words, name="lengths")
        self.table = g.placeholder("table", "float64", [None, None])
        self.rows = self.table.sum(axis=1).named("rows")
        self.mesh = meshtf.local()
        self.session = self.mesh.session(g)
        self.addCleanup(self.mesh.close)

    def check(self, table, texts, with_nulls, refused):
        run = self.session.run
        np.testing.assert_array_equal(run("sum", table), [11, 22, 33])
        np.testing.assert_array_equal(run("sum", {"a": table["a"], "b": table["b"]}), [11, 22, 33])
        np.testing.assert_array_equal(run("rows", {"table": table}), [11, 22, 33])
        np.testing.assert_array_equal(run("lengths", {"words": texts}), [1, 22, 0])
        np.testing.assert_array_equal(run("sum", {"a": with_nulls, "b": [1, 1, 1]}), [2, np.nan, 4])
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "b has 1 null: fill them"):
            run("sum", {"a": [1, 2, 3], "b": refused})
        for _, value in self.session.run_steps("sum", table, steps=1):
            np.testing.assert_array_equal(value, [11, 22, 33])

    TEXTS = ["a", "more than twelve bytes", ""]

    def test_pandas(self):
        need("python-packages", "pandas")
        import pandas as pd

        table = pd.DataFrame({"a": [1.0, 2, 3], "b": [10, 20, 30]}, index=[7, 8, 9])
        nulls = pd.array([1, None, 3], dtype="Float64")
        self.check(table, pd.Series(self.TEXTS), pd.Series(nulls), pd.Series([1, None, 3], dtype="Int64"))
        whole = table.astype({"a": "Float32", "b": "Int64"})
        self.check(
            whole, pd.Series(self.TEXTS, dtype="category"), pd.Series([1, np.nan, 3]), pd.Series([1, None, 3], dtype="Int32")
        )
        _, data = line()
        given = pd.DataFrame({"x": data["x"][:, 0], "y": data["y"][:, 0]})
        h = meshtf.Graph()
        x, y = h.placeholder("x", "float32", [None]), h.placeholder("y", "float32", [None])
        w = h.variable("w", [], initial=0.0)
        ((x * w - y) ** 2).mean().named("loss")
        by_table, by_arrays = (meshtf.train(h, one, steps=5) for one in (given, {name: given[name].to_numpy() for name in given}))
        self.assertEqual(by_table.weights, by_arrays.weights)
        np.testing.assert_allclose(
            meshtf.train(h, [given], steps=2).weights["w"], meshtf.train(h, given, batch=64, steps=2).weights["w"]
        )

    def test_arrow(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        class Table:
            """A table that has Arrow's protocol and nothing else that numpy knows."""

            def __init__(self, table):
                self.table = table

            def __arrow_c_stream__(self, requested_schema=None):
                return self.table.__arrow_c_stream__(requested_schema)

            def __getitem__(self, name):
                return self.table[name]

        whole = pa.table({"a": [1.0, 2, 3], "b": [10, 20, 30]})
        parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
        nulls, refused = pa.array([1.0, None, 3], pa.float32()), pa.array([1, None, 3])
        for table in (whole, parts, Table(parts), Table(pa.concat_tables([whole.slice(2), whole]).slice(1))):
            for texts in (pa.string(), pa.large_string(), pa.string_view(), pa.binary()):
                self.check(table, pa.array(self.TEXTS, texts), nulls, refused)
        batch = whole.to_batches()[0]
        np.testing.assert_array_equal(self.session.run("sum", batch.slice(1)), [22, 33])
        encoded = pa.array(self.TEXTS).dictionary_encode()
        np.testing.assert_array_equal(self.session.run("lengths", {"words": encoded}), [1, 22, 0])
        pairs = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2))
        np.testing.assert_array_equal(self.session.run("rows", {"table": pairs}), [3, 7])
        bools = pa.array([True, False, True] * 7)[4:]
        np.testing.assert_array_equal(meshtf._arrays.array_of(bools, "bool", "x"), bools.to_numpy(zero_copy_only=False))
        for value, part in [
            (pa.array([[1.0], [2.0, 3.0]]), "the type '.l' of Arrow"),
            (pa.array([0, 1], pa.timestamp("s")), "the type 'tss:'"),
            (pa.table({}), "no columns"),
            (pa.table([[1.0], [2.0]], names=["a", "a"]), "several columns have the name 'a'"),
            (pa.table({"a": [1.0], "s": [{"f": 2.0}]}), "column 's' is a struct"),
            (pa.table({"s": [{"f": 2.0}]}).slice(0, 0), "column 's' is a struct"),
            (pa.table({"s": pa.array([[{"f": 2.0}]], pa.list_(pa.struct([("f", pa.float64())]), 1))}), "column 's' is a struct"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(meshtf.InvalidArgumentError, part):
                self.session.run("rows", {"table": value})

    def test_numbers_of_arrow_are_views(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        array = pa.array(np.arange(1000.0))
        view = meshtf._arrays.array_of(array, "float64", "x")
        self.assertEqual(view.__array_interface__["data"][0], array.buffers()[1].address)
        before = pa.total_allocated_bytes()
        for _ in range(50):
            meshtf._arrays.array_of(pa.chunked_array([np.arange(1e4)]), "float64", "x")
        self.assertLess(pa.total_allocated_bytes() - before, 200_000)
        del array
        self.assertEqual(view.sum(), 999 * 500)

    def test_slices_of_arrow(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        texts = [f"{i}" * (i % 30) for i in range(100)]
        values = {
            "int16": (pa.array(range(100), pa.int16()), np.arange(100)),
            "bool": (pa.array([i % 3 == 0 for i in range(100)]), np.arange(100) % 3 == 0),
            "float32": (pa.FixedSizeListArray.from_arrays(pa.array(np.arange(300, dtype="float32")), 3), None),
            "float64": (pa.array([[i, -i] for i in range(100)], pa.list_(pa.float64(), 2)), np.arange(100)[:, None] * [1, -1]),
        }
        values["float32"] = values["float32"][0], np.arange(300).reshape(100, 3)
        encoded = [text.encode() for text in texts]
        strings = [pa.array(texts, kind) for kind in (pa.string(), pa.large_string(), pa.binary(), pa.string_view())]
        strings += [pa.array(texts).dictionary_encode(), pa.array([text.ljust(60).encode() for text in texts], pa.binary(60))]
        cases = [(one, kind, expected) for kind, (one, expected) in values.items()]
        cases += [(one, "string", encoded) for one in strings[:-1]]
        cases += [(strings[-1], "string", [text.ljust(60).encode() for text in texts])]
        table = pa.table([one for one, _, _ in cases], names=[f"c{i}" for i in range(len(cases))])
        for begin, count in ((0, 100), (3, 0), (7, 1), (9, 64), (99, 1), (50, 50)):
            part, rows = table.slice(begin, count), slice(begin, begin + count)
            for whole in (part, *part.combine_chunks().to_batches()):
                for (_, kind, expected), column in zip(cases, meshtf._arrays.columns_of(whole).values(), strict=True):
                    np.testing.assert_array_equal(meshtf._arrays.array_of(column, kind, "x"), expected[rows])
            for one, kind, expected in cases:
                np.testing.assert_array_equal(meshtf._arrays.array_of(one.slice(begin, count), kind, "x"), expected[rows])

    def test_nulls_of_arrow_outside_a_slice(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        for kind, values in ((pa.int64(), [None, 1, 2, None]), (pa.string(), [None, "a", "b", None])):
            array = pa.array(values, kind)
            pairs = pa.FixedSizeListArray.from_arrays(pa.array([None, None, *values[1:3], None, None], kind), 2)
            name = "string" if kind == pa.string() else "int64"
            for whole, part in (
                (array, [1, 2]),
                (pa.table({"x": array}), [1, 2]),
                (pa.table({"x": array.dictionary_encode()}), [1, 2]),
                (pa.table({"x": pairs}), [1, 1]),
            ):
                own = whole.slice(part[0], part[-1] - part[0] + 1)
                for one in (own, *(own.combine_chunks().to_batches() if isinstance(own, pa.Table) else [])):
                    column = one if isinstance(one, pa.Array) else meshtf._arrays.columns_of(one)["x"]
                    found = meshtf._arrays.array_of(column, name, "x").ravel().tolist()
                    self.assertEqual(found, [b"a", b"b"] if name == "string" else [1, 2])
                with self.assertRaisesRegex(meshtf.InvalidArgumentError, "nulls?: fill them"):
                    meshtf._arrays.array_of(whole if whole is array else meshtf._arrays.columns_of(whole)["x"], name, "x")

    def test_a_small_batch_of_a_large_table_is_read_alone(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        texts = pa.array(["more than twelve bytes"] * 100_000)
        kinds = [texts, texts.cast(pa.binary()), texts.cast(pa.large_string()), pa.array(np.arange(100_000) % 2 == 0)]
        kinds += [pa.array(["more than twelve bytes"] * 100_000, pa.string_view())]
        kinds += [pa.array([f"text {i}" for i in range(100_000)]).dictionary_encode()]
        batch = pa.table(kinds, names=list("abcdef")).to_batches(max_chunksize=32)[-1]
        meshtf._arrays.columns_of(batch)
        tracemalloc.start()
        try:
            found = meshtf._arrays.columns_of(batch)
            self.assertLess(tracemalloc.get_traced_memory()[1], 100_000)
        finally:
            tracemalloc.stop()
        self.assertEqual([found[name][-1] for name in "abce"], [b"more than twelve bytes"] * 4)
        self.assertEqual(found["f"].tolist(), [f"text {i}".encode() for i in range(99_968, 100_000)])

    def test_a_stream_of_arrow_is_read_once(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        class Once:
            """A stream that is neither a table nor an iterator, and can be read once."""

            def __init__(self, table):
                self.stream = table.__arrow_c_stream__()

            def __arrow_c_stream__(self, requested_schema=None):
                stream, self.stream = self.stream, None
                return stream

        table = pa.table({"a": [1.0, 2, 3], "b": [10, 20, 30]})
        for feeds in (Once(table), table):
            found = list(self.session.run_steps("sum", feeds, steps=3))
            self.assertEqual([step for step, _ in found], [1, 2, 3])
            for _, value in found:
                np.testing.assert_array_equal(value, [11, 22, 33])
        self.assertEqual(self.session.run("sum", Once(table)).tolist(), [11, 22, 33])
        # A reader has batches, and each is a step.
        reader = lambda rows: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=rows))
        found = [(step, value.tolist()) for step, value in self.session.run_steps("sum", reader(2))]
        self.assertEqual(found, [(1, [11, 22]), (2, [33])])
        self.assertEqual(self.session.run("sum", reader(2)).tolist(), [11, 22, 33])

    def test_a_training_reads_the_batches_of_a_reader_as_it_proceeds(self):
        need("python-packages", "pyarrow")
        import pyarrow as pa

        g = meshtf.Graph()
        x, w = g.placeholder("x", "float32", [None]), g.variable("w", [], initial=0.0)
        (x * w).mean().named("loss")
        taken = []

        def many():
            for _ in range(100_000):
                taken.append(1)
                yield pa.record_batch({"x": pa.array([1.0, 2.0], pa.float32())})

        reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.float32())]), many())
        done = meshtf.train(g, reader, optimizer="sgd", rate=1.0, steps=20)
        self.assertEqual((done.weights["w"], w.shape), (-30.0, ()))
        self.assertLess(len(taken), 200)
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "state steps"):
            meshtf.train(g, reader)


if __name__ == "__main__":
    unittest.main()
