"""Hypothesis strategies for records and batches. Only tests import this module, because it needs hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from ..records import Compression
from ..types import TimestampType

_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_bytes = st.one_of(st.binary(max_size=20), st.integers(0, 300).map(lambda size: b"x" * size))
headers = st.lists(st.tuples(_names, st.none() | _bytes), max_size=4)
#: Timestamps of producers' records: most are close together, some are arbitrary, and some are -1 (none).
timestamps = st.one_of(st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(0, 2**62), st.just(-1))
#: Records as (timestamp_ms, key, value, headers)
records = st.tuples(timestamps, st.none() | _bytes, st.none() | _bytes, headers)
record_lists = st.lists(records, min_size=1, max_size=40)
compressions = st.sampled_from(Compression)
#: Keyword arguments of encode_batch, except the compression.
batch_fields = st.fixed_dictionaries(
    {},
    optional={
        "base_offset": st.integers(0, 2**62),
        "leader_epoch": st.integers(-1, 2**31 - 1),
        "timestamp_type": st.sampled_from(TimestampType),
        "producer_id": st.integers(-1, 2**63 - 1),
        "producer_epoch": st.integers(-1, 2**15 - 1),
        "base_sequence": st.integers(-1, 2**31 - 1),
        "transactional": st.booleans(),
        "control": st.booleans(),
    },
)
