"""The events that must happen in a long run of schedules of transactions; without them the run proves little."""

from __future__ import annotations

from tests.simulation.txn_plan import KINDS

#: (category, name), as they are counted in the world.
TRANSACTIONS_LISTED: tuple[tuple[str, str], ...] = (
    *(("fault", kind) for kind in KINDS),
    ("clocks", "brokers are days off"),
    ("clocks", "coordinators are days off"),
    ("check", "state machine compared with its log"),
    ("coordinator", "life ended by the controllers"),
    ("coordinator", "stopped cleanly"),
    ("end refused", "PRODUCER_FENCED"),
    ("end refused", "TRANSACTION_ABORTABLE"),
    ("event", "ReplicaTruncated"),
    *(
        ("hand-over", state)
        for state in (
            "COMPLETE_ABORT",
            "COMPLETE_COMMIT",
            "EMPTY",
            "ONGOING",
            "PREPARED",
            "PREPARE_ABORT",
            "PREPARE_COMMIT",
        )
    ),
    ("link", "ends_late"),
    ("link", "marker held back"),
    ("link", "markers doubled"),
    ("link", "markers late"),
    ("link", "markers lost"),
    ("link", "produce_late"),
    ("link", "verifications late"),
    ("link", "verifications lost"),
    ("log", "append late"),
    ("log", "uncommitted records lost"),
    ("marker", "without a batch"),
    ("producer", "ends: PRODUCER_FENCED"),
    ("read", "held back by a transaction"),
    ("record", "tombstone"),
    ("refusal", "CONCURRENT_TRANSACTIONS"),
    ("refusal", "FENCED_SHARD_EPOCH"),
    ("refusal", "NOT_COORDINATOR"),
    ("refusal", "UNEXPECTED_LOG_END"),
    ("send failed", "INVALID_PRODUCER_EPOCH"),
    ("transaction", "aborted"),
    ("transaction", "aborted by an operator"),
    ("transaction", "batch waits for its coordinator"),
    ("transaction", "committed"),
    ("transaction", "completed elsewhere"),
    ("transaction", "epochs ran out"),
    ("transaction", "prepared"),
    ("transaction", "prepared one kept"),
    ("transaction", "timed out"),
)
