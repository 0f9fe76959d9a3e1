"""an example to change: plausible payments from the topic skeleton to skeleton-clean, all others to dead letters

rows.py            what a row is, and which rows are good: pure functions of DataFrames
job.py             wires source, rows, sink and checkpoint
test_skeleton.py   tests of both
"""
