"""``headrace-pipelines sql`` on a real cluster with real Spark: the quick start of ksqlDB, errors at their tokens,
positions, formats, and continuous queries that go on after a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, ConfigResource, Consumer, LocalCluster, NewTopic, Producer
from headrace.schemas import Schema, SchemaRegistry
from headrace_core.errors import HeadraceError
from headrace_pipelines.access import Access
from headrace_pipelines.sql.catalog import Table
from headrace_pipelines.sql.engine import Engine
from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.results import Arriving, Message, Result, Rows
from headrace_pipelines.sql.session import Session
from headrace_pipelines.topics import await_markers, records_in_topic

pytestmark = pytest.mark.timeout(540)

QUICK_START = Path(__file__).resolve().parents[4] / "examples/quick_start.sql"
MOUNTAIN_VIEW = (37.4133, -122.1162)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, registries=1, mode="inprocess") as running:
        yield running


class Shell:
    """A shell without a terminal. ``restart``: another process would find the same directory."""

    def __init__(self, spark: Any, cluster: LocalCluster, directory: Path) -> None:
        self._spark, self.cluster, self._directory = spark, cluster, directory
        self.open()

    def open(self) -> list[str]:
        """Returns what cannot go on."""
        registry = self.cluster.registry_urls
        self.session = Session(self._spark, Access(self.cluster.bootstrap_servers), self._directory, registry)
        self._engine = Engine(self.session)
        return self.session.resume()

    def restart(self) -> None:
        self.close()
        assert self.open() == []

    def close(self) -> None:
        self.session.close()

    def run(self, text: str) -> list[Result]:
        source = Source(text, "q.sql")
        return [self._engine.run(statement, source) for statement in parse(source)]

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        found = self.run(text)[-1]
        assert isinstance(found, Rows)
        return [tuple(row) for row in found.rows]

    def fault(self, text: str) -> str:
        with pytest.raises(SqlError) as error:
            self.run(text)
        return error.value.message

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """The committed records of a topic, read by the SDK."""
        servers = self.cluster.bootstrap_servers
        await_markers(servers)
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
        with Consumer(bootstrap_servers=servers, **settings) as consumer:
            found = [record for records in records_in_topic(consumer, topic) for record in records]
        return [(record.key, record.value) for record in sorted(found, key=lambda each: (each.partition, each.offset))]


@pytest.fixture
def shell(spark: Any, cluster: LocalCluster, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(spark, cluster, tmp_path / "sql")
    try:
        yield made
    finally:
        made.close()
        for view in spark.catalog.listTables():
            if view.isTemporary:
                spark.catalog.dropTempView(view.name)
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.delete_topics([name for name in admin.list_topics() if not name.startswith("_")])


def pointed(message: str) -> tuple[str, str]:
    """The place of an error, and the text above its carets."""
    first, line, carets = message.splitlines()[-3:]
    at = carets.index("^")
    return first.split(": ")[0], line[at : at + carets.count("^")]


# -- the quick start of ksqlDB -----------------------------------------------------------------------------------------


def km(la: float, lo: float) -> float:
    """Kilometres to Mountain View, by the haversine formula; without Spark."""
    la1, lo1, la2, lo2 = map(math.radians, (la, lo, *MOUNTAIN_VIEW))
    h = math.sin((la2 - la1) / 2) ** 2 + math.cos(la1) * math.cos(la2) * math.sin((lo2 - lo1) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(h))


RIDERS = {
    "c2309eec": (37.7877, -122.4205), "18f4ea86": (37.3903, -122.0643), "4ab5cbad": (37.3952, -122.0813),
    "8b6eae59": (37.3944, -122.0813), "4a7c7b41": (37.4049, -122.0822), "4ddad000": (37.7857, -122.4011),
}  # fmt: skip


def nearby(riders: dict[str, tuple[float, float]]) -> list[tuple[float, list[str], int]]:
    """Riders by their distance, rounded to ten kilometres, up to ten kilometres."""
    by_distance: dict[float, list[str]] = {}
    for rider, place in riders.items():
        by_distance.setdefault(float(math.floor(km(*place) / 10 + 0.5) * 10), []).append(rider)
    return [(distance, sorted(of), len(of)) for distance, of in sorted(by_distance.items()) if distance <= 10]


def test_the_quick_start_of_ksqldb(shell: Shell) -> None:
    *first, live, last = shell.run(QUICK_START.read_text())
    assert [type(each).__name__ for each in first] == ["Message"] * 11
    assert isinstance(live, Arriving)
    assert isinstance(last, Rows)
    near = {(rider, *place) for rider, place in RIDERS.items() if km(*place) <= 5}
    assert set(map(tuple, live.rows)) == near
    assert [tuple(row) for row in last.rows] == nearby(RIDERS)
    assert nearby(RIDERS) == [(0.0, ["4a7c7b41", "4ab5cbad", "8b6eae59"], 3), (10.0, ["18f4ea86"], 1)], "as ksqlDB says"
    values = [json.loads(value or b"") for _, value in shell.records("locations")]
    assert values == [{"profileId": rider, "latitude": la, "longitude": lo} for rider, (la, lo) in RIDERS.items()]

    # The continuous query goes on: a rider has moved while no shell ran, and in the next one.
    moved = {**RIDERS, "c2309eec": (37.4133, -122.1162), "new": (37.4, -122.1)}
    shell.close()
    with Producer(bootstrap_servers=shell.cluster.bootstrap_servers) as producer:
        value = {"profileId": "c2309eec", "latitude": 37.4133, "longitude": -122.1162}
        producer.send("locations", key=b"c2309eec", value=json.dumps(value).encode()).result(60)
    assert shell.open() == []
    shell.run("INSERT INTO riderLocations VALUES ('new', 37.4, -122.1)")
    assert shell.rows("SELECT * FROM ridersNearMountainView WHERE distanceInKm <= 10 ORDER BY 1") == nearby(moved)
    written = shell.records("currentlocation")
    assert sorted(key or b"" for key, _ in written) == sorted(
        [*(each.encode() for each in RIDERS), b"c2309eec", b"new"]
    )
    queries = shell.rows("SHOW QUERIES")
    assert [row[:4] for row in queries] == [("currentlocation", "currentlocation", "riderlocations", "running")]
    assert shell.rows("DESCRIBE currentLocation")[0] == ("profileId", "string", "yes", "primary key")
    assert "currentlocation uses" not in shell.fault("DROP TABLE nothing")
    assert "the query currentlocation uses riderlocations" in shell.fault("DROP TABLE riderLocations")
    shell.run("TERMINATE currentLocation; DROP TABLE currentLocation DELETE TOPIC")
    assert [row[0] for row in shell.rows("SHOW TOPICS") if row[0] != "_schemas"] == ["locations"]


# -- errors ------------------------------------------------------------------------------------------------------------

ORDERS = "CREATE STREAM orders (id INT NOT NULL, item STRING) WITH (key = 'id', partitions = 2);"

FAULTS = [
    ("SELECT\n  idd FROM orders", "q.sql:2:3", "idd", "Did you mean one of the following"),
    ("SELECT id FRM orders x y", "q.sql:1:15", "orders", "Syntax error at or near"),
    ("SHOW TABLES; SELECT * FROM order_s", "q.sql:1:28", "order_s", "there is no table order_s; SHOW TABLES"),
    ("SELECT frob(id) FROM orders", "q.sql:1:8", "frob(id)", "Cannot resolve routine"),
    ("SELECT item FROM orders AS OF OFFSET (0 = 0, 1 = 0) WHERE itm = 1", "q.sql:1:59", "itm", "cannot be resolved"),
    ("SELECT 1/0", "q.sql:1:8", "1/0", "Division by zero"),
    ("SELECT * FROM orders AS OF OFFSET 3", "q.sql:1:22", "AS OF OFFSET 3", "orders has 2 partitions"),
    ("CREATE TABLE t (a INT, b FOO) WITH (topic = 'orders')", "q.sql:1:26", "FOO", "FOO"),
    ("CREATE TABLE t (a INT) WITH (topic = 'orderz')", "q.sql:1:38", "'orderz'", "there is no topic orderz"),
    ("CREATE TABLE t (a INT) WITH (topik = 'orders')", "q.sql:1:30", "topik", "did you mean topic?"),
    ("CREATE TABLE t (a INT) WITH (format = 'xml')", "q.sql:1:39", "'xml'", "format must be one of json, avro, text"),
    ("CREATE TABLE t (a BINARY) WITH (topic = 'orders')", "q.sql:1:17", "a", "JSON has no binary"),
    ("CREATE TABLE orders (a INT)", "q.sql:1:14", "orders", "a table orders already exists"),
    ("INSERT INTO orders VALUES (1)", "q.sql:1:20", "VALUES", "1 values for 2 columns: id, item"),
    ("INSERT INTO orders VALUES (NULL, 'x')", "q.sql:1:20", "VALUES", "row 1: column id is NOT NULL"),
    ("INSERT INTO orders VALUES ('x', 'x')", "q.sql:1:20", "VALUES", "cannot be cast"),
    ("INSERT INTO orders (id, name) VALUES (1, 'x')", "q.sql:1:25", "name", "orders has no column name"),
    ("INSERT INTO orders SELECT item, id FROM orders", "q.sql:1:20", "SELECT", "the columns of orders are id, item"),
    ("TERMINATE nothing", "q.sql:1:11", "nothing", "there is no query nothing"),
    ("SET rows.max = many", "q.sql:1:16", "many", "rows.max must be a whole number"),
    ("CREATE VIEW v AS SELECT nothing FROM orders", "q.sql:1:25", "nothing", "cannot be resolved"),
    ("CREATE FUNCTION f(a INT) RETURNS INT RETURN b", "q.sql:1:17", "f", "cannot be resolved"),
    ("CREATE TABLE t WITH (format = 'text') AS SELECT id, item FROM orders", "q.sql:1:42", "SELECT", "text needs one"),
    ("CREATE STREAM t (n INT) WITH (format = 'text', topic = 'orders')", "q.sql:1:15", "t", "text needs one column"),
    ("CREATE TABLE t WITH (key = 'nope') AS SELECT id FROM orders", "q.sql:1:28", "'nope'", "there is no column nope"),
    (
        "CREATE TABLE t WITH (key = 'id') AS SELECT id, item, count(*) AS n FROM orders GROUP BY id, item",
        "q.sql:1:28",
        "'id'",
        "the key lacks item, a column of GROUP BY",
    ),
    (
        "CREATE TABLE t AS SELECT id AS _key FROM orders",
        "q.sql:1:19",
        "SELECT",
        "the name _key is reserved for a record's",
    ),
    ("CREATE TABLE t AS SELECT id, id AS ID FROM orders", "q.sql:1:19", "SELECT", "two columns have the name ID"),
    ("CREATE TABLE t (id INT COMMENT 'k' PRIMARY KEY) WITH (topic = 'orders')", "q.sql:1:20", "INT COMMENT 'k'", "NOT"),
    ("INSERT INTO orders (id) VALUES (DATE'2026-01-01')", "q.sql:1:25", "VALUES", "DATE"),
    ("INSERT INTO orders (id) VALUES (array(1))", "q.sql:1:25", "VALUES", "ARRAY"),
    ("CREATE STREAM t (a INT, z BINARY) WITH (partitions = 1)", "q.sql:1:25", "z", "field z: JSON has no binary"),
    ("CREATE STREAM t (a INT) WITH (topic = '../x', partitions = 1)", "q.sql:1:39", "'../x'", "is not legal"),
    ("CREATE STREAM t (a INT) WITH (partitions = 1, replication = 5)", "q.sql:1:61", "5", "needs 5 brokers"),
    ("CREATE STREAM t (a INT) WITH (partitions = 100000000)", "q.sql:1:44", "100000000", "100000000"),
    (
        "SET rows.max = 2147483647",
        "q.sql:1:16",
        "2147483647",
        "rows.max must be a whole number from 0 to 2,147,483,646",
    ),
]


def test_errors_point_at_their_tokens(shell: Shell) -> None:
    shell.run(ORDERS)
    for text, place, token, what in FAULTS:
        message = shell.fault(text)
        assert what in message, text
        assert pointed(message) == (place, token), message
    assert shell.rows("SHOW TABLES") == [("orders", "stream", "orders", "json", "id")], "a fault leaves nothing behind"
    assert shell.records("orders") == []


def test_a_record_that_cannot_be_parsed_is_named_or_skipped(shell: Shell) -> None:
    shell.run(ORDERS)
    with Producer(bootstrap_servers=shell.cluster.bootstrap_servers) as producer:
        for value in (b'{"id": 1, "item": "a"}', b'{"id": "x"}', b"not JSON", b'{"id": 2}'):
            producer.send("orders", value=value, partition=1).result(60)
    assert "orders: a record cannot be parsed: orders-1@1: id: expected int" in shell.fault(
        "SELECT count(*) FROM orders"
    )
    bad = shell.rows("SELECT _partition, _offset, _reason FROM orders WHERE _reason IS NOT NULL ORDER BY 2")
    assert [row[:2] for row in bad] == [(1, 1), (1, 2)]
    assert bad[1][2] == "value: malformed JSON"
    shell.run("CREATE STREAM good (id INT, item STRING) WITH (topic = 'orders', bad_records = 'skip')")
    assert shell.rows("SELECT * FROM good ORDER BY id") == [(1, "a"), (2, None)]


# -- positions, keys and formats ---------------------------------------------------------------------------------------


def test_a_table_with_a_primary_key_has_the_newest_row_of_each_key(shell: Shell) -> None:
    shell.run("CREATE TABLE riders (id INT PRIMARY KEY, name STRING) WITH (partitions = 3)")
    shell.run("INSERT INTO riders VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO riders VALUES (1, 'A'), (4, 'd')")
    with Producer(bootstrap_servers=shell.cluster.bootstrap_servers) as producer:
        producer.send("riders", key=b"2", value=None).result(60)
        # with an older timestamp: the offset decides, as when the topic is compacted
        producer.send("riders", key=b"4", value=b'{"id": 4, "name": "D"}', timestamp_ms=1_000).result(60)
    assert shell.rows("SELECT * FROM riders ORDER BY id") == [(1, "A"), (3, "c"), (4, "D")]
    assert shell.rows("SELECT count(*), max(_key) FROM riders") == [(3, "4")]
    assert "has a primary key: its rows change" in shell.fault("CREATE TABLE t AS SELECT name FROM riders")
    with Admin(bootstrap_servers=shell.cluster.bootstrap_servers) as admin:
        (entries,) = admin.describe_configs([ConfigResource("topic", "riders")]).values()
    assert entries["cleanup.policy"].value == "compact"


def test_a_select_as_of_an_offset_or_a_time(shell: Shell) -> None:
    with Admin(bootstrap_servers=shell.cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("ticks", partitions=1, config={"retention.ms": "-1"})])
    shell.run("CREATE STREAM ticks (n INT); SET rows.max = 3")
    with Producer(bootstrap_servers=shell.cluster.bootstrap_servers) as producer:
        for n in range(10):
            producer.send("ticks", value=b'{"n": %d}' % n, timestamp_ms=1_700_000_000_000 + 1_000 * n).result(60)
    assert shell.rows("SELECT sum(n) FROM ticks AS OF OFFSET 4") == [(6,)]
    assert shell.rows("SELECT sum(n) FROM ticks AS OF TIMESTAMP '2023-11-14T22:13:25'") == [(10,)]
    both = "SELECT (SELECT sum(n) FROM ticks) - sum(old.n) FROM ticks AS OF OFFSET (0 = 9) AS old"
    assert shell.rows(both) == [(9,)]
    limited = shell.run("SELECT n FROM ticks")[0]
    assert isinstance(limited, Rows)
    assert (len(limited.rows), limited.has_more) == (3, True)
    explained = shell.run("EXPLAIN SELECT n FROM ticks")[0]
    assert isinstance(explained, Message)
    assert "Physical Plan" in explained.text


def test_a_table_with_the_schema_of_the_registry(shell: Shell) -> None:
    schema = {
        "type": "record", "name": "Reading",
        "fields": [{"name": "device", "type": "string"}, {"name": "celsius", "type": ["null", "double"]}],
    }  # fmt: skip
    with SchemaRegistry(shell.cluster.registry_urls) as registry:
        registry.register("readings-value", Schema(json.dumps(schema)))
    shell.run("CREATE STREAM readings WITH (format = 'avro', key = 'device', partitions = 1)")
    shell.run("INSERT INTO readings VALUES ('a', 20.5), ('b', NULL)")
    assert shell.rows("SELECT * FROM readings") == [("a", 20.5), ("b", None)]
    assert shell.rows("DESCRIBE readings")[0][:2] == ("device", "string")
    (first, second) = shell.records("readings")
    assert (first[0], (first[1] or b"")[:1], second[0]) == (b"a", b"\0", b"b")
    assert "nothing-value" in shell.fault("CREATE STREAM nothing WITH (format = 'avro', topic = 'readings', "
                                          "subject = 'nothing-value')")  # fmt: skip


def test_continuous_queries_follow_each_other_exactly_once(shell: Shell) -> None:
    """A line becomes words, words become counts; a restart in between repeats nothing."""
    shell.run(
        "CREATE STREAM lines (line STRING) WITH (format = 'text', partitions = 2);"
        "CREATE STREAM words (word STRING) WITH (key = 'word', partitions = 2);"
        "INSERT INTO words SELECT explode(split(line, ' ')) AS word FROM lines;"
        "CREATE TABLE counts AS SELECT word, count(*) AS n FROM words GROUP BY word"
    )
    texts = ["to be or not to be", "be quick"]
    expected: dict[str, int] = {}
    for text in texts:
        shell.run(f"INSERT INTO lines VALUES ('{text}')")
        for word in text.split():
            expected[word] = expected.get(word, 0) + 1
        assert dict(shell.rows("SELECT word, n FROM counts")) == expected
        shell.restart()
    assert len(shell.records("words")) == sum(expected.values())
    assert dict(shell.rows("SELECT word, n FROM counts")) == expected
    assert [row[3] for row in shell.rows("SHOW QUERIES")] == ["running", "running"]
    # a query that would read its own rows, through the two others
    message = shell.fault("INSERT INTO lines SELECT word AS line FROM counts EMIT CHANGES")
    assert "has a primary key" in message
    message = shell.fault("INSERT INTO lines SELECT word AS line FROM words")
    assert "in an endless loop: words -(query lines)-> lines -(query words)-> words; write to a table" in message
    assert pointed(message) == ("q.sql:1:13", "lines")
    assert [row[0] for row in shell.rows("SHOW QUERIES")] == ["words", "counts"]


def test_a_deleted_topic_fails_its_query_and_is_not_made_again(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM orders (id INT, item STRING) WITH (partitions = 1);"
        "CREATE TABLE counts AS SELECT item, count(*) AS n FROM orders GROUP BY item;"
        "INSERT INTO orders VALUES (1, 'a')"
    )
    assert shell.rows("SELECT * FROM counts") == [("a", 1)]
    with Admin(bootstrap_servers=shell.cluster.bootstrap_servers) as admin:
        admin.delete_topics(["counts"])
        shell.run("INSERT INTO orders VALUES (2, 'b')")
        message = shell.fault("SELECT * FROM counts")
        assert "counts" in message
        assert "does not exist" in message
        assert "counts" not in admin.list_topics()
        assert [row[3] for row in shell.rows("SHOW QUERIES")] == ["failed"]
        shell.run("TERMINATE counts; DROP TABLE counts DELETE TOPIC")
        admin.delete_topics(["orders"])
        with pytest.raises(HeadraceError):
            shell.run("INSERT INTO orders VALUES (3, 'c')")
        assert "orders" not in admin.list_topics()


def test_windows_with_a_watermark(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM clicks (at TIMESTAMP, page STRING) WITH (partitions = 1);"
        "CREATE TABLE hourly AS SELECT window(at, '1 hour') AS hour, page, count(*) AS n "
        "FROM clicks WATERMARK at DELAY OF INTERVAL 10 MINUTES GROUP BY 1, page;"
        "INSERT INTO clicks VALUES ('2026-11-21T08:05:00Z', 'a'), ('2026-11-21T08:55:00Z', 'a'), "
        "('2026-11-21T09:00:00Z', 'b')"
    )
    text = "SELECT date_format(hour.start, 'HH:mm'), page, n FROM hourly ORDER BY 1"
    assert shell.rows(text) == [("08:00", "a", 2), ("09:00", "b", 1)]
    keys = sorted(json.loads(key or b"")["page"] for key, _ in shell.records("hourly"))
    assert keys == ["a", "b"], "the key has both columns"


def test_a_failed_query_says_why_and_leaves_no_table(shell: Shell) -> None:
    shell.run(ORDERS)
    message = shell.fault("CREATE TABLE t AS SELECT item, count(DISTINCT id) AS n FROM orders GROUP BY item")
    assert "not supported" in message
    for _ in range(2):
        assert [row[0] for row in shell.rows("SHOW TABLES")] == ["orders"]
        assert [row[0] for row in shell.rows("SHOW TOPICS") if row[0] != "_schemas"] == ["orders"]
        shell.restart()
    with pytest.raises(HeadraceError):
        shell.run("SELECT * FROM orders EMIT CHANGES LIMIT x")
    # a crash between the catalog and the topic: the table is there, and its topic is not
    shell.session.catalog.tables["t"] = Table("t", "t", columns=("id INT",))
    shell.session.catalog.save()
    shell.restart()
    shell.run("DROP TABLE t DELETE TOPIC; CREATE TABLE t AS SELECT id FROM orders")


# -- names -------------------------------------------------------------------------------------------------------------


def test_views_in_views_and_columns_with_the_names_of_tables(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM orders (id INT, item STRING) WITH (partitions = 1, bad_records = 'skip');"
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'a'), (4, 'a'), (5, 'b'), (6, 'Aggregate');"
        "CREATE VIEW early AS SELECT count(*) AS c FROM orders AS OF OFFSET 1;"
        "CREATE VIEW bad AS SELECT _offset AS o, _reason AS r FROM orders WHERE _reason IS NOT NULL;"
        "CREATE VIEW total AS SELECT sum(id) AS total FROM orders;"
        "CREATE VIEW orders_2 AS WITH orders AS (SELECT * FROM total) SELECT total AS orders FROM orders"
    )
    with Producer(bootstrap_servers=shell.cluster.bootstrap_servers) as producer:
        producer.send("orders", value=b"not JSON").result(60)
    assert shell.rows("SELECT (SELECT count(*) FROM orders AS OF OFFSET 5) - c FROM early") == [(4,)]
    assert shell.rows("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM bad)") == [(6, 1)]
    assert shell.rows("SELECT o._offset, v.c FROM orders o, early v WHERE id > 4 ORDER BY 1") == [(4, 1), (5, 1)]
    assert shell.rows("SELECT * FROM total") == shell.rows("SELECT orders FROM orders_2") == [(21,)]
    for text in ("total AS SELECT * FROM total", "total AS SELECT * FROM orders_2"):
        assert "the view total would read itself" in shell.fault(f"CREATE OR REPLACE VIEW {text}")
    shell.session.catalog.views["total"] = "SELECT * FROM orders_2"  # as an older version accepted it
    assert "total -> orders_2 -> total; DROP VIEW total" in shell.fault("SELECT * FROM total")
    kinds = shell.run("CREATE TABLE s AS SELECT id AS orderAggregate FROM orders WHERE item = 'Aggregate'")
    assert kinds == [Message("stream s is written by the query s, to the topic s")]
    assert shell.rows("SELECT * FROM s") == [(6,)]
    shell.run("CREATE TABLE counts AS SELECT item, count(*) AS counts FROM orders GROUP BY item")
    assert shell.rows("SELECT * FROM counts ORDER BY 1") == [("Aggregate", 1), ("a", 3), ("b", 2)]


def test_definitions_stay_while_a_query_uses_them(shell: Shell) -> None:
    shell.run(
        ORDERS + "CREATE FUNCTION f(a INT) RETURNS INT RETURN a + 1;"
        "CREATE FUNCTION g(a INT) RETURNS INT RETURN f(a);"
        "CREATE VIEW v AS SELECT g(id) AS id FROM orders;"
        "CREATE STREAM others (id INT) WITH (topic = 'orders');"
        "CREATE TABLE t AS SELECT id FROM v"
    )
    for name, texts in {
        "orders": ["DROP TABLE orders"],
        "v": ["DROP VIEW v", "CREATE OR REPLACE VIEW v AS SELECT 1 AS id"],
        "f": ["DROP FUNCTION f", "CREATE OR REPLACE FUNCTION f(a INT) RETURNS INT RETURN a"],
        "g": ["DROP FUNCTION g"],
    }.items():
        for text in texts:
            assert f"the query t uses {name}; TERMINATE t first" in shell.fault(text)
    assert "the table orders reads the topic orders, too" in shell.fault("DROP TABLE others DELETE TOPIC")
    shell.run("TERMINATE t")
    assert "the function g calls f; DROP FUNCTION g first" in shell.fault("DROP FUNCTION f")
    assert "the function f would call itself" in shell.fault(
        "CREATE OR REPLACE FUNCTION f(a INT) RETURNS INT RETURN g(a)"
    )
    # An older function uses a newer one, and another uses one that is gone: the directory stays usable.
    shell.run(
        "CREATE FUNCTION h(a INT) RETURNS INT RETURN a; CREATE OR REPLACE FUNCTION f(a INT) RETURNS INT RETURN h(a)"
    )
    shell.session.catalog.functions["lost"] = "lost(a INT) RETURNS INT RETURN gone(a)"
    shell.session.catalog.save()
    shell.close()
    for name in ("f", "g", "h"):
        shell.session.spark.sql(f"DROP TEMPORARY FUNCTION {name}")
    (fault,) = shell.open()
    assert fault.startswith("function lost cannot be created: ")
    assert shell.rows("SELECT g(1)") == [(1,)]
    shell.run("DROP FUNCTION lost")


# -- values ------------------------------------------------------------------------------------------------------------


def test_columns_have_the_spelling_of_the_table_and_times_keep_their_digits(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM a (Id INT, At TIMESTAMP) WITH (key = 'ID', partitions = 1);"
        "CREATE STREAM b (id INT, at TIMESTAMP) WITH (partitions = 1);"
        "INSERT INTO a SELECT ID, aT FROM b;"
        "INSERT INTO b VALUES (1, '2026-11-21T08:05:00.123456Z')"
    )
    assert shell.rows("SELECT Id, date_format(At, 'ss.SSSSSS') FROM a") == [(1, "00.123456")]
    ((key, value),) = shell.records("a")
    assert (key, json.loads(value or b"")["Id"]) == (b"1", 1)


def test_a_group_without_a_value_has_a_key(shell: Shell) -> None:
    shell.run(
        ORDERS + "CREATE TABLE counts AS SELECT item, count(*) AS n FROM orders GROUP BY item;"
        "INSERT INTO orders VALUES (1, 'a'), (2, NULL), (3, 'NULL'), (4, ''), (5, NULL)"
    )
    expected = [(None, 2), ("", 1), ("NULL", 1), ("a", 1)]
    assert shell.rows("SELECT item, n FROM counts ORDER BY item NULLS FIRST") == expected
    shell.run("INSERT INTO orders VALUES (6, NULL)")
    assert shell.rows("SELECT n FROM counts WHERE item IS NULL") == [(3,)]
    assert {key for key, _ in shell.records("counts")} == {b"a", b"NULL", b"", b"\xff"}


def test_times_that_python_has_not(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM t (id INT, at TIMESTAMP) WITH (partitions = 1);"
        "INSERT INTO t VALUES (1, timestamp '0001-01-01'), (2, timestamp '2076-11-27')"
    )
    message = shell.fault("SELECT * FROM t")
    assert "before the year 1 or after the year 9999" in message
    assert "CAST(column AS STRING)" in message
    assert shell.rows("SELECT CAST(at AS STRING) FROM t ORDER BY id") == [
        ("0001-01-01 00:00:00",),
        ("2076-11-27 00:00:00",),
    ]


def test_what_a_table_cannot_hold_is_not_written(shell: Shell) -> None:
    shell.run(
        "CREATE STREAM numbers (n DOUBLE, many ARRAY<FLOAT>) WITH (partitions = 1);"
        "CREATE STREAM loose (id INT) WITH (partitions = 1);"
        "CREATE STREAM strict (id INT NOT NULL) WITH (partitions = 1);"
        "INSERT INTO strict SELECT id FROM loose; INSERT INTO loose VALUES (1)"
    )
    for values in ("(double('NaN'), NULL)", "(1, array(1, float('-Infinity')))"):
        assert "is NaN or infinite, which JSON cannot hold" in shell.fault(f"INSERT INTO numbers VALUES {values}")
    shell.run("INSERT INTO numbers VALUES (1.5, array(NULL, 2)), (NULL, NULL)")
    assert len(shell.rows("SELECT * FROM numbers")) == 2
    assert shell.rows("SELECT * FROM strict") == [(1,)]
    shell.run("INSERT INTO loose VALUES (NULL)")
    with pytest.raises(HeadraceError, match="strict: a row has NULL in the column id, which is NOT NULL"):
        shell.run("SELECT * FROM strict")
    assert shell.rows("SET wait = off; SELECT * FROM strict") == [(1,)]
