"""An HTTP model server that needs only a bundle, for every recipe."""
