"""The fraud pipeline: its alerts equal those of a calculation without the pipeline's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from headrace_core.testing.verdicts import NotInTimeError
from headrace_pipelines import cli
from headrace_pipelines.access import Access
from tests.worlds import pipelines_world
from tests.worlds.pipelines_world import DRIVER_S, calculated, records_of, written

pytestmark = pytest.mark.timeout(540)

#: Minutes of payments in test_state_memory_and_lag_stay_flat; `make verify` sets 60.
MINUTES = float(os.environ.get("HEADRACE_FRAUD_MINUTES", "0"))
#: The payments of this number of seconds do not count as lag, because a batch is reading them.
BATCH_S = 2
#: A producer of records near 1 MiB.
LARGE = {"batch.size": "16000000", "max.request.size": "16000000"}
RUN = [sys.executable, "-m", "headrace_pipelines", "run", "fraud"]


#: The scores of a run from the alerts and the payments with their planted fraud.
SCORES = """
    WITH
        alerts AS (
            SELECT kind, customer, time_ms, fraud, coalesce(truth = kind, false) AS is_right
            FROM found JOIN payments USING (payment)
        ),
        marked AS (
            SELECT *, coalesce(time_ms - lag(time_ms) OVER sorted, 3600000) >= 3600000 AS is_first
            FROM alerts WINDOW sorted AS (PARTITION BY kind, customer ORDER BY time_ms)
        ),
        numbered AS (
            SELECT *, count(*) FILTER (is_first) OVER (PARTITION BY kind, customer ORDER BY time_ms) AS incident
            FROM marked
        ),
        incidents AS (SELECT kind, bool_or(is_right) AS is_right FROM numbered GROUP BY kind, customer, incident),
        planted AS (SELECT truth AS kind, count(DISTINCT fraud) AS planted FROM payments GROUP BY truth),
        of_alerts AS (
            SELECT kind, count(*) AS alerts, avg(is_right::INT) AS precision_of_alerts,
                count(DISTINCT fraud) FILTER (is_right) AS found
            FROM alerts GROUP BY kind
        ),
        of_incidents AS (
            SELECT kind, count(*) AS incidents, avg(is_right::INT) AS precision FROM incidents GROUP BY kind
        )
    SELECT kind, planted, found, alerts, incidents, round(precision, 4) AS precision,
        round(precision_of_alerts, 4) AS precision_of_alerts, round(found / planted, 4) AS recall
    FROM planted JOIN of_alerts USING (kind) JOIN of_incidents USING (kind)
