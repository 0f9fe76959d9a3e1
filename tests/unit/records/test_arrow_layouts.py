"""Plain layouts of Arrow arrays: any nesting of dictionaries, runs, views, lists and extension types, and slices."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace_core.records.arrow_layouts import plain_array, plain_column, plain_type, shared_values


class Arrays:
    """Random arrays of nested layouts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def array(self, rows: int, depth: int) -> pa.Array:
        kind = self.random.choice([*_FLAT, *(_NESTED if depth else {})])
        return _FLAT[kind](self, rows) if kind in _FLAT else _NESTED[kind](self, rows, depth - 1)

    def texts(self, rows: int, kind: pa.DataType | None = None) -> pa.Array:
        return pa.array([self.random.choice(["a", "bb", "", "ü", None]) for _ in range(rows)], kind or pa.string())

    def indices(self, rows: int, count: int) -> pa.Array:
        kind = self.random.choice([pa.int8(), pa.uint32(), pa.uint64()])
        return pa.array([self.random.choice([None, *range(count)]) for _ in range(rows)], kind)

    def offsets(self, rows: int) -> list[int]:
        found = [0]
        for _ in range(rows):
            found.append(found[-1] + self.random.randrange(3))
        return found

    def mask(self, rows: int) -> pa.Array:
        return pa.array([self.random.random() < 0.2 for _ in range(rows)], pa.bool_())

    def runs(self, rows: int, make: Callable[[int], pa.Array]) -> pa.Array:
        if not rows:
            return make(0)
        ends = [*sorted(self.random.sample(range(1, rows), min(2, rows - 1))), rows]
        kind = self.random.choice([pa.int16(), pa.int32(), pa.int64()])
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, kind), make(len(ends)))

    def lists(self, rows: int, depth: int, kind: str) -> pa.Array:
        offsets = self.offsets(rows)
        items = self.array(offsets[-1], depth)
        mask = self.mask(rows)
        sizes = [end - start for start, end in itertools.pairwise(offsets)]
        if kind == "list":
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=mask)
        if kind == "large_list":
            return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, mask=mask)
        if kind == "view":
            starts = pa.array(offsets[:-1], pa.int32())
            return pa.ListViewArray.from_arrays(starts, pa.array(sizes, pa.int32()), items, mask=mask)
        starts = pa.array(offsets[:-1], pa.int64())
        return pa.LargeListViewArray.from_arrays(starts, pa.array(sizes, pa.int64()), items, mask=mask)

    def map(self, rows: int, depth: int) -> pa.Array:
        offsets = self.offsets(rows)
        keys = pa.array([f"k{at}" for at in range(offsets[-1])], pa.string())
        keys = self.random.choice([keys, keys.dictionary_encode(), keys.cast(pa.string_view())])
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), keys, self.array(offsets[-1], depth), mask=self.mask(rows)
        )

    def union(self, rows: int, depth: int) -> pa.Array:
        codes = [self.random.randrange(2) for _ in range(rows)]
        places = [codes[:at].count(code) for at, code in enumerate(codes)]
        children = [self.array(rows, depth) for _ in range(2)]
        return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(places, pa.int32()), children, ["x", "y"])


def _views_in_a_dictionary(arrays: Arrays, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(arrays.indices(rows, 2), pa.array(["a", None], kind))


_FLAT: dict[str, Callable[[Arrays, int], pa.Array]] = {
    "string": lambda arrays, rows: arrays.texts(rows),
    "string view": lambda arrays, rows: arrays.texts(rows, pa.string_view()),
    "int": lambda arrays, rows: pa.array(range(rows), pa.int32()),
    "null": lambda arrays, rows: pa.nulls(rows),
    "half": lambda arrays, rows: pa.array([0.5] * rows, pa.float16()),
    "time": lambda arrays, rows: pa.array(range(rows), pa.timestamp("ns", "Europe/Berlin")),
    "decimal": lambda arrays, rows: pa.array(range(rows), pa.decimal32(9, 2)),
    "uuid": lambda arrays, rows: pa.array([bytes([at]) * 16 for at in range(rows)], pa.uuid()),
    "json": lambda arrays, rows: pa.ExtensionArray.from_storage(pa.json_(), arrays.texts(rows)),
    "bool8": lambda arrays, rows: pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1] * rows, pa.int8())),
    "dictionary": lambda arrays, rows: arrays.texts(rows).dictionary_encode(),
    "dictionary of text views": lambda arrays, rows: _views_in_a_dictionary(arrays, rows, pa.string_view()),
    "dictionary of views": lambda arrays, rows: _views_in_a_dictionary(arrays, rows, pa.binary_view()),
    "runs": lambda arrays, rows: pc.run_end_encode(arrays.texts(rows)),
    "runs of views": lambda arrays, rows: arrays.runs(rows, lambda count: arrays.texts(count, pa.string_view())),
    "runs of a dictionary": lambda arrays, rows: arrays.runs(
        rows, lambda count: arrays.texts(count).dictionary_encode()
    ),
}
_NESTED: dict[str, Callable[[Arrays, int, int], pa.Array]] = {
    "struct": lambda arrays, rows, depth: pa.StructArray.from_arrays(
        [arrays.array(rows, depth), arrays.array(rows, depth)], ["a", "b"], mask=arrays.mask(rows)
    ),
    "dictionary of structs": lambda arrays, rows, depth: pa.DictionaryArray.from_arrays(
        arrays.indices(rows, 2), pa.StructArray.from_arrays([arrays.array(2, depth)], ["q"])
    ),
    "fixed lists": lambda arrays, rows, depth: pa.FixedSizeListArray.from_arrays(
        arrays.array(2 * rows, depth), 2, mask=arrays.mask(rows)
    ),
    "lists": lambda arrays, rows, depth: arrays.lists(rows, depth, "list"),
    "large lists": lambda arrays, rows, depth: arrays.lists(rows, depth, "large_list"),
    "list views": lambda arrays, rows, depth: arrays.lists(rows, depth, "view"),
    "large list views": lambda arrays, rows, depth: arrays.lists(rows, depth, "large_view"),
    "map": lambda arrays, rows, depth: arrays.map(rows, depth),
    "union": lambda arrays, rows, depth: arrays.union(rows, depth),
}


