"""Shards and index files by URL: folders, object storage, and everything else that fsspec knows.

>>> store = open_store("s3://bucket/cc3m", {"region": "eu-west-1"})       # touches nothing yet
>>> store
<store s3://bucket/cc3m>
>>> split_url("s3://bucket/cc3m/x-000000.tar")
('s3://bucket/cc3m', 'x-000000.tar')

A store is a root URL and a few options: cheap to make, safe to share between threads, to pickle and to carry through
a fork.  Clients are made on first use in each process.  Errors are StoreError and its kinds; none shows a credential.
"""

from .base import ObjectInfo, Store
from .contents import contents
from .forks import ForkedStoreWarning
from .opening import open_store
from .urls import join_url, split_url

__all__ = ["ForkedStoreWarning", "ObjectInfo", "Store", "contents", "join_url", "open_store", "split_url"]
