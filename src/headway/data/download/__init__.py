"""Fetch data sets and unpack archives."""
