"""The rules as a StatefulProcessor (transformWithState in pandas form), with state in RocksDB.

    state       for each customer                       ends
    accounts    the newest account                      with the tombstone that closes the account
    histories   what the rules remember                 HISTORY_MS after the last payment
    parked      payments that wait for their account    when the account arrives, or by a timer: ACCOUNT_WAIT_MS

**Customers are grouped into shards and buckets.** For each key of each batch, Spark's pandas form makes a data frame
and several requests for state, which cost more than the rules. The key of the operator is therefore a shard of many
customers. A single request for a key's state costs more time than all rules. The histories of a shard are therefore a
map of buckets, and one request reads or writes the histories of all customers in a bucket. Each history contains its
own end time.

**Alerts do not depend on how records are split into batches**, if both topics show a customer's records in the order of
their timestamps. All records of a customer are in one partition of each topic. The processor sorts the records of a
batch by their timestamps. The rules use only the times in the payments, and the timestamps of the customer's records
decide when a history ends. Only two times depend on the wall clock. One is when a payment without an account becomes a
dead letter; the other is when Spark removes an unused bucket (BUCKET_TTL_MS).

**A history that has ended stays in the state for up to seven days** (BUCKET_TTL_MS), but the rules do not use the
history. The record that closes an account removes the customer's history.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from ..dead_letters import HEADERS_TYPE, routed
from ..expectations import REASON
from .rules import History, first_history, judge
from .schema import ACCOUNTS, ALERTS, Account, Alert, InvalidRecordError, Payment, account_of, check_size, payment_of

#: Shards of customers. Each batch has rows for most shards, so more shards cost time. The tasks share the work by
#: shards, so with fewer shards one task may have much more work than another task.
SHARDS = 16
#: Number of buckets into which a shard divides its customers. About thirty customers in a bucket are best: a batch
#: writes each bucket that has a new payment.
BUCKETS = 8
#: Milliseconds without a payment, by the timestamps of the records, after which the job forgets a customer's history.
#: At 2,000 payments a second, 10 minutes of timestamps are 100 days by the clock of the payments.
HISTORY_MS = 600_000
#: Milliseconds (wall clock) without a write after which Spark removes a bucket of histories. Topics keep their records
#: for seven days by default, so a query that was stopped for longer has lost payments anyway.
BUCKET_TTL_MS = 7 * 86_400_000
#: Milliseconds that a payment waits for its account, from the batch that read the payment. A payment that has waited
#: longer becomes a dead letter. Payments and accounts come from different systems, and may be seconds apart. Spark
#: passes the records of a batch to the query before it fires timers. If all records of a shard in a batch are older
#: than ACCOUNT_WAIT_MS, the query may not have read the accounts yet. No payment of the shard then becomes a dead
#: letter in the batch.
ACCOUNT_WAIT_MS = 5_000
#: Maximum number of payments of one customer that wait for the account. Each batch with such a payment rewrites all of
#: them in the state.
PARKED_MAX = 1_000
#: Maximum number of characters of a payment's headers, as JSON. A payment without an account is kept in the state, with
#: its headers, until the account arrives.
HEADERS_MAX = 16_384
#: Approximate size, in bytes, of the data frames in which bad records are returned to Spark. Not all large records are
#: then in memory at the same time.
FRAME_BYTES = 8_000_000

ACCOUNT = "usual_cents BIGINT"
HISTORIES = (
    "histories ARRAY<STRUCT<customer: STRING, until_ms: BIGINT, amounts: BIGINT, mean: DOUBLE, squares: DOUBLE, "
    "latitude: DOUBLE, longitude: DOUBLE, placed_ms: BIGINT, recent_ms: ARRAY<BIGINT>, small_ms: ARRAY<BIGINT>>>"
)
_RECORD = "sent_ms: BIGINT, topic: STRING, partition: INT, offset: BIGINT, key: BINARY, value: BINARY, headers: STRING"
PARKED = f"records ARRAY<STRUCT<until_ms: BIGINT, {_RECORD}>>"
#: Output columns: an alert, or the reason why a record is bad. The other columns are the columns of the payment's or
#: the account's record.
OUTPUT = f"{_RECORD.replace(':', '')}, alert STRING, kind STRING, {REASON} STRING"


class Record(NamedTuple):
    """A record of the payments or the accounts; ``sent_ms`` is its timestamp, and ``headers`` are JSON."""

    sent_ms: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: str | None


Row = tuple[Any, ...]


def detected(records: DataFrame, account_wait_ms: int = ACCOUNT_WAIT_MS) -> DataFrame:
    """The alerts and the dead letters for the records of the source, as rows of the sink. ``records`` has the
    source's columns, ``headers`` included."""
    rows = records.select(
        F.pmod(F.xxhash64("key"), F.lit(SHARDS)).cast("int").alias("shard"),
        F.unix_millis("timestamp").alias("sent_ms"),
        *("topic", "partition", "offset", "key", "value"),
        F.to_json("headers").alias("headers"),
    )
    detector = Detector(account_wait_ms)
    found = rows.groupBy("shard").transformWithStateInPandas(detector, OUTPUT, "Append", "ProcessingTime")
    counted = found.observe("found", F.count("kind").alias("alerts"), F.count(REASON).alias("dead_letters"))
    source = counted.select(
        *("key", "value", "topic", "partition", "offset", "alert", REASON),
        F.timestamp_millis("sent_ms").alias("timestamp"),
        F.from_json("headers", HEADERS_TYPE).alias("headers"),
    )
    return routed(source, topic=ALERTS, key=F.col("key"), value=F.col("alert"))


