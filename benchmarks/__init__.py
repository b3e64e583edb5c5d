"""Speed, shown: each module measures Headway side by side with its peers in one run. `python -m benchmarks NAME`."""
