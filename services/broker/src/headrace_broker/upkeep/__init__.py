"""What a broker does for its logs while nobody asks.

    upkeep.py      all of it, for the composition root
    retention.py   one task: old segments go, deleted files are removed
    cleaners.py    log.cleaner.threads threads, shared by all directories: compaction

Each kind of work has one owner; nothing runs per partition.
"""
