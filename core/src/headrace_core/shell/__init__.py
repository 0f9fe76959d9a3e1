"""The metadata shell: reads the files of a metadata log without a controller (``headrace metadata``).

    reading.py   record by record, through snapshots and segments; damage is reported and skipped
    control.py   Raft's records between the decisions
    tree.py      the resulting state, as directories and files

Takes no lock and writes nothing: a running controller's directory may be read. Needs msgspec, as services do.
"""
