"""Spark's part of the comparison: runs bench/spark.py in a separate process (it keeps a JVM) and adds its samples to
ours. Spark's connector for Kafka runs the same query over the same number of records in another process.

    spark_side.py [--rounds 3] [--only source|sink|kafka] [--save]      Spark's part alone; --save writes bench/results
"""

from __future__ import annotations

import argparse
import json
import sys

from kafka_connector import connector_jars, python_path
from kafka_node import KafkaNode
from kafka_settings import SETTINGS
from measure import PYTHON, ROOT, WORK, Samples, emit, machine, run, save, table

from headrace_spark import find_java

RECORDS = 4_999_998  #: A multiple of the number of partitions.


def measure(samples: Samples, rounds: int, only: str | None = None) -> None:
    """Add the samples of bench/spark.py and, unless ``only`` names one of its parts, of Kafka's connector."""
    if only != "kafka":
        command = [PYTHON, str(ROOT / "bench" / "spark.py"), "--rounds", str(rounds), "--records", str(RECORDS)]
        _add(samples, [*command, *(["--only", only] if only else [])])
    if only in (None, "kafka"):
        connector(samples, rounds)


def connector(samples: Samples, rounds: int) -> None:
    """Fill a topic of Kafka, and read it with Spark's connector for Kafka."""
    environment = {"JAVA_HOME": str(find_java()), "PYTHONPATH": python_path()}
    jars = map(str, connector_jars())
    with KafkaNode(WORK / "kafka-spark", warm_up_s=0) as kafka:
        kafka.create_topic("spark")
        kafka.producer_perf("spark", RECORDS, setting=SETTINGS[-1])
        script = str(ROOT / "bench" / "spark_query.py")
        _add(samples, [PYTHON, script, kafka.bootstrap, "spark", str(RECORDS), str(rounds), *jars], environment)


def _add(samples: Samples, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command that prints JSON objects {"sample", "value", "unit"}, one per line."""
    for line in run(command, timeout_s=1200, env=environment).splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if "sample" in found:
                samples.add(found["sample"], found["value"], found["unit"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("source", "sink", "kafka"))
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    samples = Samples()
    emit(machine=machine())
    measure(samples, asked.rounds, asked.only)
    print(table(samples))
    if asked.save:
        print(save(samples, what=f"spark-{asked.only}" if asked.only else "spark", extra={"rounds": asked.rounds}))
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
