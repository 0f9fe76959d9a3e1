"""Read a topic while another process still writes to it: `headrace bench consume` reads only what a topic has.

    reader.py BOOTSTRAP TOPIC arrow|object RECORDS

Prints one JSON object when RECORDS records have arrived. Every CRC is checked, and "verified" says that the offsets of
each partition have no gap.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

from headrace import Consumer, TopicPartition, tune_memory

STALL_S = 30.0


def main(bootstrap: str, topic: str, api: str, wanted: int) -> None:
    tune_memory()
    seen: Counter[int] = Counter()
    with Consumer({"bootstrap.servers": bootstrap, "check.crcs": True, "auto.offset.reset": "earliest"}) as consumer:
        partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        begun = last = time.monotonic()
        while seen.total() < wanted and time.monotonic() < last + STALL_S:
            if api == "arrow":
                table = consumer.fetch_arrow(timeout=1.0)
                for batch in table.to_batches():
                    seen.update({batch["partition"][0].as_py(): batch.num_rows})
                count = table.num_rows
            else:
                records = consumer.poll(timeout=1.0)
                seen.update(record.partition for record in records)
                count = len(records)
            if count:
                last = time.monotonic()
        positions = {each.partition: consumer.position(each) for each in partitions}
    whole = all(positions[partition] == count for partition, count in seen.items())
    rate = round(seen.total() / (last - begun))
    print(json.dumps({"records_per_s": rate, "verified": whole and seen.total() == wanted}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
