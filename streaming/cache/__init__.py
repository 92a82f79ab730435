"""Where chunks of remote shards are kept: on a local disk, in memory, in a shared store nearer than the origin.

>>> cache = Cache(disk="/ssd/cache", disk_bytes="500GB", shared="s3://near/cache")
>>> train = StreamingDataset("s3://bucket/cc3m", cache=cache, batch=FixedBatch(256, size=224), shuffle=True)

Looked for in this order: memory, disk, shared, origin.  What is fetched is kept where there is room, and what is kept
is not thrown out for what comes later in the same epoch: an epoch reads each chunk once, so whatever is kept is used in
the next, and the share of the data that fits is the share that is not fetched again.
"""

from .config import Cache

__all__ = ["Cache"]
