"""Spark's connector for Kafka as a peer: the connector's jars, and the Spark version that they need.

The newest Spark that the connector is published for is older than the Spark that Headrace needs. Maven fetches the jars
into build/bench (bench/java/spark-kafka.xml). Pip fetches that older version of pyspark into a folder of build/bench,
which comes first in PYTHONPATH. All other packages come from this environment.
"""

from __future__ import annotations

import os
from pathlib import Path

from kafka_node import JAVA_SOURCES, fetched
from measure import PYTHON, WORK, run

PYSPARK = "4.0.0"
#: The jars of the connector that Spark itself does not contain.
_JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


def connector_jars() -> list[Path]:
    """The connector's jars; fetches missing ones."""
    libs = WORK / "spark-kafka"
    if len(list(libs.glob("*.jar"))) < len(_JARS):
        fetched(JAVA_SOURCES / "spark-kafka.xml", libs, f"-DincludeArtifactIds={','.join(_JARS)}")
    return sorted(libs.glob("*.jar"))


def python_path() -> str:
    """The value of PYTHONPATH with which ``import pyspark`` finds PYSPARK; fetches it if it is missing."""
    folder = WORK / f"pyspark-{PYSPARK}"
    if not (folder / f"pyspark-{PYSPARK}.dist-info").exists():
        run([PYTHON, "-m", "pip", "install", "-q", "--target", str(folder), f"pyspark=={PYSPARK}"], timeout_s=900)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
