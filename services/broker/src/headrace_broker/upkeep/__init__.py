"""Background work of a broker on its logs.

    upkeep.py      all of it, for the composition root
    retention.py   one task: removes old segments and deleted files
    cleaners.py    log.cleaner.threads threads, shared by all directories: compaction

Each kind of work has one owner; nothing runs per partition.
"""
