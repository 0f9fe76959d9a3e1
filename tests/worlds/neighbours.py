"""A client without a quota that runs beside a limited client, and measures the latency of its own records."""

from __future__ import annotations

import threading
import time

from headrace import LocalCluster, Producer


class Neighbour(threading.Thread):
    """Sends a small record to the topic "beside" every 20 ms until the block ends."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self._server = cluster.bootstrap_servers
        self._over = threading.Event()
        self.latencies_s: list[float] = []
        self.throttled_ms = 0.0

    def run(self) -> None:
        with Producer(bootstrap_servers=self._server, client_id="neighbour") as producer:
            while not self._over.wait(0.02):
                sent = time.monotonic()
                producer.send("beside", b"x").result(60)
                self.latencies_s.append(time.monotonic() - sent)
            self.throttled_ms = producer.metrics()["produce-throttle-time-max"]

    def latency_s(self, part: float) -> float:
        """The quantile of the latencies: this share of the records does not exceed it."""
        return sorted(self.latencies_s)[int(len(self.latencies_s) * part)]

    def __enter__(self) -> Neighbour:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
