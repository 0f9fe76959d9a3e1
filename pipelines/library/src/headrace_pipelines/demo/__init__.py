"""The demo job: a year of flight departures goes through the log, the SDK and Spark. ``python -m
headrace_pipelines.demo``."""
