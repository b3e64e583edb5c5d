"""What a job costs: dated price table, quote per hour, estimated duration. Offline, imports nothing heavy."""