def _comparable(value: Any) -> Any:
    """A value without Python's types for extensions."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in value]
    return value


@pytest.mark.parametrize("seed", range(8))
def test_any_nesting_of_layouts_keeps_its_values(seed: int) -> None:
    arrays = Arrays(seed)
    for _ in range(60):
        whole = arrays.array(arrays.random.randrange(1, 9), arrays.random.randrange(4))
        first = arrays.random.randrange(len(whole) + 1)
        for array in (whole, whole.slice(first, arrays.random.randrange(len(whole) - first + 1))):
            plain = plain_array(array)
            plain.validate(full=True)
            assert plain.type == plain_type(array.type)
            assert plain_type(plain.type) == plain.type
            assert _comparable(plain.to_pylist()) == _comparable(array.to_pylist())


def test_an_array_in_a_plain_layout_is_not_copied() -> None:
    array = pa.array([{"a": ["x"]}])
    column = pa.chunked_array([array])
    assert plain_array(array) is array
    assert plain_column(column) is column


def test_a_column_without_chunks_gets_its_type() -> None:
    empty = pa.chunked_array([], pa.dictionary(pa.int8(), pa.string_view()))
    assert plain_column(empty).type == pa.large_string()


def test_list_views_in_any_order_that_share_items() -> None:
    items = pa.array(["a", "b", "c"], pa.string_view())
    views = pa.ListViewArray.from_arrays(pa.array([1, 0, 0], pa.int32()), pa.array([2, 3, 0], pa.int32()), items)
    assert plain_array(views).to_pylist() == [["b", "c"], ["a", "b", "c"], []]
    assert plain_array(views.slice(1)).to_pylist() == [["a", "b", "c"], []]


def test_a_slice_of_runs_costs_its_own_runs() -> None:
    values = pa.array([f"value {number}" for number in range(1_000)])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(range(3, 3_003, 3), pa.int32()), values)
    for start, rows, few in ((0, 3, 1), (1_001, 4, 2), (2_999, 1, 1), (1_500, 0, 0), (3_000, 5, 0)):
        part = runs.slice(start, rows)
        assert len(shared_values(part)[0]) == few
        assert plain_array(part).to_pylist() == [f"value {row // 3}" for row in range(start, start + len(part))]


def test_a_slice_of_list_views_costs_its_own_items(monkeypatch: pytest.MonkeyPatch) -> None:
    items = pa.array([f"value {number}" for number in range(1_000)], pa.string_view())
    starts, sizes = pa.array(range(998, -1, -1), pa.int32()), pa.array([2] * 999, pa.int32())
    views = pa.ListViewArray.from_arrays(starts, sizes, items, mask=pa.array([row == 500 for row in range(999)]))
    read: list[int] = []

    def counting(array: pa.Array) -> pa.Array:
        read.append(len(array))
        return plain_array(array)

    monkeypatch.setattr("headrace_core.records.arrow_layouts.plain_array", counting)
    assert plain_array(views.slice(499, 3)).to_pylist() == [
        ["value 499", "value 500"],
        None,
        ["value 497", "value 498"],
    ]
    assert plain_array(views.slice(500, 1)).to_pylist() == [None]
    assert max(read) == 4
