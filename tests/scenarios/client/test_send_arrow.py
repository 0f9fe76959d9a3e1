"""send_arrow: rows of pyarrow, and of other objects with Arrow's PyCapsule interface."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from headrace import Admin, AsyncProducer, NewTopic, Producer
from headrace.errors import ClosedError, InvalidArgumentError, InvalidTimestampError, RecordTooLargeError

pa = pytest.importorskip("pyarrow")
arrow_batches = pytest.importorskip("headrace.producer.arrow").arrow_batches
_chunks = pytest.importorskip("headrace.producer.arrow")._chunks


class Stream:
    """The Arrow interface of a polars data frame or a DuckDB relation."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Array:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.batch.__arrow_c_array__(requested_schema)


ROWS = {"key": [b"a", None, b"c"], "value": [b"1", b"2", None]}
TABLE = pa.table(ROWS)
BATCH = TABLE.to_batches()[0]


def written(cluster: Any) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in cluster.records("t")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TABLE,
        lambda: BATCH,
        lambda: pa.RecordBatchReader.from_batches(TABLE.schema, [BATCH]),
        lambda: Stream(TABLE),
        lambda: Stream(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])),
        lambda: Array(BATCH),
        lambda: TABLE.to_pandas(),
    ],
    ids=["table", "batch", "reader", "stream", "stream of chunks", "array", "pandas"],
)
def test_rows_of_any_library_are_sent(fake: Any, make: Any) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        assert out.send_arrow("t", make()).result(60).record_count == 3
    assert set(written(fake)) == set(zip(ROWS["key"], ROWS["value"], strict=True))


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(1),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.uint32(), pa.string_view()),
        pa.run_end_encoded(pa.int32(), pa.string_view()),
        pa.json_(),
    ],
    ids=str,
)
def test_key_and_value_may_be_binary_or_text_of_any_width(fake: Any, kind: Any) -> None:
    column = pa.array(["x", "y", None], pa.string())
    if pa.types.is_run_end_encoded(kind):
        column = pa.RunEndEncodedArray.from_arrays([1, 2, 3], column.cast(kind.value_type))
    elif pa.types.is_dictionary(kind):
        column = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None], kind.index_type), column.slice(0, 2).cast(kind.value_type)
        )
    elif kind == pa.json_():
        column = pa.ExtensionArray.from_storage(kind, column)
    else:
        column = column.cast(pa.binary()).cast(kind) if kind == pa.binary(1) else column.cast(kind)
    fake.create("six", 6)
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        out.send_arrow("t", pa.table({"value": column})).result(60)
        out.send_arrow("six", pa.table({"value": column, "key": column})).result(60)
        by_hand = [out.send("six", b"v", key=key).result(60).partition for key in (b"x", b"y")]
    assert written(fake) == [(None, b"x"), (None, b"y"), (None, None)]
    for key, partition in zip((b"x", b"y"), by_hand, strict=True):
        assert key in [record.key for record in fake.records("six", partition)][:-1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Stream(pa.chunked_array([[b"a"]])), "cannot be read as Arrow columns"),
        (pa.array([b"a"]), "cannot be read as Arrow columns"),
        ([b"a"], "__arrow_c_stream__"),
        (pa.table({"key": [b"a"]}), "needs a column 'value'"),
        (pa.table([[b"a"], [b"b"]], names=["value", "value"]), "2 columns named 'value'"),
        (pa.table({"value": [1, 2]}), "column 'value' has type int64"),
        (pa.table({"value": [b"a"], "partition": ["x"]}), "column 'partition' must hold partition numbers"),
        (pa.table({"value": [b"a"], "partition": [2**40]}), "column 'partition' must hold partition numbers"),
        (pa.table({"value": [b"a"], "partition": [-1]}), "partition -1 does not exist"),
    ],
)
def test_rows_that_are_none_are_refused_in_our_words(fake: Any, data: Any, words: str) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        with pytest.raises(InvalidArgumentError, match=words):
            out.send_arrow("t", data)
        out.flush(60)
    assert written(fake) == []


def test_asyncio_twin_takes_streams_too(fake: Any) -> None:
    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers) as out:
            assert (await (await out.send_arrow("t", Stream(TABLE)))).record_count == 3

    asyncio.run(run())
    assert len(written(fake)) == 3


