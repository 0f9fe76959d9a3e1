"""Pipelines on Headrace and Spark, one package each, and their tools.

expectations.py   quality rules for rows, counted per rule
demo/             a year of departures through the log, the SDK and Spark, with a broker failure: ``make demo``
"""
