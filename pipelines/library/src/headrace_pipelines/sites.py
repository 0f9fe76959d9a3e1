"""A site is the place where a pipeline runs: it has the options of sources and sinks for one cluster and one directory.

    def start(spark, site):
        clicks = spark.readStream.format("headrace").options(**site.read("clicks", query="copy")).load()
        copies = clicks.select("key", "value").writeStream.format("headrace")
        return copies.options(**site.write("copies", query="copy")).trigger(**site.trigger).start()

``headrace-pipelines run`` and the harness for tests (testing.py) call the same function with different sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .access import Access
from .lags import group_of


@dataclass(frozen=True, slots=True)
class Site:
    """``directory`` contains the checkpoints. ``prefix`` begins the names of all topics, so that tests do not share
    topics. ``ends``: the queries end at the present end of their topics; otherwise they run until they are stopped.
    ``checkpoints``: the URL under which the queries have their checkpoints, if they are not in ``directory``. ``keys``:
    client keys for TLS and login."""

    pipeline: str
    bootstrap_servers: str
    directory: Path
    prefix: str = ""
    ends: bool = False
    checkpoints: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def access(self) -> Access:
        """The keys with which clients, the source and the sink reach the cluster."""
        return Access(self.bootstrap_servers, self.keys)

    def topic(self, name: str) -> str:
        """The topic's name in the cluster."""
        return self.prefix + name

    def read_all(self, *names: str) -> dict[str, str]:
        """Options of a batch (``spark.read``) with all committed records of topics, with headers."""
        return {
            **self.access.source(),
            "subscribe": ",".join(map(self.topic, names)),
            "startingOffsets": "earliest",
            "isolation.level": "read_committed",
            "includeHeaders": "true",
        }

    def read(self, *names: str, query: str) -> dict[str, str]:
        """Options of a stream that reads topics from their start, with headers. The stream commits its progress to a
        consumer group, whose lag is the lag of the stream."""
        return {**self.read_all(*names), "headrace.group.id": group_of(self.prefix + self.pipeline, query)}

    def write(self, name: str | None = None, *, query: str) -> dict[str, str]:
        """Options of a stream that writes exactly once; without ``name`` the column ``topic`` names the topics."""
        topic = {} if name is None else {"topic": self.topic(name)}
        return {
            **self.access.sink(),
            "headrace.delivery": "exactly-once",
            **self.query(query),
            **topic,
        }

    def query(self, name: str) -> dict[str, str]:
        """Options of a stream that writes to a sink other than topics, such as a lake table: the query's name and its
        checkpoint."""
        return {"queryName": name, "checkpointLocation": f"{self.checkpoints or self.directory / 'checkpoints'}/{name}"}

    @property
    def trigger(self) -> dict[str, Any]:
        """Arguments of ``trigger``."""
        return {"availableNow": True} if self.ends else {"processingTime": "1 second"}