@pytest.mark.parametrize("columns", [["key", "value"], ["value"]], ids=["by key", "sticky"])
@pytest.mark.parametrize("batches_before", [0, 1], ids=["before the first batch", "between batches"])
def test_close_while_rows_are_encoded_raises_the_producers_error(
    fake: Any, columns: list[str], batches_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"key": [b"%d" % n for n in range(400)], "value": [b"x" * 400] * 400}
    out = Producer(bootstrap_servers=fake.bootstrap_servers, batch_size=4_096)
    out.partitions_for("t")

    def interrupted(core: Any, topic: str, table: Any) -> Any:
        batches = arrow_batches(core, topic, table)
        yield from itertools.islice(batches, batches_before)
        out.close(60)  # as another thread may do
        yield from batches

    monkeypatch.setattr("headrace.producer.arrow.arrow_batches", interrupted)
    with pytest.raises(ClosedError, match="this producer is closed"):
        out.send_arrow("t", pa.table(rows).select(columns))
    assert bool(written(fake)) == bool(batches_before)


NAMES = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SMALL = {"batch_size": 1_000, "max_request_size": 6_000}


def rows_with(column: str, wrong: Any, *, usual: Any = None, kind: Any = None, at: int = 300) -> Any:
    """A table of many chunks, with one wrong value."""
    values = [usual] * 500
    values[at] = wrong
    return pa.table({"value": [b"x" * 100] * 500, column: pa.array(values, kind)})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rows_with("value", b"y" * 6_000, usual=b"x"), "row 300 alone needs more than 6000 bytes"),
        (rows_with("key", b"y" * 6_000, usual=b"k"), "row 300 alone needs more than 6000 bytes"),
        (rows_with("partition", 7), r"row 300: topic 't' has \d+ partitions? .* partition 7 does not exist"),
        (rows_with("partition", "one", usual="0"), "column 'partition' must hold partition numbers"),
        (rows_with("timestamp", -(2**62) - 1, kind=pa.int64()), r"row 300: the timestamp must be at least -2\^62 ms"),
        (
            rows_with("timestamp", -(2**53), kind=pa.timestamp("s")),
            r"row 300: the timestamp must be at least -2\^62 ms",
        ),
        (rows_with("headers", [{"key": None, "value": b""}], kind=NAMES), "row 300: a header has no name"),
    ],
    ids=["value", "key", "partition", "text", "time", "seconds", "header"],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_table_with_a_wrong_row_is_sent_not_at_all(fake: Any, table: Any, words: str, is_async: bool) -> None:
    async def send_async() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out:
            await out.send_arrow("t", table)

    def send() -> None:
        if is_async:
            asyncio.run(send_async())
        with Producer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out:
            out.send_arrow("t", table)

    with pytest.raises((InvalidArgumentError, RecordTooLargeError, InvalidTimestampError), match=words) as caught:
        send()
    assert str(caught.value).endswith("; no row of the table was sent")
    assert written(fake) == []


LONG = "y" * 6_000
SHARED = {
    "dictionary": pa.array(["x", LONG, "x"]).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays([0, 1, 0], pa.array(["x", LONG], pa.string_view())),
    "runs": pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array(["x", LONG, "x"])),
    "views": pa.array(["x", LONG, "x"], pa.string_view()),
}


@pytest.mark.parametrize("column", SHARED.values(), ids=SHARED)
def test_a_too_large_row_is_found_first_in_every_layout(fake: Any, column: Any) -> None:
    with Producer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out:
        for table in (pa.table({"value": column}), pa.table({"value": ["a", "b", "c"], "key": column})):
            with pytest.raises(RecordTooLargeError, match=r"row 1 alone .*; no row of the table was sent"):
                out.send_arrow("t", table)
    assert written(fake) == []


@pytest.mark.parametrize("wrong", [pa.array([True]), pa.array([0], pa.date32()), pa.array([0], pa.timestamp("s"))])
def test_partitions_are_numbers(fake: Any, wrong: Any) -> None:
    with (
        Producer(bootstrap_servers=fake.bootstrap_servers) as out,
        pytest.raises(InvalidArgumentError, match=r"must hold partition numbers, and has type .*: cast the column"),
    ):
        out.send_arrow("t", pa.table({"value": ["a"], "partition": wrong}))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.float64(), pa.decimal128(38, 0), pa.dictionary(pa.int8(), pa.int64())])
def test_partitions_may_have_any_type_of_whole_numbers(fake: Any, kind: Any) -> None:
    fake.create("six", 6)
    numbers = pa.array([3, 5])
    column = numbers.dictionary_encode() if pa.types.is_dictionary(kind) else numbers.cast(kind)
    with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
        out.send_arrow("six", pa.table({"value": ["a", "b"], "partition": column})).result(60)
    assert [[record.value for record in fake.records("six", each)] for each in (3, 5)] == [[b"a"], [b"b"]]


