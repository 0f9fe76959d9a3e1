"""A Spark program that copies the topic ``orders`` to ``paid`` with traces: the driver of test_spark_traces.py."""

from __future__ import annotations

import sys

import headrace_spark

session = headrace_spark.session("traces", master="local[2]")
session.sparkContext.setLogLevel("ERROR")
options = {"headrace.bootstrap.servers": sys.argv[1], "headrace.otel.traces.enable": "true"}
source = session.read.format("headrace").options(**options, subscribe="orders", includeHeaders="true").load()
rows = source.select("key", "value", "headers")
rows.write.format("headrace").options(**options, topic="paid").mode("append").save()
session.stop()
