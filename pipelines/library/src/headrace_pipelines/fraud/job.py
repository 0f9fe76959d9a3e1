"""The fraud job: cluster, topics, one query, the payments, and the numbers at the end.

traffic --> fraud.payments, fraud.accounts --> query alerts --> fraud.alerts --> watch
                                                        `-----> dead letters
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import Consumer, NewTopic
from headrace_spark import low_latency_session

from ..access import Access, given_access
from ..checkpoints import batches
from ..dead_letters import LARGE_RECORDS, PREFIX, dead_letter_topic
from ..errors import PipelineFailedError, StoppedError
from ..local_spark import local_spark
from ..outcome import Outcome
from ..places import Places, add_run_flags, cluster_of, positive, whole
from ..queries import LOOK_S, Queries, started
from ..runs import prepared, serving
from ..show import Show
from ..sites import Site
from ..stopping import Stop
from ..topics import records_in_topic, replace_topics
from . import pictures, schema
from .detector import ACCOUNT_WAIT_MS, BUCKETS, SHARDS, detected
from .planting import events
from .scoring import latencies, scores
from .traffic import Seen, Traffic, Watch, sent_before

QUERY = "alerts"
PARTITIONS = 2
RATE = 2_000.0
SECONDS = 90
SEED = 21
#: Maximum number of records in a batch. When a stopped query continues, its first batches have this size. A Python
#: worker has the records of one shard in memory.
RECORDS_OF_A_BATCH = 500_000
#: Latency percentiles leave out payments of the first WARM_UP_S seconds, because the JVM is still compiling and the
#: state is empty.
WARM_UP_S = 30
#: Seconds that the query may take to process the last payments.
DRAIN_S = 120.0

SOURCES = (schema.PAYMENTS, schema.ACCOUNTS)
DEAD_LETTERS = tuple(map(dead_letter_topic, SOURCES))


def _nothing() -> None:
    pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run fraud``."""
    add_run_flags(parser, "fraud.*")
    parser.add_argument(
        "--rate", type=positive, default=RATE, metavar="N", help="payments per second (default %(default)g)"
    )
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, metavar="S",
        help="seconds for which the job sends payments (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole, default=SEED, metavar="N",
        help="the same seed gives the same payments and the same planted fraud (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--account-wait", type=positive, default=ACCOUNT_WAIT_MS / 1000, metavar="S",
        help="a payment without an account becomes a dead letter after this many seconds (default %(default)g)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, out: Path, show: Show, stop: Stop) -> Outcome:
    """Run the pipeline to its end. Raises HeadraceError, and StoppedError after SIGTERM."""
    began = time.perf_counter()
    given, places = given_access(arguments), Places(out)
    continued = places.begin(show)
    show.step(f"starting Spark ({arguments.master})")
    with (
        local_spark("headrace fraud", low_latency_session, master=arguments.master) as spark,
        cluster_of(given, places, show) as access,
    ):
        serving(out, access.servers)
        if not continued:
            create_topics(access)
            prepared(out)
        payments = max(1, round(arguments.rate * arguments.seconds))
        before = sent_before(access) if continued else None
        planned = events(arguments.seed, payments)
        traffic = Traffic(access, planned, rate=arguments.rate, partitions=PARTITIONS, before=before)
        site = Site("fraud", access.servers, out, keys=access.keys)
        job = Job(spark, site, places, show, stop, account_wait_ms=int(arguments.account_wait * 1000))
        outcome = job.stream(traffic, payments, is_continued=continued > 0)
    outcome.details.update(continued=continued, seconds=round(time.perf_counter() - began, 3))
    show.step("done")
    return outcome


def create_topics(access: Access) -> None:
    """Create the topics of the pipeline, without records."""
    new = [
        NewTopic(schema.PAYMENTS, partitions=PARTITIONS),
        NewTopic(schema.ACCOUNTS, partitions=PARTITIONS, config={"cleanup.policy": "compact"}),
        NewTopic(schema.ALERTS, partitions=PARTITIONS),
    ]
    replace_topics(access, "fraud", new, queries=[QUERY], sources=SOURCES)


