"""Create the topics of CREATE statements."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import Admin, NewTopic
from headrace_core.errors import (
    HeadraceError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    PolicyViolationError,
)

from .catalog import Table
from .faults import Source, SqlError
from .statements import CreateTable, CreateTableAs

#: Maps a part of the cluster's error message to the option that is wrong.
_REFUSALS: dict[type[HeadraceError], str] = {
    InvalidTopicError: "topic",
    InvalidPartitionsError: "partitions",
    PolicyViolationError: "partitions",
    InvalidReplicationFactorError: "replication",
}


def create_topic(
    admin: Admin, table: Table, options: Mapping[str, str], statement: CreateTable | CreateTableAs, source: Source
) -> None:
    """Create a topic. Raises SqlError, which points at the option that the cluster refuses."""
    config = {"cleanup.policy": "compact"} if table.is_latest else {}
    replicas = int(options["replication"]) if "replication" in options else None
    new = NewTopic(
        table.topic, partitions=int(options.get("partitions", "1")), replication_factor=replicas, config=config
    )
    try:
        admin.create_topics([new])
    except tuple(_REFUSALS) as error:
        option = statement.options.get(next(name for kind, name in _REFUSALS.items() if isinstance(error, kind)))
        token = statement.name if option is None else option.value
        raise SqlError(error.message, source, token.at, token.end) from None
