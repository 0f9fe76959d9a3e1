"""Keys go to the same partitions as with Java's Kafka client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import accumulator
from headrace.errors import InvalidConfigError
from headrace.partitioners import PriorityPartitioner, key_partition, partitioner

#: From Kafka's own test (org.apache.kafka.common.utils.UtilsTest.testMurmur2), as signed 32-bit numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_is_javas() -> None:
    for key, expected in JAVA.items():
        assert accumulator.murmur2(key) == expected & 0xFFFFFFFF


@given(key=st.binary(max_size=70))
def test_murmur2_is_that_of_other_python_clients(key: bytes) -> None:
    from aiokafka.partitioner import murmur2 as aiokafkas
    from kafka.partitioner.default import murmur2 as kafka_pythons

    assert accumulator.murmur2(key) == aiokafkas(key) & 0xFFFFFFFF
    assert accumulator.murmur2(key) == kafka_pythons(key) & 0xFFFFFFFF


@given(key=st.binary(max_size=70), count=st.integers(1, 1000))
def test_key_partition_is_that_of_aiokafka(key: bytes, count: int) -> None:
    from aiokafka.partitioner import DefaultPartitioner

    everywhere = list(range(count))
    assert key_partition(key, count) == DefaultPartitioner()(key, everywhere, everywhere)


@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=40), skip=st.integers(0, 10))
def test_arrow_keys_go_where_single_keys_go(keys: list[bytes | None], skip: int) -> None:
    import struct

    import pyarrow as pa

    array = pa.array(keys, pa.large_binary())[skip:]
    validity, offsets, data = array.buffers()
    out = bytearray(4 * len(array))
    accumulator.key_partitions(
        offsets.address if offsets else 0,
        data.address if data else 0,
        validity.address if validity else 0,
        array.offset,
        len(array),
        7,
        out,
    )
    expected = [-1 if key is None else key_partition(key, 7) for key in keys[skip:]]
    assert list(struct.unpack(f"={len(array)}i", out)) == expected


def test_priority_partitioner_keeps_partition_0_for_urgent_keys() -> None:
    choose = PriorityPartitioner().partition
    assert choose("t", b"PRIORITY_HIGH", b"v", 6) == 0
    assert choose("t", b"PRIORITY_HIGH-42", b"v", 6) == 0
    others = [choose("t", b"key-%d" % number, b"v", 6) for number in range(1_000)]
    assert set(others) == {1, 2, 3, 4, 5}
    assert choose("t", b"key-1", None, 6) == 1 + key_partition(b"key-1", 5)
    assert choose("t", None, b"v", 6) != 0
    assert choose("t", b"anything", b"v", 1) == 0


def test_partitioner_may_be_a_class_an_object_or_a_function() -> None:
    def always_three(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        return 3

    for given_as in (PriorityPartitioner, PriorityPartitioner(), always_three):
        call = partitioner(given_as)
        assert call is not None
        assert isinstance(call("t", b"PRIORITY_HIGH", b"", 6), int)
    assert partitioner(None) is None
    with pytest.raises(InvalidConfigError, match=r"partitioner\.class"):
        partitioner(5)
