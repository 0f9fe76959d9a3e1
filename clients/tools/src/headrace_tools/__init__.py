"""Tools besides the clients: the command line, local clusters, benchmarks, pytest fixtures.

This file imports nothing, because the command line handles Ctrl-C only after the start of ``headrace_tools.cli.main``.
"""
