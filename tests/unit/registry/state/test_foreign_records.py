"""Foreign records in the topic: the image skips them or applies them, and never fails."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_registry.state import Image
from headrace_registry.state.records import dump
from tests.unit.registry.state.world import replayed, state
from tests.worlds.this_process import examples

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from(["s", "t", "AVRO", "FULL", "IMPORT", '"int"', ""])
)
references = st.lists(
    st.fixed_dictionaries({}, optional={"name": scalars, "subject": scalars, "version": scalars}), max_size=2
)
keys = st.fixed_dictionaries(
    {"keytype": st.sampled_from(["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP", "CONTEXT", 7])},
    optional={"subject": scalars, "version": scalars, "magic": st.integers(0, 1), "of": st.just("maxId")},
)
values = st.fixed_dictionaries(
    {},
    optional={
        "id": scalars,
        "version": scalars,
        "schema": scalars,
        "schemaType": scalars,
        "references": st.one_of(scalars, references),
        "deleted": scalars,
        "mode": scalars,
        "compatibilityLevel": scalars,
        "normalize": scalars,
        "maxId": scalars,
        "metadata": scalars,
    },
)
data = st.one_of(st.none(), st.binary(max_size=20))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.one_of(data, keys.map(dump)), st.one_of(data, values.map(dump))), max_size=12))
def test_any_records(topic: list[tuple[bytes | None, bytes | None]]) -> None:
    image = Image()
    for offset, (key, value) in enumerate(topic):
        image.apply(key, value, offset)
        assert image.offset == offset
        found = state(image)
        assert found["schemas"] == len(found["ids"])
        assert image.max_id >= max(found["ids"], default=0)
        for schema_id, known in found["ids"].items():
            assert known is not None, schema_id
    again = replayed([(key, value) for key, value in topic if key is not None])
    assert state(again) == state(image)
