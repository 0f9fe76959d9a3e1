"""Build and parse the transactional ids of exactly-once sinks. Pure.

    sink            __headrace_sink/QUERY/TARGET
    transaction     __headrace_sink/QUERY/TARGET/BATCH/GENERATION/PARTITION/RANDOM

A sink is the set of all writes of one Spark query to one target (a topic, or ``*`` for rows that name their topics).
Each attempt of a task has a separate transaction. A sink and its transactions belong to one shard of
``__transaction_state``, so that one state machine decides about a batch and its transactions. Therefore only the
sink's part of a transactional id determines the shard (see metadata/shards.py).
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

_PREFIX = "__headrace_sink/"
#: Maximum number of bytes of a sink's id, and of the random text in a task's transactional id. With these limits, the
#: tokens of the largest batch fit into one request.
SINK_BYTES_MAX, NONCE_BYTES_MAX = 512, 64
TASKS_MAX = 10_000  #: Maximum number of tasks with rows in a batch, because one CommitSinkBatch request names them all.
_DIGITS_MAX = 18  #: Maximum number of digits of a number in an id, so that the number fits into an int64.


def sink_id(query: str, target: str) -> str:
    """Return the id of the sink of a query and a target; both may be any text."""
    return f"{_PREFIX}{quote(query, safe='')}/{quote(target, safe='*')}"


class SinkTransaction(NamedTuple):
    """The parts of a sink's transactional id. ``generation``: the generation of the sink when the task began (see
    SinkState of transactions.proto)."""

    sink: str
    batch: int
    generation: int
    partition: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.sink}/{self.batch}/{self.generation}/{self.partition}/{self.nonce}"

    @property
    def query(self) -> str:
        return unquote(self.sink.removeprefix(_PREFIX).partition("/")[0])


def parse_sink_transaction(transactional_id: str) -> SinkTransaction | None:
    """The parts of a sink's transactional id; None for other transactional ids."""
    if not transactional_id.startswith(_PREFIX):
        return None
    parts = transactional_id.split("/")
    if len(parts) != 7 or not all(map(_is_number, parts[3:6])):
        return None
    return SinkTransaction("/".join(parts[:3]), int(parts[3]), int(parts[4]), int(parts[5]), parts[6])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def is_sink_id(text: str) -> bool:
    """Whether ``text`` is the id of a sink."""
    return text.startswith(_PREFIX) and text.count("/") == 2


def shard_key(key: str) -> str:
    """Return the text whose hash determines the shard of ``key``: the sink's id for a sink's transactional id, else
    ``key``."""
    found = parse_sink_transaction(key)
    return key if found is None else found.sink
