"""Process 1 on each node: topology, rendezvous, rank processes, restart policy, log pipeline. Never imports torch."""
