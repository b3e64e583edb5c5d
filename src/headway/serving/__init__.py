"""One server for every recipe, made from a bundle alone."""
