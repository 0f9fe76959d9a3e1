"""Settings for Kafka's throughput. The best figure of a run counts as the peer's figure (`Samples.best`)."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """How a Kafka producer forms batches. ``name`` follows the ``@`` in sample names."""

    name: str
    batch_bytes: int
    linger_ms: int
    buffer_bytes: int = 32 * MIB

    @property
    def properties(self) -> list[str]:
        return [
            f"batch.size={self.batch_bytes}",
            f"linger.ms={self.linger_ms}",
            f"buffer.memory={self.buffer_bytes}",
        ]


#: Kafka's defaults first. The buffer grows with the largest batches: 32 MiB hold 32 batches.
SETTINGS = (
    Setting("default", 16 * KIB, linger_ms=5),
    Setting("batch-128k", 128 * KIB, linger_ms=10),
    Setting("batch-1m", MIB, linger_ms=10, buffer_bytes=256 * MIB),
)

#: For brokers and Java clients: touch the heap's pages at the start, before the clock runs.
PRE_TOUCH = "-XX:+AlwaysPreTouch"

#: Warm-up time of the Java client (one process per run) before its first figure (seconds).
WARM_UP_S = 60.0
SMOKE_WARM_UP_S = 2.0


def turns(number: int) -> tuple[Setting, ...]:
    """The settings in the order of round ``number``: each setting is first, second and last equally often."""
    first = number % len(SETTINGS)
    return SETTINGS[first:] + SETTINGS[:first]
