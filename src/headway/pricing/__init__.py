"""What a job costs: a dated table, what is billed, how long it takes, what that comes to. Offline, nothing heavy."""
