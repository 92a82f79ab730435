"""Datasets into sequential WebDataset tar shards, each with an index beside it."""
