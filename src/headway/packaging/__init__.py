"""What is sent to a target: code archive, Headway's own wheel, and a container image from one readable Dockerfile."""
