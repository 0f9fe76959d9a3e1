"""Each kind of statement that a table can follow: after random rows, restarts and other time zones the table has the
rows of the same SELECT over all records, as DuckDB computes it.

``HEADRACE_SQL_SEEDS`` runs more seeds, ``HEADRACE_SQL_SEED`` only one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

from headrace import Consumer, LocalCluster, Producer
from headrace_pipelines.access import Access
from headrace_pipelines.sql.engine import Engine
from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.results import Result, Rows
from headrace_pipelines.sql.session import Session
from headrace_pipelines.topics import records_in_topic
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(540)

ONE = os.environ.get("HEADRACE_SQL_SEED")
SEEDS = [int(ONE)] if ONE else list(range(int(os.environ.get("HEADRACE_SQL_SEEDS", "1"))))
#: The queries are created under the first zone. Berlin's clock repeats an hour on 2026-10-25.
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC")
REPEATED_HOUR_S = int(datetime(2026, 10, 25, 0, 0, tzinfo=UTC).timestamp())
TAGS = (None, "", "NULL", "a", "A", "b", "ä", 'q"\\', "a b")


@dataclass
class Kind:
    """``text``: the SELECT, the same for Spark and DuckDB unless ``duck`` is given. ``into``: the columns of a table
    that exists. ``columns``: how the table's columns are shown in the comparison."""

    text: str
    duck: str = ""
    into: str = ""
    columns: str = "*"
    before: str = ""
    key: str = ""


