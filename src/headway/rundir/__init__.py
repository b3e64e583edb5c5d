"""The run directory: layout, lease, records, status and index. The only code that knows its file names."""
