"""The settings under which Kafka's throughput is measured. The best figure of a run is the peer's (`Samples.best`)."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """How a producer of Kafka's forms batches. ``name`` follows the ``@`` in the names of samples."""

    name: str
    batch_bytes: int
    linger_ms: int
    buffer_bytes: int = 32 * MIB

    @property
    def properties(self) -> list[str]:
        """For Kafka's Java tools: key=value."""
        return [
            f"batch.size={self.batch_bytes}",
            f"linger.ms={self.linger_ms}",
            f"buffer.memory={self.buffer_bytes}",
        ]


#: Kafka's defaults first. The buffer grows with the largest batches: 32 MiB hold 32 of them.
SETTINGS = (
    Setting("default", 16 * KIB, linger_ms=5),
    Setting("batch-128k", 128 * KIB, linger_ms=10),
    Setting("batch-1m", MIB, linger_ms=10, buffer_bytes=256 * MIB),
)

#: Of brokers and Java clients: the heap's pages are touched at the start, not while the clock runs.
PRE_TOUCH = "-XX:+AlwaysPreTouch"

#: How long the Java client (one process for a whole run) works before its first figure counts.
WARM_UP_S = 60.0
SMOKE_WARM_UP_S = 2.0


def turns(number: int) -> tuple[Setting, ...]:
    """The settings in the order of round ``number``: each is first, second and last equally often."""
    first = number % len(SETTINGS)
    return SETTINGS[first:] + SETTINGS[:first]
