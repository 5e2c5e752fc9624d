"""Writes the Parquet files beside it, and a .csv file of the same rows: pip install pyarrow==21.0.0, python write.py."""

import csv
import datetime
import decimal
import math
import pathlib

import pyarrow
import pyarrow.parquet

ROWS = 40
HERE = pathlib.Path(__file__).parent
UTC = datetime.timezone.utc
TEXTS = ["plain", "with, comma", 'with "quotes"', "two\nlines", "Grüße"]


def column(value, every):
    """The values of all rows, of which each so manieth is missing; none for 0."""
    return [None if every and row % every == every - 1 else value(row) for row in range(ROWS)]


def moment(row):
    return datetime.datetime(2026, 5, 31, 12, 30, 15, 250000) + datetime.timedelta(days=row, seconds=row)


COLUMNS = {
    "id": (column(lambda row: row, 0), pyarrow.int64()),
    "small": (column(lambda row: row - 20, 7), pyarrow.int8()),
    "unsigned": (column(lambda row: 2**32 - 1 - row, 5), pyarrow.uint32()),
    "large": (column(lambda row: 2**63 + row * 4096, 0), pyarrow.uint64()),
    "single": (column(lambda row: row / 10, 6), pyarrow.float32()),
    "double": (column(lambda row: math.pi * 10 ** (row - 20), 9), pyarrow.float64()),
    "truth": (column(lambda row: row % 3 == 0, 8), pyarrow.bool_()),
    "text": (column(lambda row: TEXTS[row % 5], 11), pyarrow.string()),
    "kind": (column(lambda row: "abc"[row % 3], 0), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    "day": (column(lambda row: moment(row).date() - datetime.timedelta(days=25000), 4), pyarrow.date32()),
    "millis": (column(moment, 10), pyarrow.timestamp("ms")),
    "zone": (column(lambda row: moment(row).replace(tzinfo=UTC), 0), pyarrow.timestamp("us", tz="UTC")),
    "time": (column(lambda row: datetime.time(row % 24, 59, row), 0), pyarrow.time64("us")),
    "price": (column(lambda row: decimal.Decimal(row - 20) * decimal.Decimal("0.0125"), 13), pyarrow.decimal128(9, 4)),
    "cents": (column(lambda row: decimal.Decimal(row - 3) / 100, 0), pyarrow.decimal128(30, 2)),
}


def shown(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def main():
    values = {name: pyarrow.array(values, kind) for name, (values, kind) in COLUMNS.items()}
    table = pyarrow.table(values)
    with open(HERE / "rows.csv", "w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for row in range(ROWS):
            lines.writerow([shown(values[row]) for values, _ in COLUMNS.values()])
    write = pyarrow.parquet.write_table
    write(table, HERE / "snappy.parquet", compression="snappy", row_group_size=16)
    write(table, HERE / "plain.parquet", compression="none", use_dictionary=False, data_page_size=64)
    write(table, HERE / "gzip.parquet", compression="gzip", version="1.0", use_deprecated_int96_timestamps=True)
    deltas = {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "double": "BYTE_STREAM_SPLIT"}
    write(table, HERE / "zstd.parquet", compression="zstd", data_page_version="2.0", use_dictionary=["kind"],
          column_encoding=deltas, row_group_size=17)
    write(table.select(["id"]), HERE / "lz4.parquet", compression="lz4")
    # A column alone, whose rows may be missing at the end, too; numbers are its name.
    write(pyarrow.table({"7": pyarrow.array([1.5, None, 2.5, None])}), HERE / "one.parquet")
    nested = {
        "a": pyarrow.array([1, 2]),
        "tags": pyarrow.array([["x"], []]),
        "place": pyarrow.array([{"x": 1, "y": 2}, None]),
        "counts": pyarrow.array([[("k", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
        "b": pyarrow.array([3, 4]),
    }
    write(pyarrow.table(nested), HERE / "nested.parquet")


if __name__ == "__main__":
    main()
