"""Benchmarks: each module measures Headway and other tools in one run. `python -m benchmarks NAME`."""
