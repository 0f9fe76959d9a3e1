"""Metrics of a node for Prometheus: what is measured, the text that a scrape gets, and the HTTP server for it.

    catalog      every metric by name, with its meaning, from which docs/reference/metrics.md is generated
    histogram    counts in fixed buckets, and quantiles of the last minutes
    text         the formats: OpenMetrics 1.0, and Prometheus 0.0.4
    exposition   collects the rows of a scrape in short turns of the event loop
    server       HTTP: GET /metrics
    process      memory, processor time, descriptors, delays of the event loop
    node         all of these for one node; the applications use only ``NodeMetrics``

The data path only adds to counters and histograms, once for each batch or request. All other work is done when a
scrape arrives.
"""
