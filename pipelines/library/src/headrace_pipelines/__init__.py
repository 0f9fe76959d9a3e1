"""Pipelines on Headrace and Spark, one package each, and their tools. ``headrace-pipelines list`` shows the pipelines.

expectations.py   quality rules for rows, counted per rule
clickstream/      a real web log: requests, visits, top pages, funnel, conversions
demo/             a year of departures through the log, the SDK and Spark, with a broker failure: ``make demo``
"""