class Job:
    """The query of a run."""

    def __init__(
        self,
        spark: SparkSession,
        site: Site,
        places: Places,
        show: Show,
        stop: Stop,
        *,
        account_wait_ms: int = ACCOUNT_WAIT_MS,
    ) -> None:
        self._spark, self._site, self._places, self._show, self._stop = spark, site, places, show, stop
        self._account_wait_ms = account_wait_ms

    def start(self) -> Queries:
        """Start the query: one source with two topics, one operator with state, one sink with three topics."""
        check_grouping(self._places.checkpoint(QUERY))
        options = self._site.read(*SOURCES, query=QUERY) | {"maxOffsetsPerTrigger": str(RECORDS_OF_A_BATCH)}
        source = self._spark.readStream.format("headrace").options(**options).load()
        writer = detected(source, self._account_wait_ms).writeStream.format("headrace").options(**LARGE_RECORDS)
        (query,) = started(writer.options(**self._site.write(query=QUERY)).start)
        return Queries({QUERY: query})

    def stream(self, traffic: Traffic, payments: int, *, is_continued: bool) -> Outcome:
        """Send the payments through the query, wait for the last alerts and timers, and sum up."""
        self._show.step("starting the query: state in RocksDB, alerts exactly once")
        with self._stop.after_batch(), self.start() as queries:
            watch = Watch(self._site.access, PARTITIONS)
            watch.start()
            traffic.start()
            try:
                self._follow(queries, traffic, lambda: traffic.has_sent_accounts.is_set())
                self._show.step(f"sending {payments:,} payments with planted fraud to topic {schema.PAYMENTS}")
                traffic.pay()
                with self._show.meter("payments", payments) as meter:

                    def show() -> None:
                        meter.at(traffic.payments, self._note(queries, traffic, watch))

                    self._follow(queries, traffic, lambda: not traffic.is_alive(), show)
                self._let_timers_fire(queries, traffic)
                self._end(queries)
                self._wait_for_alerts(watch)
            finally:
                traffic.stop()
                watch.stop()
                watch.result()
            self._show.step("summing up")
            return self._summarize(queries, traffic, watch, is_continued=is_continued)

    def _follow(
        self, queries: Queries, traffic: Traffic, is_sent: Callable[[], bool], on_look: Callable[[], None] = _nothing
    ) -> None:
        """Wait until ``is_sent()`` returns True, and then until the query has read all records. Raises StoppedError."""
        sent_s: float | None = None
        while sent_s is None or queries.position(QUERY) < traffic.offsets:
            self._look(queries, traffic)
            on_look()
            if sent_s is None and is_sent():
                sent_s = time.monotonic()
            elif sent_s is not None and time.monotonic() > sent_s + DRAIN_S:
                raise PipelineFailedError(
                    f"{traffic.offsets:,} records were sent, and after {DRAIN_S:.0f} s the query has read "
                    f"{queries.position(QUERY):,} of them; use a lower --rate or a faster machine"
                )
            time.sleep(LOOK_S)

    def _let_timers_fire(self, queries: Queries, traffic: Traffic) -> None:
        """Wait for a batch that begins ``account_wait_ms`` from now or later. In a batch that begins so late, timers
        turn the last payments without an account into dead letters. Raises StoppedError."""
        until_s = time.time() + self._account_wait_ms / 1000
        while queries.progress[QUERY].began_s < until_s:
            self._look(queries, traffic)
            time.sleep(LOOK_S)

    def _look(self, queries: Queries, traffic: Traffic) -> None:
        queries.look()
        if not traffic.is_alive():
            traffic.result()
        if self._stop.is_asked:
            traffic.stop()
            self._end(queries)
            progress = queries.progress[QUERY]
            raise StoppedError({"sent": traffic.payments, "batches": progress.batches, "rows": progress.rows})

    def _end(self, queries: Queries) -> None:
        """Stop the query after its current batch, with Spark's log switched off. The next batch has always begun when
        the query stops, so Spark would log an error."""
        self._spark.sparkContext.setLogLevel("OFF")
        queries.stop_after_batch()

    def _note(self, queries: Queries, traffic: Traffic, watch: Watch) -> str:
        state_rows, state_bytes = queries.state
        newest = watch.seen[-1] if watch.seen else None
        latency = "none yet" if newest is None else f"{newest.seen_ms - newest.alert.sent_ms:,.0f} ms"
        return (
            f"{max(0, traffic.offsets - queries.position(QUERY)):,} records to read, {len(watch.seen):,} alerts, "
            f"newest after {latency}, state {state_rows:,} rows {state_bytes / 1e6:.1f} MB"
        )

    def _wait_for_alerts(self, watch: Watch) -> None:
        """Wait until the watch has seen all alerts in the topic. Raises PipelineFailedError."""
        with Consumer(self._site.access.consumer() | {"isolation.level": "read_committed"}) as consumer:
            expected = sum(map(len, records_in_topic(consumer, schema.ALERTS)))
        deadline = time.monotonic() + DRAIN_S
        while len(watch.seen) < expected:
            if time.monotonic() > deadline:
                raise PipelineFailedError(
                    f"the topic has {expected:,} alerts, but the job received only {len(watch.seen):,}"
                )
            time.sleep(LOOK_S / 10)

    def _summarize(self, queries: Queries, traffic: Traffic, watch: Watch, *, is_continued: bool) -> Outcome:
        progress = queries.progress[QUERY]
        letters = dead_letters(self._site.access)
        warm_ms = traffic.began_ms + WARM_UP_S * 1000
        steady = [each for each in watch.seen if each.alert.sent_ms >= warm_ms]
        summary: dict[str, Any] = {
            "payments": traffic.payments,
            "alerts": len(watch.seen),
            "by_kind": scores([each.alert for each in watch.seen], traffic.truth),
            "event_to_alert_ms": latencies([each.seen_ms - each.alert.sent_ms for each in steady]),
            "payments_per_s": round(traffic.payments_per_s, 1),
        }
        details = {
            "event_to_write_ms": latencies([each.written_ms - each.alert.sent_ms for each in steady]),
            "records": queries.position(QUERY),
            "dead_letters": dict(letters),
            "batches": batches(self._places.root / "checkpoints")[QUERY],
            "state_rows": progress.state_rows,
            "state_bytes": progress.state_bytes,
        }
        _check(None if is_continued else progress.observed, watch.seen, letters)
        path = pictures.draw(watch.seen, traffic.began_ms, summary, self._places.root)
        self._show.note(f"picture: {path}")
        return Outcome(summary, details)