"""


@pytest.fixture
def low_latency(spark: Any) -> Iterator[None]:
    """The session with the settings of ``low_latency_session``."""
    from headrace_spark.session import LOW_LATENCY

    settings = {key.removeprefix("spark.hadoop."): value for key, value in LOW_LATENCY.items()}
    settings.pop("spark.python.unix.domain.socket.enabled")  # only before the session starts
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)


@pytest.mark.long
@pytest.mark.usefixtures("low_latency")
def test_alerts_are_those_of_the_calculation_and_the_checkpoint_has_no_checksums(
    spark: Any, headrace: Any, tmp_path: Path
) -> None:
    from headrace import Producer
    from headrace_pipelines.fraud.job import QUERY, Job, create_topics
    from headrace_pipelines.fraud.planting import START_MS, events
    from headrace_pipelines.fraud.traffic import Traffic
    from headrace_pipelines.places import Places
    from headrace_pipelines.show import Show
    from headrace_pipelines.sites import Site
    from headrace_pipelines.stopping import Stop

    servers = headrace.bootstrap_servers
    create_topics(Access(servers))
    traffic = Traffic(Access(servers), events(5, 3_000), rate=100_000)
    traffic.pay()
    traffic.start()
    traffic.result()
    _send_and_abort(servers)
    trace = ("trace", b"\x00\xff")
    # The payment of the first record waits for its account in the state.
    waits = b' {"payment": 7, "customer": "stranger", "time_ms": %d, "cents": 900, "note": "\xc3\xa9"}\n' % START_MS
    bad = [
        (b"stranger", waits),
        (b"c000001", b"\xff{"),
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b"c000002", b"x" * 1_040_000),
    ]
    with Producer({"bootstrap.servers": servers, **LARGE}) as producer:
        for key, value in bad:
            producer.send("fraud.payments", key=key, value=value, headers=[trace]).result(timeout=60)
    places = Places(tmp_path)
    with Job(spark, Site("fraud", servers, places.root), places, Show(), Stop()).start() as queries:

        def has_read_all() -> bool:
            queries.look()
            return queries.progress[QUERY].rows >= traffic.offsets + len(bad)

        _wait_for(has_read_all, "all records")

        def has_given_up() -> bool:
            return any(each.value == waits for each in records_of(servers, "fraud.payments.dead-letters"))

        _wait_for(has_given_up, "the dead letter of the payment without an account")
    expected = calculated(servers)
    assert expected.alerts.total() > 10
    assert written(servers).alerts == expected.alerts
    letters = records_of(servers, "fraud.payments.dead-letters")
    for key, value in bad:
        (letter,) = [each for each in letters if (each.key, each.value) == (key, value)]
        assert letter.headers[0] == trace
    checkpoint = places.checkpoint(QUERY)
    assert list(checkpoint.rglob("*.changelog"))
    assert list(checkpoint.glob("offsets/0"))
    assert not [*checkpoint.glob("offsets/.*.crc"), *checkpoint.glob("commits/.*.crc")]


def _send_and_abort(servers: str) -> None:
    """Send payments that would cause alerts, and abort their transaction, so that no reader with read_committed sees
    them."""
    from headrace import Producer
    from headrace_pipelines.fraud.planting import START_MS
    from headrace_pipelines.fraud.schema import Payment

    with Producer({"bootstrap.servers": servers, "transactional.id": "aborts"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(20):
            payment = Payment(10**9 + number, "c000050", START_MS, 10**9, None)
            producer.send("fraud.payments", key=b"c000050", value=payment.encoded())
        producer.flush()
        producer.abort_transaction()


@pytest.mark.long
def test_the_numbers_are_those_of_the_topics_and_the_planted_truth(headrace: Any, tmp_path: Path) -> None:
    from headrace_pipelines.fraud.planting import events
    from headrace_pipelines.fraud.schema import Payment

    flags = ["--bootstrap-servers", headrace.bootstrap_servers, "--rate", "250", "--seconds", "40", "--seed", "8"]
    flags += ["--account-wait", "20"]  # accounts come 4 seconds late at this rate
    done = subprocess.run(
        [*RUN, *flags, "-o", "json"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads(done.stdout)
    out = tmp_path / "build/pipelines/fraud"
    assert json.loads((out / "summary.json").read_text()) == summary
    details = json.loads((out / "details.json").read_text())
    assert (out / "fraud.png").stat().st_size > 20_000

    expected = calculated(headrace.bootstrap_servers)
    assert written(headrace.bootstrap_servers) == expected
    assert summary["payments"] == 10_000
    assert summary["alerts"] == expected.alerts.total()
    assert sum(details["dead_letters"].values()) == expected.letters.total()
    reasons = {"customer: no account", "value: malformed JSON", "time_ms: not in the years 2020 to 2039"}
    assert set(details["dead_letters"]) == reasons

    found = pd.DataFrame(list(expected.alerts), columns=["payment", "kind"])
    paid = [event for event in events(8, 10_000) if isinstance(event.content, Payment)]
    payments = pd.DataFrame(
        [
            (each.content.payment, each.customer, each.content.time_ms, *(each.fraud or (None, None)))
            for each in paid
            if isinstance(each.content, Payment)
        ],
        columns=["payment", "customer", "time_ms", "truth", "fraud"],
    )
    with duckdb.connect() as connection:
        connection.register("found", found)
        connection.register("payments", payments)
        scores = connection.sql(SCORES).to_arrow_table().to_pylist()
    assert {each.pop("kind"): each for each in scores} == summary["by_kind"]
    assert summary["event_to_alert_ms"]["p50"] <= summary["event_to_alert_ms"]["p99"]
    assert details["event_to_write_ms"]["p50"] <= summary["event_to_alert_ms"]["p50"]


@pytest.mark.long
@pytest.mark.usefixtures("low_latency")
def test_a_payment_whose_account_comes_in_the_next_batch_is_judged_however_long_the_pause(
    spark: Any, headrace: Any, tmp_path: Path
) -> None:
    """The batch after the pause contains the account, and begins after the time of the payment's timer."""
    from headrace import Producer
    from headrace_pipelines.fraud.detector import detected
    from headrace_pipelines.fraud.job import create_topics
    from headrace_pipelines.fraud.planting import START_MS
    from headrace_pipelines.fraud.schema import Account, Payment
    from headrace_pipelines.sites import Site

    servers = headrace.bootstrap_servers
    create_topics(Access(servers))
    site = Site("fraud", servers, tmp_path)
    payment = Payment(7, "late", START_MS, 10**9, None)
    for topic, content in (("fraud.payments", payment), ("fraud.accounts", Account("late", 3_000))):
        with Producer({"bootstrap.servers": servers}) as producer:
            producer.send(topic, key=b"late", value=content.encoded()).result(timeout=60)
        source = spark.readStream.format("headrace").options(**site.read("fraud.payments", "fraud.accounts", query="q"))
        writer = (
            detected(source.load(), account_wait_ms=1).writeStream.format("headrace").trigger(processingTime="1 hour")
        )
        query = writer.options(**site.write(query="q")).start()
        try:
            _wait_for(lambda query=query: query.exception() or query.lastProgress, "a batch")  # type: ignore[misc]
            assert query.exception() is None
        finally:
            query.stop()
    assert written(servers).alerts == {(7, "amount"): 1}
    assert not written(servers).letters


