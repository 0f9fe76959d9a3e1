"""Pipelines on Headrace and Spark, one package each.

demo/   a year of departures through the log, the SDK and Spark, with a broker failure: ``make demo``
"""
