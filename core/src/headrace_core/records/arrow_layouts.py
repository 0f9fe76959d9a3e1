"""Arrow arrays in plain layouts: no dictionaries, runs, views or extension types, at any depth.

pyarrow's own cast lacks many of these: dictionaries of views (polars' Categorical and Enum), runs, and dictionaries
within structs. Needs pyarrow.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

#: The types of texts that many rows may share: a column of them may need more than 2 GiB.
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


@lru_cache(maxsize=256)
def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of ``plain_array``: dictionaries and runs become their values (texts and bytes with 64-bit offsets),
    extension types their storage (bool8: bool), views large types, float16 float32, and all lists ``list`` or
    ``large_list``. Sparse unions stay as they are."""
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        plain = plain_type(kind.value_type)
        return _WIDE.get(plain, plain)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pa.types.is_union(kind) and kind.mode == "dense":
        return pa.dense_union([_plain_field(each) for each in kind], kind.type_codes)
    if _is_list(kind):
        wide = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
        return (pa.large_list if wide else pa.list_)(_plain_field(kind.value_field))
    return kind


def plain_array(array: pa.Array) -> pa.Array:
    """The same values in the layout of ``plain_type``; an array that has it is returned as it is. Raises ArrowInvalid
    for a damaged array, such as a dictionary without an index's value."""
    kind = array.type
    plain = plain_type(kind)
    if kind == plain:
        return array
    if isinstance(array, pa.ExtensionArray):
        storage = plain_array(array.storage)
        return pc.not_equal(storage, 0) if plain == pa.bool_() else storage
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        values, rows = shared_values(array)
        values = plain_array(values)
        return (values if values.type == plain else values.cast(plain)).take(rows)
    if pa.types.is_float16(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return array.cast(plain)
    missing = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        # (field() ignores the struct's own nulls, and so keeps the fields' values below them)
        children = [plain_array(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(plain), mask=missing)
    if pa.types.is_union(kind):
        return _plain_union(array)
    offsets, *items = _lists(array)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, *map(plain_array, items), type=plain, mask=missing)
    made = pa.LargeListArray if pa.types.is_large_list(plain) else pa.ListArray
    return made.from_arrays(offsets, plain_array(items[0]), type=plain, mask=missing)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same for a table's column."""
    plain = plain_type(column.type)
    return column if column.type == plain else pa.chunked_array([plain_array(each) for each in column.chunks], plain)


def shared_values(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values of a dictionary-encoded or run-end encoded array, and the position of each row's value."""
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary, array.indices
    first, count = array.find_physical_offset(), array.find_physical_length()  # (a slice has all runs of its array)
    numbered = pa.array(range(count), pa.int64())  # (Arrow cannot repeat values of every type)
    runs = pa.RunEndEncodedArray.from_arrays(array.run_ends.slice(first, count), numbered)
    return array.values.slice(first, count), pc.run_end_decode(runs.slice(array.offset, len(array)))


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _plain_union(array: pa.Array) -> pa.Array:
    kind = array.type
    _, codes, places = array.buffers()[:3]  # (the properties type_codes and offsets of a slice begin before the slice)
    return pa.UnionArray.from_dense(
        pa.Array.from_buffers(pa.int8(), len(array), [None, codes], offset=array.offset),
        pa.Array.from_buffers(pa.int32(), len(array), [None, places], offset=array.offset),
        [plain_array(array.field(at)) for at in range(kind.num_fields)],
        [each.name for each in kind],
        kind.type_codes,
    )


def _lists(array: pa.Array) -> tuple[pa.Array, ...]:
    """Offsets from 0, and the items between them (of a map: the keys and the values)."""
    kind = array.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # The items may be in any order: number those of these lists, and let Arrow put the numbers in order.
        none = pa.scalar(0, array.offsets.type)  # (int32, or int64 of a large list)
        lengths = pc.if_else(array.is_valid(), array.sizes, none)
        used = pc.greater(lengths, none)
        first = pc.min(array.offsets.filter(used)).as_py() or 0
        last = pc.max(pc.add(array.offsets, lengths).filter(used)).as_py() or 0
        starts = pc.if_else(used, pc.subtract(array.offsets, pa.scalar(first, none.type)), none)
        view = pa.LargeListViewArray if pa.types.is_large_list_view(kind) else pa.ListViewArray
        numbers = view.from_arrays(starts, lengths, pa.array(range(last - first), pa.int64())).flatten()
        offsets = pa.concat_arrays([pa.array([0], none.type), pc.cumulative_sum(lengths)])
        return offsets, plain_array(array.values.slice(first, last - first)).take(numbers)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        offsets = pa.array(range(0, size * len(array) + 1, size) if size else [0] * (len(array) + 1), pa.int32())
        return offsets, array.values.slice(size * array.offset, size * len(array))
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    items = (array.keys, array.items) if pa.types.is_map(kind) else (array.values,)
    return pc.subtract(array.offsets, first), *(each.slice(first, last - first) for each in items)
