"""Background work of a broker on its logs: retention, compaction, scrubbing, expiry of producers.

    upkeep.py      all of it, for the composition root
    retention.py   one task: removes old segments and deleted files
    cleaners.py    log.cleaner.threads threads, shared by all directories: compaction

Each kind of work has one owner; no task or thread belongs to a single partition.
"""
