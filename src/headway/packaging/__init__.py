"""Package what a target runs: a code archive, Headway's own wheel, and a container image from one Dockerfile."""