class Detector(StatefulProcessor):
    def __init__(self, account_wait_ms: int = ACCOUNT_WAIT_MS) -> None:
        self._account_wait_ms = account_wait_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._accounts = handle.getMapState("accounts", "customer STRING", ACCOUNT)
        self._histories = handle.getMapState("histories", "bucket INT", HISTORIES, BUCKET_TTL_MS)
        self._parked = handle.getMapState("parked", "customer STRING", PARKED)
        #: Maps a shard to the processing time (ms) of its last batch in which all records of the shard were older than
        #: the wait.
        self._behind: dict[Any, int] = {}

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Judge the new payments of a shard, customer by customer."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        buckets: dict[int, dict[str, list[Record]]] = {}
        found: list[Row] = []
        newest_ms = bytes_found = 0
        for frame in rows:
            for record in _records(frame):
                newest_ms = max(newest_ms, record.sent_ms)
                try:
                    customer = _customer_of(record)
                except InvalidRecordError as error:
                    found.append((*record, None, None, str(error)))
                    bytes_found += _size(found[-1])
                    if bytes_found >= FRAME_BYTES:
                        yield from _frames(found)
                        found, bytes_found = [], 0
                    continue
                buckets.setdefault(_bucket_of(customer), {}).setdefault(customer, []).append(record)
        if newest_ms < now_ms - self._account_wait_ms:
            self._behind[key] = now_ms
        for bucket, by_customer in buckets.items():
            found += self._bucket(bucket, by_customer, now_ms, newest_ms)
        yield from _frames(found)

    def _bucket(self, bucket: int, by_customer: dict[str, list[Record]], now_ms: int, newest_ms: int) -> list[Row]:
        """The output for the new records of the customers in a bucket. ``newest_ms`` is the newest timestamp of the
        shard's records in this batch."""
        found: list[Row] = []
        stored = self._histories.getValue((bucket,))
        # Only ``_customer`` decides, by the customer's own records, whether a history has expired. ``_bucket`` removes
        # only histories that expired at least BUCKET_TTL_MS ago, because another customer's records may be much newer.
        over_ms = min(newest_ms, now_ms) - BUCKET_TTL_MS
        kept = (
            {}
            if stored is None
            else {each[0]: tuple(each) for each in stored[0] if each[0] in by_customer or each[1] > over_ms}
        )
        is_changed = False
        for customer, records in by_customer.items():
            records.sort(key=_order)
            before = None if customer not in kept else _history(kept[customer])
            until_ms = 0 if customer not in kept else kept[customer][1]
            history, until_ms = self._customer(customer, records, before, until_ms, now_ms, found)
            if history is before:
                continue
            is_changed = True
            if history is None:
                del kept[customer]
            else:
                kept[customer] = (customer, until_ms, *history)
        if is_changed and kept:
            self._histories.updateValue((bucket,), (list(kept.values()),))
        elif is_changed:
            self._histories.removeKey((bucket,))
        return found

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Turn the shard's parked payments that have waited for ACCOUNT_WAIT_MS into dead letters. If all records of
        the shard in this batch are older than the wait, the query is behind. The timer is then set again, because the
        accounts may follow."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        if self._behind.get(key) == now_ms:
            self._handle.registerTimer(now_ms + self._account_wait_ms)
            return
        found: list[Row] = []
        for (customer,), (parked,) in list(self._parked.iterator()):
            still = [tuple(each) for each in parked if each[0] > now_ms]
            found += [(*each[1:], None, None, "customer: no account") for each in parked if each[0] <= now_ms]
            if not still:
                self._parked.removeKey((customer,))
            elif len(still) < len(parked):
                self._parked.updateValue((customer,), (still,))
        yield from _frames(found)

    def _customer(
        self,
        customer: str,
        records: list[Record],
        history: History | None,
        until_ms: int,
        now_ms: int,
        found: list[Row],
    ) -> tuple[History | None, int]:
        """Return the customer's history after the new ``records``, and the time when the history ends; adds alerts and
        bad records to ``found``. The records are sorted by timestamp."""
        account = None if history is not None else self._known(customer)
        waiting: list[Record] = []
        for record in records:
            ready = [record]
            try:
                if record.topic == ACCOUNTS:
                    account = self._store(customer, record)
                else:
                    _payment_of(customer, record)
            except InvalidRecordError as error:
                found.append((*record, None, None, str(error)))
                continue
            if record.topic == ACCOUNTS:
                if account is None:
                    history = None
                    continue
                ready = [] if history is not None else [*self._take_parked(customer), *waiting]
                waiting = []
            elif history is None and account is None:
                waiting.append(record)
                continue
            for each in ready:
                if history is None or each.sent_ms >= until_ms:
                    account = account or self._known(customer)
                    assert account is not None
                    history, until_ms = first_history(account), 0
                history = _judged(history, customer, each, found)
                until_ms = max(until_ms, each.sent_ms + HISTORY_MS)
        if waiting:
            found += self._park(customer, waiting, now_ms)
        return history, until_ms

    def _known(self, customer: str) -> Account | None:
        account = self._accounts.getValue((customer,))
        return None if account is None else Account(customer, account[0])

    def _store(self, customer: str, record: Record) -> Account | None:
        """Store the account in the record; None if the record closes the account. Raises InvalidRecordError."""
        if record.value is None:
            self._accounts.removeKey((customer,))
            return None
        account = account_of(record.value)
        if account.customer != customer:
            raise InvalidRecordError("customer: not the customer in the record's key")
        self._accounts.updateValue((customer,), (account.usual_cents,))
        return account

    def _park(self, customer: str, records: list[Record], now_ms: int) -> list[Row]:
        """Store payments that wait for the customer's account. Return the payments above PARKED_MAX as bad records."""
        until_ms = now_ms + self._account_wait_ms
        stored = self._parked.getValue((customer,))
        parked = [] if stored is None else [tuple(each) for each in stored[0]]
        room = max(PARKED_MAX - len(parked), 0)
        if room:
            self._parked.updateValue((customer,), ([*parked, *((until_ms, *record) for record in records[:room])],))
            self._handle.registerTimer(until_ms)
        reason = f"customer: no account, and {PARKED_MAX} payments of the customer wait for it"
        return [(*record, None, None, reason) for record in records[room:]]

    def _take_parked(self, customer: str) -> list[Record]:
        stored = self._parked.getValue((customer,))
        if stored is None:
            return []
        self._parked.removeKey((customer,))
        return [Record(*each[1:]) for each in stored[0]]


