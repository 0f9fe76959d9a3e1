"""A rolling restart of a local cluster, one node after the other.

``rules`` decides, from facts: what comes next, what stands against it, whether all is well again. ``restarting`` looks,
waits and restarts.
"""
