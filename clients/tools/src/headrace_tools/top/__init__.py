"""`headrace top`: the throughput of a cluster, by broker, topic and group.

frames.py     two samples make a frame: rates, lags, leaders, partitions with problems; pure
sampling.py   the requests, through Admin
"""
