"""Captioning: a picture in, a sentence out."""
