"""The price of a job: dated price table, quote per hour, estimated duration. Offline, imports nothing heavy."""
