"""Containers on this machine: one a node, through docker's or podman's own command."""
