"""Download data sets and unpack archives."""
