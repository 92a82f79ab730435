"""Shards into training."""