BY_TAG = "SELECT tag, count(*) AS n, sum(x) AS s FROM ev GROUP BY tag"
KINDS = {
    "rows": Kind("SELECT id, tag, x FROM ev WHERE id % 3 <> 0"),
    "exploded": Kind(
        "SELECT id, explode(sequence(0, id % 3)) AS k FROM ev", "SELECT id, unnest(range(0, id % 3 + 1)) AS k FROM ev"
    ),
    "union": Kind("SELECT id, tag FROM ev UNION ALL SELECT id, 'x' AS tag FROM ev WHERE x > 0"),
    "joined": Kind("SELECT e.id, o.tag AS other FROM ev e JOIN ev o ON e.id = o.id + 1 WHERE o.x > 0"),
    "groups": Kind(
        "SELECT tag, count(*) AS n, sum(x) AS s, avg(x) AS a, min(id) AS i, stddev_samp(x) AS d FROM ev GROUP BY tag"
    ),
    "having": Kind(f"{BY_TAG} HAVING count(*) < 12 AND sum(x) > -20"),
    "filtered": Kind(f"SELECT tag, 12 / (n - 7) AS q FROM ({BY_TAG}) AS t WHERE n <> 7"),
    "having null": Kind(f"{BY_TAG} HAVING sum(x) <> 0 OR tag = 'b'"),
    "two filters": Kind(
        f"SELECT tag AS t, 1 / (n - 3) AS r FROM (SELECT tag, n + 1 AS n FROM ({BY_TAG}) AS u WHERE n > 2) AS v WHERE "
        "1 / (n - 3) < 0.3"
    ),
    "with": Kind(f"WITH c AS ({BY_TAG}), d AS (SELECT tag AS t, n FROM c WHERE n % 2 = 0) SELECT t, n FROM d"),
    "view": Kind(
        "SELECT t, n FROM counted WHERE n < 9",
        "SELECT lower(tag) AS t, count(*) AS n FROM ev GROUP BY lower(tag) HAVING count(*) < 9",
        before="CREATE VIEW counted AS SELECT lower(tag) AS t, count(*) AS n FROM ev GROUP BY lower(tag)",
    ),
    "group filter": Kind(f"{BY_TAG} HAVING tag < 'b'"),
    "two keys": Kind("SELECT tag, id % 4 AS m, count(*) AS n FROM ev GROUP BY tag, id % 4 HAVING count(*) <= 2"),
    "wide key": Kind(
        "SELECT tag, upper(tag) AS u, count(*) AS n FROM ev GROUP BY tag HAVING count(*) % 3 > 0", key="tag, u"
    ),
    "rollup": Kind(
        "SELECT tag, grouping_id() AS g, count(*) AS n FROM ev GROUP BY ROLLUP(tag) HAVING count(*) % 2 = 0",
        "SELECT tag, grouping_id(tag) AS g, count(*) AS n FROM ev GROUP BY ROLLUP(tag) HAVING count(*) % 2 = 0",
    ),
    "one": Kind("SELECT 1 AS one, count(*) AS n FROM ev GROUP BY one HAVING count(*) % 2 = 1"),
    "lists": Kind(
        "SELECT tag, sort_array(collect_list(id)) AS ids, size(collect_set(id % 3)) AS d FROM ev GROUP BY tag HAVING "
        "size(collect_set(id % 3)) < 3",
        "SELECT tag, list(id ORDER BY id) AS ids, count(DISTINCT id % 3) AS d FROM ev GROUP BY tag HAVING "
        "count(DISTINCT id % 3) < 3",
    ),
    "newest": Kind("SELECT tag, max_by(x, struct(_offset, _partition)) AS x FROM ev WHERE x IS NOT NULL GROUP BY tag",
                   "SELECT tag, max_by(x, _offset * 10 + _partition) AS x FROM ev WHERE x IS NOT NULL GROUP BY tag"),
    "joined group": Kind(
        "SELECT o.tag, count(*) AS n FROM ev e JOIN ev o ON e.id = o.id + 1 GROUP BY o.tag HAVING count(*) < 10"
    ),
    "given": Kind(
        "SELECT w.col2 AS name, sum(e.id) AS s FROM ev e JOIN VALUES (0, 'even'), (1, 'odd') AS w ON e.id % 2 = w.col1 "
        "GROUP BY w.col2 HAVING sum(e.id) % 2 = 0",
        "SELECT w.col2 AS name, sum(e.id) AS s FROM ev e JOIN (VALUES (0, 'even'), (1, 'odd')) AS w(col1, col2) ON "
        "e.id % 2 = w.col1 GROUP BY w.col2 HAVING sum(e.id) % 2 = 0",
    ),
    "days": Kind(
        "SELECT date_trunc('day', ts) AS day, to_date(ts) AS d, count(*) AS n FROM ev GROUP BY ALL HAVING count(*) > 3",
        "SELECT epoch_us(date_trunc('day', ts)), CAST(ts AS DATE)::VARCHAR, count(*) FROM ev GROUP BY ALL HAVING "
        "count(*) > 3",
        columns="unix_micros(day), CAST(d AS STRING), n",
    ),
    "times": Kind(
        "SELECT ts, count(*) AS n FROM ev GROUP BY ts HAVING count(*) < 3",
        "SELECT epoch_us(ts), count(*) FROM ev GROUP BY ts HAVING count(*) < 3",
        columns="unix_micros(ts), n",
    ),
    "into": Kind(
        "SELECT tag, count(*) AS n FROM ev WHERE tag <> '' GROUP BY tag HAVING count(*) < 9",
        into="tag STRING PRIMARY KEY, n BIGINT",
    ),
    "newest row": Kind(
        "SELECT k, id FROM fives",
        "SELECT id % 5 AS k, max_by(id, _offset) AS id FROM ev WHERE _partition = 0 GROUP BY id % 5",
        into="k BIGINT PRIMARY KEY, id BIGINT",
        before="CREATE STREAM fives (k BIGINT, id BIGINT) WITH (topic = '{}-fives', partitions = 3, key = 'k');"
        "INSERT INTO fives SELECT id % 5 AS k, id FROM ev WHERE _partition = 0",
    ),
}  # fmt: skip
#: How many of them one shell runs at once.
AT_ONCE = 6
NAMES = list(KINDS)
CHUNKS = [NAMES[at : at + AT_ONCE] for at in range(0, len(NAMES), AT_ONCE)]

STREAM = "CREATE STREAM ev (id BIGINT, tag STRING, x DOUBLE, ts TIMESTAMP) WITH (topic = '{}', partitions = 2)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as running:
        yield running