def _bucket_of(customer: str) -> int:
    return zlib.crc32(customer.encode()) % BUCKETS


def _history(stored: tuple[Any, ...]) -> History:
    _, _, *values, recent_ms, small_ms = stored
    return History._make((*values, tuple(recent_ms), tuple(small_ms)))


def _customer_of(record: Record) -> str:
    """The customer that the record's key names. Raises InvalidRecordError, also for a record that is too large to be
    kept."""
    check_size(record.value)
    if record.headers is not None and len(record.headers) > HEADERS_MAX:
        raise InvalidRecordError(f"headers: {len(record.headers)} characters of JSON, more than {HEADERS_MAX}")
    if record.key is None:
        raise InvalidRecordError("key: null")
    try:
        return record.key.decode()
    except UnicodeDecodeError:
        raise InvalidRecordError("key: not UTF-8") from None


def _payment_of(customer: str, record: Record) -> Payment:
    """The payment in the record. Raises InvalidRecordError."""
    payment = payment_of(record.value)
    if payment.customer != customer:
        raise InvalidRecordError("customer: not the customer in the record's key")
    return payment


def _judged(history: History, customer: str, record: Record, found: list[Row]) -> History:
    """Return the history after the payment in ``record``; adds the alerts of the payment to ``found``."""
    payment = _payment_of(customer, record)
    history, kinds = judge(history, payment)
    for kind, reason in kinds:
        alert = Alert(payment.payment, customer, kind, reason, payment.time_ms, record.sent_ms)
        found.append((*record, alert.encoded(), kind, None))
    return history


def _records(frame: pd.DataFrame) -> Iterator[Record]:
    """The records in a frame. For pandas a null in a column of texts or bytes may be NaN."""
    columns = [frame[name].tolist() for name in Record._fields]
    for *position, key, value, headers in zip(*columns, strict=True):
        given = (each if isinstance(each, bytes) else None for each in (key, value))
        yield Record._make((*position, *given, headers if isinstance(headers, str) else None))


def _order(record: Record) -> tuple[int, str, int]:
    return record.sent_ms, record.topic, record.offset


def _frames(rows: list[Row]) -> Iterator[pd.DataFrame]:
    """The rows as data frames of about FRAME_BYTES: Arrow takes 2 GiB at most. Without rows the result has no frame,
    because an empty frame costs as much as a full frame."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += _size(row)
        if size >= FRAME_BYTES:
            yield _frame(part)
            part, size = [], 0
    if part:
        yield _frame(part)


def _frame(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*Record._fields, "alert", "kind", REASON])


def _size(row: Row) -> int:
    """Bytes of the value and the headers of an output row."""
    record = Record._make(row[: len(Record._fields)])
    return len(record.value or b"") + len(record.headers or "")
