"""Tools beside the clients: the command line, local clusters, benchmarks, pytest fixtures.

This file imports nothing: the command line handles Ctrl-C only from ``headrace_tools.cli.main`` on.
"""
