"""Translation: a sentence in, the same in another language out."""
