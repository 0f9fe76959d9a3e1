"""Pipelines on Headrace and Spark, one package each, and their tools. ``headrace-pipelines list`` shows the pipelines.

expectations.py   quality rules for rows, counted per rule
json_parsing.py   JSON against a schema: typed data, or the reason
dead_letters.py   bad records as records of a dead-letter topic
replays.py        dead letters, sent to their source topics again
topics.py         the records of a topic
tables/           lake tables in Delta Lake and Iceberg, each batch of a stream exactly once
runs.py           the run of a pipeline in its directory; checkpoints.py and lags.py show the progress of its queries
local_spark.py    the Spark session of a run
sites.py          options of sources and sinks for one cluster and one directory; jobs.py runs ``start(spark, site)``
testing.py        a harness for tests of streaming jobs, with crash_points.py and the fixtures of pytest_plugin.py
skeleton/         the package that ``headrace-pipelines new`` copies
clickstream/      a real web log: requests, visits, top pages, funnel, conversions
fraud/            payments with planted fraud: alerts exactly once, precision and recall
cdc/              change data capture: tables of PostgreSQL, by Debezium, as lake tables
lake/             flights, weather and planes: bronze, silver and gold, in both formats of lake tables
demo/             a year of departures through the log, the SDK and Spark, with a broker failure: ``make demo``
"""
