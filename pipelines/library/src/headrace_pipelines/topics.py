"""Read a topic to its present end."""

from __future__ import annotations

from collections.abc import Iterator

from headrace import Consumer, Record, TopicPartition


def records_in_topic(consumer: Consumer, topic: str) -> Iterator[list[Record]]:
    """The records that are in a topic now, in lists; the records of a partition are in the order of their offsets."""
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    while any(consumer.position(each) < ends[each] for each in partitions):
        records = [
            record
            for record in consumer.poll(1.0)
            if record.offset < ends[TopicPartition(record.topic, record.partition)]
        ]
        if records:
            yield records
