"""What a broker does for its logs while nobody asks: each kind of work has one owner, and nothing runs per partition.

retention.py   one task: old segments go, deleted files are removed
cleaners.py    log.cleaner.threads threads, shared by all directories: compaction
"""