@dataclass
class Shells:
    """One shell after the other in one directory, each under another time zone. ``rows``: all rows that were sent, with
    their partitions and offsets."""

    spark: Any
    servers: str
    directory: Path
    topic: str
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def open(self, zone: str) -> None:
        self.spark.conf.set("spark.sql.session.timeZone", zone)
        self.session = Session(self.spark, Access(self.servers), self.directory)
        self._engine = Engine(self.session)
        assert self.session.resume() == []

    def run(self, text: str) -> list[Result]:
        source = Source(text, "q.sql")
        return [self._engine.run(statement, source) for statement in parse(source)]

    def select(self, text: str) -> list[tuple[Any, ...]]:
        found = self.run(text)[-1]
        assert isinstance(found, Rows)
        return [tuple(row) for row in found.rows]

    def send(self, rows: Sequence[tuple[int, str | None, float | None, int | None]], random: Random) -> None:
        """Send rows (id, tag, x, microseconds since 1970) to random partitions."""
        with Producer(bootstrap_servers=self.servers) as producer:
            sent = []
            for number, tag, x, micros in rows:
                ts = None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC).isoformat()
                value = json.dumps({"id": number, "tag": tag, "x": x, "ts": ts}).encode()
                sent.append(producer.send(self.topic, value=value, partition=random.randrange(2)))
            for row, future in zip(rows, sent, strict=True):
                at = future.result(timeout=60)
                self.rows.append((*row, at.partition, at.offset))

    def truth(self, text: str, zone: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT over all rows that were sent, by DuckDB."""
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = '{zone}'")
            connection.execute(
                "CREATE TABLE sent (id BIGINT, tag VARCHAR, x DOUBLE, us BIGINT, _partition BIGINT, _offset BIGINT)"
            )
            if self.rows:
                connection.executemany("INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?)", self.rows)
            connection.execute("CREATE VIEW ev AS SELECT *, make_timestamptz(us) AS ts FROM sent")
            return connection.execute(text).fetchall()


@pytest.fixture
def shells(spark: Any, cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str], Shells]]:
    opened: list[Shells] = []
    before = spark.conf.get("spark.sql.session.timeZone")

    def make(topic: str) -> Shells:
        opened.append(Shells(spark, cluster.bootstrap_servers, tmp_path / "sql", topic))
        opened[-1].open(ZONES[0])
        return opened[-1]

    yield make
    spark.conf.set("spark.sql.session.timeZone", before)
    for each in opened:
        each.session.close()


def shown(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Rows in a fixed order. Doubles with nine digits: the order of their addition is not fixed."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return "0" if abs(value) < 1e-9 else f"{value:.9g}"
        return str(list(value)) if isinstance(value, list | tuple) else str(value)

    return sorted(tuple(map(text, row)) for row in rows)


def random_rows(random: Random, begin: int, count: int) -> list[tuple[int, str | None, float | None, int | None]]:
    def row(number: int) -> tuple[int, str | None, float | None, int | None]:
        x = random.choice([None, -0.0, 0.0, round(random.uniform(-9, 9), 3), math.pi])
        seconds = REPEATED_HOUR_S + 900 * random.randrange(-4, 12) + 43_200 * random.randrange(-2, 3)
        return number, random.choice(TAGS), x, random.choice([None, seconds * 1_000_000, seconds * 1_000_000 + 120])

    return [row(number) for number in range(begin, begin + count)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", CHUNKS, ids=[each[0] for each in CHUNKS])
def test_a_table_is_its_select(shells: Callable[[str], Shells], names: list[str], seed: int) -> None:
    random = Random(f"{seed} {names}")
    chunk = CHUNKS.index(names)
    shell = shells(f"ev-{chunk}-{seed}")
    shell.run(STREAM.format(shell.topic))
    shell.send(random_rows(random, 0, 15), random)
    tables = {name: f"t{chunk}_{seed}_{number}" for number, name in enumerate(names)}
    for name, table in tables.items():
        kind = KINDS[name]
        if kind.before:
            shell.run(kind.before.format(shell.topic))
        if kind.into:
            shell.run(f"CREATE TABLE {table} ({kind.into}) WITH (partitions = 2); INSERT INTO {table} {kind.text}")
        else:
            options = f" WITH (key = '{kind.key}')" if kind.key else ""
            shell.run(f"CREATE TABLE {table}{options} AS {kind.text}")

    def check() -> None:
        for name, table in tables.items():
            kind = KINDS[name]
            found = shown(shell.select(f"SELECT {kind.columns} FROM {table}"))
            assert found == shown(shell.truth(kind.duck or kind.text, ZONES[0])), (seed, name)

    check()
    for number, zone in enumerate(random.sample(ZONES, 2), 1):
        shell.send(random_rows(random, 100 * number, random.randrange(1, 25)), random)
        if random.random() < 0.5:
            check()
        shell.session.close()
        shell.send(random_rows(random, 100 * number + 50, random.randrange(20)), random)
        shell.open(zone)
    check()


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_after_the_watermark_are_left_out_and_counted(shells: Callable[[str], Shells], seed: int) -> None:
    """Each round is two hours later than the one before, and has rows for windows that the watermark has closed, each
    in a window of its own."""
    random, hour, tens = Random(seed), 3_600, 600
    shell = shells(f"late-{seed}")
    shell.run(STREAM.format(shell.topic))
    select = (
        "SELECT window(ts, '10 minutes') AS w, tag, count(*) AS n, sum(id) AS s FROM ev WATERMARK ts DELAY OF INTERVAL "
        "1 HOUR GROUP BY 1, tag HAVING count(*) <> 2"
    )
    shell.run(f"CREATE TABLE w_{seed} AS {select}")
    late = seen = 0

    def counted(expected: int) -> int:
        until(lambda: shell.select("SHOW QUERIES")[0][6] == expected, f"{expected} late groups, seed {seed}")
        return expected

    for number in range(4):
        begin = REPEATED_HOUR_S + 2 * hour * number
        # within half an hour, which is less than the delay, and with the last of them always there
        rows = [
            (100 * number + each, random.choice("ab"), 1.0, (begin + random.randrange(1_800)) * 1_000_000)
            for each in range(random.randrange(1, 12))
        ]
        rows.append((100 * number + 99, "a", 1.0, (begin + 1_800) * 1_000_000))
        shell.send(rows, random)
        kept = len(shell.rows)
        if number > 0:
            closed = [begin - 5 * hour + tens * each for each in random.sample(range(1, 12), random.randrange(1, 6))]
            late += len(closed)
            shell.send([(7, "a", 1.0, at * 1_000_000) for at in closed], random)
            del shell.rows[kept:]
        found = shell.select(f"SELECT unix_micros(w.start), tag, n, s FROM w_{seed}")
        truth = shell.truth(
            "SELECT us // 600000000 * 600000000 AS w, tag, count(*), sum(id) FROM ev GROUP BY ALL HAVING count(*) <> 2",
            ZONES[0],
        )
        assert shown(found) == shown(truth), seed
        if number == 1:
            seen = counted(late)
            shell.session.close()
            shell.open(ZONES[1])
    counted(late - seen)


COUNTS = "(SELECT tag, count(*) AS n FROM ev GROUP BY tag)"
REFUSED = {
    f"SELECT a.tag, count(*) AS n FROM {COUNTS} a JOIN ev b USING (tag) GROUP BY a.tag": "a second aggregate",
    f"SELECT a.tag, a.n, b.id FROM {COUNTS} a JOIN ev b USING (tag)": "a join over",
    f"SELECT tag, explode(sequence(0, n)) AS k FROM {COUNTS}": "explode",
    f"SELECT tag, k FROM {COUNTS} LATERAL VIEW explode(sequence(0, n)) AS k": "explode",
    "SELECT tag, count(*) AS n FROM ev GROUP BY tag LIMIT 3": "LIMIT over",
    f"SELECT DISTINCT n FROM {COUNTS}": "DISTINCT over",
    f"SELECT n, count(*) AS m FROM {COUNTS} GROUP BY n": "a second aggregate",
    f"SELECT tag, rank() OVER (ORDER BY n) AS r FROM {COUNTS}": "OVER over",
    "SELECT tag, count(*) AS n FROM ev GROUP BY tag UNION ALL SELECT tag, id FROM ev": "UNION over",
    "SELECT count(*) AS n FROM (SELECT DISTINCT tag FROM ev)": "DISTINCT below",
    "SELECT DISTINCT tag FROM ev": "DISTINCT in",
    "SELECT id FROM ev LIMIT 3": "LIMIT in",
    "SELECT id FROM ev TABLESAMPLE (10 PERCENT)": "TABLESAMPLE in",
    "SELECT a.id FROM ev a LEFT JOIN ev b ON a.id = b.id": "a LEFT OUTER JOIN of two streams",
    "SELECT tag, first(id) AS f FROM ev GROUP BY tag": "first() depends on the order",
    "SELECT tag, last_value(id) AS f FROM ev GROUP BY tag": "depends on the order",
    "SELECT tag, any_value(id) AS f FROM ev GROUP BY tag": "any_value() depends on the order",
    "SELECT tag, collect_list(id) AS f FROM ev GROUP BY tag": "collect_list() depends on the order",
    "SELECT tag, mode(id) AS f FROM ev GROUP BY tag": "mode() depends on the order",
    "SELECT id, shifted(id) AS f FROM ev": "rand() depends on chance",
    "SELECT id, uuid() AS u FROM ev": "uuid() depends on chance",
    "SELECT id FROM ev WHERE ts > current_timestamp() - INTERVAL 1 HOUR": "current_timestamp() depends on when",
    "SELECT id FROM ev WHERE ts > date('yesterday')": "'yesterday' depends on when",
    "SELECT tag, count(*) AS n FROM ev WHERE ts < TIMESTAMP 'today' GROUP BY tag": "TIMESTAMP 'today' depends on when",
    "SELECT tag, count(*) AS n FROM ev GROUP BY tag HAVING count(*) > (SELECT 2)": "a subquery over",
    "SELECT id FROM ev WHERE recent(ts)": "TIMESTAMP 'now' depends on when",
}  # fmt: skip


def test_what_a_table_cannot_follow_is_refused_before_anything_is_made(shells: Callable[[str], Shells]) -> None:
    shell = shells("refused")
    shell.run(STREAM.format(shell.topic) + "; CREATE FUNCTION shifted(a BIGINT) RETURNS DOUBLE RETURN a + rand()")
    shell.run("CREATE FUNCTION recent(a TIMESTAMP) RETURNS BOOLEAN RETURN a > TIMESTAMP 'now'")
    for select, what in REFUSED.items():
        for statement in (f"CREATE TABLE r AS {select}", f"CREATE TABLE r WITH (key = 'nothing') AS {select}"):
            with pytest.raises(SqlError) as error:
                shell.run(statement)
            assert (error.value.code, what in error.value.message) == ("NOT_CONTINUOUS", True), error.value.message
    by_tag = "SELECT lower(tag) AS tag, count(*) AS n FROM ev GROUP BY tag"
    shell.run("CREATE TABLE r (tag STRING PRIMARY KEY, n BIGINT) WITH (partitions = 1)")
    for statement, what in {
        f"INSERT INTO r {by_tag}": "GROUP BY has an expression that the SELECT lacks",
        "INSERT INTO r SELECT max(tag) AS tag, count(*) AS n FROM ev": "an aggregate without GROUP BY",
        "INSERT INTO r SELECT max(tag) AS tag, id AS n FROM ev GROUP BY id": "the key lacks n, a column of GROUP BY",
        "INSERT INTO r SELECT tag, id AS n FROM ev UNION ALL SELECT tag, id FROM ev": "have no order",
        "INSERT INTO r SELECT lower(tag) AS tag, id AS n FROM EV WHERE id > 0": "partitions of EV, which has no",
        "CREATE TABLE q WITH (key = 'tag, n') AS SELECT tag, count(*) AS n FROM ev GROUP BY tag": "the key has n",
        "CREATE STREAM s (tag STRING, n BIGINT) WITH (partitions = 1); INSERT INTO s SELECT tag, count(*) AS n FROM ev "
        "GROUP BY tag": "s is a stream",
    }.items():
        with pytest.raises(SqlError, match=r"^q\.sql") as error:
            shell.run(statement)
        assert what in error.value.message, error.value.message
    shell.run("INSERT INTO r VALUES ('old', 1)")
    right = "INSERT INTO r SELECT tag, count(*) AS n FROM ev GROUP BY tag"
    with pytest.raises(SqlError, match="the topic r has records that the SELECT did not write"):
        shell.run(right)
    shell.run("DROP TABLE r DELETE TOPIC; CREATE TABLE r (tag STRING PRIMARY KEY, n BIGINT) WITH (partitions = 1)")
    shell.run(f"{right}; CREATE STREAM alias (tag STRING, n BIGINT) WITH (topic = 'r')")
    for writer in (right, right.replace("INTO r", "INTO alias"), "INSERT INTO alias SELECT tag, id AS n FROM ev"):
        with pytest.raises(SqlError, match="the query r writes"):
            shell.run(writer)
    for values in ("INSERT INTO r VALUES ('x', 1)", "INSERT INTO alias VALUES ('x', 1)"):
        with pytest.raises(SqlError, match=r"the query r writes .*, whose rows are those of its SELECT"):
            shell.run(values)
    assert [row[0] for row in shell.select("SHOW QUERIES")] == ["r"]
    # a query that an older version accepted says why it does not run, and the others do
    catalog = shell.session.catalog
    catalog.queries["r"] = replace(catalog.queries["r"], text="SELECT DISTINCT tag FROM ev")
    catalog.save()
    shell.session.close()
    with pytest.raises(AssertionError, match="query r does not run: query r:1:8: DISTINCT in a continuous query"):
        shell.open(ZONES[0])
    assert [row[3] for row in shell.select("SHOW QUERIES")] == ["failed"]


def test_the_key_of_a_time_is_the_same_in_every_zone(shells: Callable[[str], Shells], cluster: LocalCluster) -> None:
    shell = shells("times")
    shell.run(
        "CREATE TABLE times (ts TIMESTAMP PRIMARY KEY, n INT) WITH (partitions = 1);"
        "CREATE TABLE pairs (ts TIMESTAMP PRIMARY KEY, n INT PRIMARY KEY) WITH (partitions = 1)"
    )
    for zone in ZONES:
        shell.spark.conf.set("spark.sql.session.timeZone", zone)
        for table in ("times", "pairs"):
            shell.run(f"INSERT INTO {table} VALUES ('2026-10-25T00:30:00.12Z', 1), ('1969-10-25T01:30:00Z', 1)")
            assert shell.select(f"SELECT count(*) FROM {table}") == [(2,)], zone
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, **settings) as consumer:
        keys = {record.key for records in records_in_topic(consumer, "times") for record in records}
    assert keys == {b"2026-10-25 00:30:00.12", b"1969-10-25 01:30:00"}


def test_a_query_of_an_earlier_version_keeps_keys_in_utc_or_says_why_not(
    shells: Callable[[str], Shells], cluster: LocalCluster
) -> None:
    shell = shells("earlier")
    shell.spark.conf.set("spark.sql.session.timeZone", "UTC")
    shell.run(STREAM.format(shell.topic))
    shell.run("INSERT INTO ev VALUES (1, 'a', 0.5, '2026-10-25T00:30:00.12Z'), (2, NULL, 0.5, NULL)")
    shell.run("CREATE TABLE at AS SELECT ts, count(*) AS n FROM ev GROUP BY ts")
    shell.run("CREATE TABLE both AS SELECT ts, tag, count(*) AS n FROM ev GROUP BY ts, tag")
    assert shell.select("SELECT (SELECT count(*) FROM at), (SELECT count(*) FROM both)") == [(2, 2)]

    def upgrade() -> list[str]:
        """Start a shell whose catalog an earlier version wrote; return what it says of its queries."""
        catalog = shell.session.catalog
        for name in ("at", "both"):
            catalog.queries[name] = replace(catalog.queries[name], settings=())
        catalog.save()
        shell.session.close()
        shell.spark.conf.set("spark.sql.session.timeZone", ZONES[1])
        shell.session = Session(shell.spark, Access(shell.servers), shell.directory)
        shell._engine = Engine(shell.session)
        return shell.session.resume()

    assert upgrade() == []
    assert f"spark.sql.session.timeZone={ZONES[1]}" in shell.session.catalog.queries["at"].settings
    shell.session.continuous.stop_all()
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("at", key=b"2026-10-24 20:30:00.12", value=b'{"ts":"2026-10-25T00:30:00.12Z","n":1}')
        producer.send("both", key=b'{"ts":"2026-10-24T20:30:00.120000-04:00","tag":"a"}',
                      value=b'{"ts":"2026-10-25T00:30:00.12Z","tag":"a","n":1}')  # fmt: skip
    found = upgrade()
    assert [each.split(", such as")[0] for each in found] == [
        f"query {name} does not run: the table {name} has keys with times in another zone than UTC"
        for name in ("at", "both")
    ]
