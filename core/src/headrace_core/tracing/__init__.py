"""Traces with OpenTelemetry: W3C Trace Context in record headers (``context.py``), the spans of nodes (``node.py``).

Nothing here imports OpenTelemetry before a node or a client turns its traces on.
"""
