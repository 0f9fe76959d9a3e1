"""Log aggregation: the log files of forty hosts, shipped exactly once, as error rates, alerts and a searchable archive.

Read the modules in this order:

    schema.py      topics, and the rows in them
    hosts.py       forty hosts that write a real web log, rotate their files, and have a planted outage
    shipping.py    the shipper, as a process
    lines.py       lines as requests or dead letters
    rates.py       error rates by window and host, and alerts
    archive.py     Parquet by day with retention, each batch once; search with DuckDB
    job.py         ``headrace-pipelines run logs``
"""
