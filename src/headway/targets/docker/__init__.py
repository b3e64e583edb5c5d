"""The docker target: one container per node on this machine, through the docker or podman command."""
