"""One image from one readable Dockerfile: rendered purely, built and pushed by docker or podman."""