@pytest.mark.long
def test_a_run_is_watched_stopped_and_its_dead_letters_are_replayed(
    headrace: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = headrace.bootstrap_servers
    where = ["fraud", "--out", str(tmp_path), "-o", "json"]
    flags = ["--out", str(tmp_path), "--bootstrap-servers", servers, "--rate", "500", "--seconds", "3600"]

    def command(name: str, *more: str) -> dict[str, Any]:
        assert cli.main([name, *where, *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen([*RUN, *flags], stdout=said)
    try:
        query: dict[str, Any] = {}
        while not query.get("batch") or query["lag_s"] is None or not written(servers).letters:
            assert running.poll() is None, (tmp_path / "said").read_text()[-3000:]
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(1)
            (query,) = command("status")["queries"] or [{}]
        assert query["query"] == "alerts"
        assert command("stop")["state"] == "stopped"
        assert running.wait(60) == 143
    finally:
        running.kill()
        running.wait()
    stopped = json.loads((tmp_path / "said").read_text().splitlines()[-1])
    assert stopped["rows"] > 0
    before = len(records_of(servers, "fraud.payments"))
    letters = written(servers).letters.total()
    replayed = command("replay", "--bootstrap-servers", servers)
    assert sum(each["sent"] for each in replayed.values()) == letters
    assert len(records_of(servers, "fraud.payments")) == before + letters


@pytest.mark.long
@pytest.mark.timeout(int(MINUTES * 60) + 540)
@pytest.mark.skipif(not MINUTES, reason="`make verify` runs it for an hour")
def test_state_memory_and_lag_stay_flat(headrace: Any, tmp_path: Path) -> None:
    """HEADRACE_FRAUD_MINUTES sets how long payments are sent, 2,000 of them a second."""
    rate, seconds = 2_000, MINUTES * 60
    flags = ["--bootstrap-servers", headrace.bootstrap_servers, "--rate", str(rate), "--seconds", str(seconds)]
    checkpoint = tmp_path / "build/pipelines/fraud/checkpoints"
    flat = pipelines_world.followed([*RUN, *flags, "-o", "json"], tmp_path, checkpoint)
    summary, behind = flat.summary, flat.behind
    assert summary["payments"] == rate * seconds
    flat.figures["records to read"] = [each + rate * BATCH_S for each in behind]
    grown = flat.grown
    print(json.dumps({"grown": grown, "last": {what: values[-1] for what, values in flat.figures.items()}, **summary}))
    assert behind[-1] <= rate * BATCH_S * 5
    if MINUTES >= 10:  # in the first minutes the heap of the JVM grows, and customers appear
        assert all(growth < pipelines_world.GROWTH_MAX for growth in grown.values()), grown
        assert summary["payments_per_s"] >= rate * 0.98
        assert summary["event_to_alert_ms"]["p99"] <= 1_500


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DRIVER_S
    while not condition():
        if time.monotonic() > deadline:
            raise NotInTimeError(f"never: {what}")
        time.sleep(0.05)  # this polls a condition, and does not wait for a guessed time
