"""The run directory: layout, lease, records, status and index.

Its file names are here, except those inside a checkpoint (`training/checkpoint/`) and below files/
(`supervisor/file_sync.py`).
"""
