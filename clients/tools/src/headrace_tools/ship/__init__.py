"""``headrace ship``: follow log files and send each line once.

A transaction has the lines of a batch and the new positions of their files, so after a crash either both are stored or
neither. ``tail.py`` reads files through growth, rotation and truncation; ``positions.py`` keeps positions in a
compacted topic; ``shipper.py`` sends lines and positions.
"""