def check_grouping(checkpoint: Path) -> None:
    """Record in a new checkpoint how customers are grouped. Raises PipelineFailedError if the checkpoint groups
    customers in another way, because the query would not find the accounts of the customers."""
    path = checkpoint / "customers.json"
    grouping = {"shards": SHARDS, "buckets": BUCKETS}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(grouping))
    elif (there := json.loads(path.read_text())) != grouping:
        raise PipelineFailedError(
            f"the checkpoint {checkpoint} was written with {there}, but the detector has {grouping}; set SHARDS and "
            "BUCKETS of detector.py as in the checkpoint, or begin again with --restart"
        )


def dead_letters(access: Access) -> Counter[str]:
    """The number of dead letters for each reason."""
    reasons: Counter[str] = Counter()
    with Consumer(access.consumer() | {"isolation.level": "read_committed"}) as consumer:
        for topic in DEAD_LETTERS:
            for records in records_in_topic(consumer, topic):
                reasons.update((dict(each.headers)[f"{PREFIX}reason"] or b"").decode() for each in records)
    return reasons


def _check(observed: Counter[str] | None, seen: list[Seen], letters: Counter[str]) -> None:
    """Check that each alert and each dead letter of the query is in its topic exactly once. ``observed``: the counts of
    the query; None for a continued run, because Spark does not keep the counts of the previous run."""
    alerts = Counter((each.alert.payment, each.alert.kind) for each in seen)
    twice = [payment for (payment, _), count in alerts.items() if count > 1]
    if twice:
        raise PipelineFailedError(f"topic {schema.ALERTS} has {len(twice)} alerts more than once: payments {twice[:5]}")
    if observed is None:
        return
    for what, wrote, found in (
        ("alerts", observed["alerts"], len(seen)),
        ("dead letters", observed["dead_letters"], letters.total()),
    ):
        if wrote != found:
            raise PipelineFailedError(f"the query wrote {wrote:,} {what}, but the topics have {found:,}")
