"""The metadata shell: reads the files of a metadata log without a controller (``headrace metadata``).

    reading.py   record by record, through snapshots and segments; damage is reported and skipped
    control.py   the control records of Raft
    tree.py      the cluster's state after all records, as directories and files

The shell takes no lock and writes no file, so it can read the directory of a running controller. The shell needs
msgspec, as services do.
"""
