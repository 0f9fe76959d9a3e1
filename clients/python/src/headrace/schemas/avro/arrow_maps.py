"""Maps of Arrow that have a key twice: Avro can write them, and readers keep one of the values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_reasons import joined


def has_maps(kind: pa.DataType) -> bool:
    """Whether a plain type has maps at any depth."""
    if pa.types.is_map(kind):
        return True
    return any(has_maps(kind.field(at).type) for at in range(kind.num_fields))


def doubled_keys(values: pa.Array) -> dict[int, str]:
    """The reason for each row with a map that has a key twice. ``values`` have a plain type."""
    found: dict[int, str] = {}
    waiting = [(values, pa.array(range(len(values)), pa.int64()), "")]
    while waiting:
        array, rows, path = waiting.pop()
        kind = array.type
        if not has_maps(kind) or pa.types.is_union(kind):
            continue
        if array.null_count:
            present = pc.indices_nonzero(array.is_valid())
            array, rows = array.take(present), rows.take(present)
        if pa.types.is_struct(kind):
            waiting += [(array.field(at), rows, joined(path, kind.field(at).name)) for at in range(kind.num_fields)]
            continue
        lengths = pc.subtract(array.offsets.slice(1), array.offsets.slice(0, len(array)))
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parents = pc.list_parent_indices(
            pa.LargeListArray.from_arrays(
                pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))]),
                pa.nulls(last - first),
            )
        )
        below = rows.take(parents)
        if not pa.types.is_map(kind):
            waiting.append((array.values.slice(first, last - first), below, f"{path}[]"))
            continue
        keys, items = (each.slice(first, last - first) for each in (array.keys, array.items))
        encoded = keys.dictionary_encode()
        pairs = pc.add(pc.multiply(parents.cast(pa.int64()), len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        counts = pc.value_counts(pairs)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            for place in pc.index_in(twice, pairs).to_pylist():
                found.setdefault(
                    below[place].as_py(), f"{path or 'the value'}: a map has the key {keys[place].as_py()!r:.60} twice"
                )
        waiting.append((items, below, f"{path}[]"))
    return found
