"""Headrace as a Spark data source, and the pipelines built on it."""
