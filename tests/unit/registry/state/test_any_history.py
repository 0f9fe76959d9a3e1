"""Any sequence of writes: replay, compaction and drafts give the same state, and no id has two schemas."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_registry.compat import Level
from headrace_registry.schemas import Schema
from headrace_registry.state import Mode, RegistryError
from tests.unit.registry.state.world import Writer, avro, compacted, record, replayed, state
from tests.worlds.this_process import examples

SUBJECTS = ("a", "b", "c")
SCHEMAS = (
    avro('"int"'),
    avro('"string"'),
    avro(record("R", ("f", "int"))),
    avro(record("R", ("f", "int"), ("g", "int", 0))),
    avro(record("Outer", ("f", "R")), ("R", "a", 1)),
    avro(record("Outer", ("f", "R")), ("R", "b", -1)),
)

subjects = st.sampled_from(SUBJECTS)
schemas = st.sampled_from(SCHEMAS)
numbers = st.integers(1, 3)
writes = st.one_of(
    st.tuples(st.just("register"), subjects, schemas),
    st.tuples(st.just("register"), subjects, schemas),
    st.tuples(st.just("import"), subjects, schemas, numbers, st.integers(0, 12)),
    st.tuples(st.just("delete_version"), subjects, st.one_of(numbers, st.just(-1)), st.booleans()),
    st.tuples(st.just("delete_subject"), subjects, st.booleans()),
    st.tuples(st.just("level"), st.one_of(st.none(), subjects), st.sampled_from(list(Level))),
    st.tuples(st.just("mode"), st.one_of(st.none(), subjects), st.sampled_from(list(Mode)), st.booleans()),
)


def carry_out(writer: Writer, write: tuple[object, ...]) -> None:
    match write:
        case ("register", str(subject), Schema() as schema):
            writer.register(subject, schema)
        case ("import", str(subject), Schema() as schema, int(version), int(schema_id)):
            writer.register(subject, schema, version=version, id=schema_id)
        case ("delete_version", str(subject), int(number), bool(permanent)):
            writer.delete_version(subject, number, permanent=permanent)
        case ("delete_subject", str(subject), bool(permanent)):
            writer.delete_subject(subject, permanent=permanent)
        case ("level", subject, Level() as level):
            writer.set_level(subject, level)  # type: ignore[arg-type]
        case ("mode", subject, Mode() as mode, bool(force)):
            writer.set_mode(subject, mode, force=force)  # type: ignore[arg-type]
        case other:
            raise AssertionError(other)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(writes, max_size=25))
def test_any_history(history: list[tuple[object, ...]]) -> None:
    writer = Writer()
    schema_of_id: dict[int, object] = {}
    for write in history:
        before, records = state(writer.image), len(writer.topic)
        draft = writer.image.draft()
        refused = None
        try:
            carry_out(writer, write)
        except RegistryError as error:
            refused = error
        if refused is not None:
            assert 400 <= refused.status < 500, refused
            assert (state(writer.image), len(writer.topic)) == (before, records)
        after = state(writer.image)
        assert state(draft) == before
        for offset in range(records, len(writer.topic)):
            draft.apply(*writer.topic[offset], offset)
        assert state(draft) == after
        for version in after["versions"]:
            stored = version.stored
            if is_import(write):  # only an import may choose an id that was in use before
                schema_of_id[stored.id] = stored.schema
            assert schema_of_id.setdefault(stored.id, stored.schema) == stored.schema
    expected = state(writer.image)
    assert state(replayed(writer.topic)) == expected
    assert state(replayed(compacted(writer.topic))) == expected
    for subject in SUBJECTS:
        with contextlib.suppress(RegistryError):
            writer.set_mode(subject, Mode.READWRITE)
    check_references(writer)


def is_import(write: tuple[object, ...]) -> bool:
    return write[0] == "import"


def check_references(writer: Writer) -> None:
    """A version that a live schema references can be looked up."""
    for subject in SUBJECTS:
        for version in writer.image.versions(subject):
            if version.is_deleted:
                continue
            for each in version.stored.schema.references:
                target = writer.image.version(each.subject, each.version, deleted=True)
                if target is not None:
                    assert version.stored.id in writer.image.referenced_by(each.subject, each.version)
