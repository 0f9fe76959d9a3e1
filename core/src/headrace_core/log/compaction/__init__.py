"""Log compaction: keeps the latest record of each key (Kafka's log cleaner).

planning.py       what to clean, how far, in which order (pure)
transactions.py   which transactions were aborted, which markers may be removed (pure)
horizon.py        bits and verdicts shared by the per-record code and its plain twin
_cleaning.pyx     the offset map, and the filter of batches; _pure.py is its readable twin; backend.py selects one
windows.py        a segment read in pieces, throttled
output.py         the new segment while it is written (.cleaned)
../swap.py        replaces old segments by the new one, crash-safe; completed when the log is opened again
cleaner.py        one cleaning of one log: map, filter, swap
manager.py        the entry point: CleanerManager.plan and .clean, and the checkpoint of how far each log is clean
"""
