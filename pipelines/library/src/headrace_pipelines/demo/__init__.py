"""The demo job: a year of departures through the log, the SDK and Spark. ``python -m headrace_pipelines.demo``."""
