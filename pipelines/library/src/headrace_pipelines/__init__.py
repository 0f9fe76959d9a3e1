"""Pipelines on Headrace and Spark: one package each.

demo/   a year of departures through the log, the SDK and Spark, and a broker that dies meanwhile: ``make demo``
"""