def test_rows_that_share_their_bytes_are_copied_a_few_at_a_time() -> None:
    texts = pa.array(["x", "y" * 1_000])
    indices = pa.array([0] * 500 + [1] * 500, pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(indices, texts)
    runs = pa.RunEndEncodedArray.from_arrays([500, 1_000], texts.cast(pa.string_view()))
    for column in (dictionary, runs, dictionary.cast(pa.string()).cast(pa.string_view())):
        table = pa.table({"value": column})
        spans = list(_chunks(table, 1_000, 10_000))
        assert [first for first, _ in spans] == [0, *itertools.accumulate(rows for _, rows in spans)][:-1]
        assert sum(rows for _, rows in spans) == 1_000
        copied = [sum(map(len, table["value"].slice(*span).to_pylist())) for span in spans]
        assert max(copied) <= 20_000
        assert len(spans) < 100
    plain = pa.table({"value": dictionary.cast(pa.string())})
    assert list(_chunks(plain, 600, 10_000)) == [(0, 600), (600, 400)]


@pytest.mark.parametrize("keys", [None, [b"%d" % number for number in range(500)]])
def test_an_error_in_the_middle_of_a_table_names_its_row_and_counts_the_others(fake: Any, keys: Any) -> None:
    table = rows_with("headers", [{"key": "h", "value": b"y" * 7_000}], kind=NAMES)
    if keys is not None:
        table = table.append_column("key", pa.array(keys))
    with (
        Producer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out,
        pytest.raises(RecordTooLargeError, match=r"row 300 alone .*; (\d+) of the 500 rows are being sent") as caught,
    ):
        out.send_arrow("t", table)
    assert f"; {len(written(fake))} of the 500 rows" in str(caught.value)


def test_times_before_1970_and_null_values_are_no_wrong_rows(fake: Any) -> None:
    table = pa.table(
        {
            "value": pa.array([None, b"x" * 5_900, b"", b"z"]),
            "timestamp": pa.array([-86_400_000_000_000, None, 0, 5], pa.timestamp("ns")),
            "partition": pa.array([None, 0, None, 0], pa.int64()),
            "headers": pa.array([None, [], [{"key": "", "value": None}], None], NAMES),
        }
    )
    with Producer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out:
        assert out.send_arrow("t", table).result(60).record_count == 4


def test_a_row_may_be_as_large_as_a_record_of_send(fake: Any) -> None:
    def is_sent(send: Any, *args: Any) -> bool:
        try:
            send("t", *args).result(60)
        except RecordTooLargeError:
            return False
        return True

    with Producer(bootstrap_servers=fake.bootstrap_servers, **SMALL) as out:
        for key in (None, b"k", b"k" * 70):
            for size in range(5_840, 5_940):
                value = b"x" * size
                by_row = is_sent(out.send_arrow, pa.table({"key": [key], "value": [value]}))
                assert by_row == is_sent(out.send, value, key), size


def test_a_row_above_the_batch_size_is_sent_alone_up_to_the_largest_request(fake: Any) -> None:
    values = [b"a", b"b" * 5_000, b"c"]
    with Producer(bootstrap_servers=fake.bootstrap_servers, batch_size=400, max_request_size=6_000) as out:
        assert out.send_arrow("t", pa.table({"value": values})).result(60).record_count == 3
        with pytest.raises(RecordTooLargeError, match="row 0 alone needs more than 6000 bytes"):
            out.send_arrow("t", pa.table({"value": [b"d" * 6_000]}))
    assert sorted(value for _, value in written(fake)) == values


def _grow(admin: Admin) -> None:
    admin.create_partitions({"grows": 2})
    admin.describe_topics(["grows"])  # the broker has applied the change


@pytest.mark.parametrize("is_async", [False, True])
def test_rows_for_a_partition_that_was_just_added_are_sent(fake: Any, is_async: bool) -> None:
    """send() looked again for a partition that it did not know; send_arrow refused the table until its metadata was
    old."""
    with Admin(bootstrap_servers=fake.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("grows", partitions=1)])
        first = pa.table({"value": [b"a"], "partition": [0]})
        more = pa.table({"value": [b"b", b"c"], "partition": pa.array([1, None], pa.int32())})
        absent = pa.table({"value": [b"d"], "partition": [2]})
        if is_async:

            async def run() -> None:
                async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers) as out:
                    await (await out.send_arrow("grows", first))
                    await asyncio.to_thread(_grow, admin)
                    await (await out.send_arrow("grows", more))
                    with pytest.raises(
                        InvalidArgumentError, match=r"row 0: .*2 partitions.*partition 2 does not exist"
                    ):
                        await out.send_arrow("grows", absent)

            asyncio.run(run())
        else:
            with Producer(bootstrap_servers=fake.bootstrap_servers) as out:
                out.send_arrow("grows", first).result(60)
                _grow(admin)
                out.send_arrow("grows", more).result(60)
                with pytest.raises(InvalidArgumentError, match=r"row 0: .*2 partitions.*partition 2 does not exist"):
                    out.send_arrow("grows", absent)
    assert b"b" in [record.value for record in fake.records("grows", 1)]
