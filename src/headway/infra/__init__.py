"""Terraform for what the targets need in a cloud. Printed, never applied."""
