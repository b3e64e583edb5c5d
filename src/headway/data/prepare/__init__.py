"""Turn a source into prepared data: read, filter, decode, split, write shards."""
