"""Fraud in card payments: each alert exactly once.

The reading order of the modules of the fraud pipeline is below. The first four modules need no Spark.

schema.py    the topics, and what their records contain
rules.py     four rules, and what they remember of a customer: pure functions
planting.py  payments with planted fraud, from a seed
scoring.py   precision and recall against the planted truth; percentiles of the latency
detector.py  the rules as a StatefulProcessor of Spark: state with TTL, and timers
traffic.py   sends the payments at a rate, and watches the alerts arrive
job.py       wires source, state, checkpoint and sink; ``headrace-pipelines run fraud``
pictures.py  the chart of a run
"""
