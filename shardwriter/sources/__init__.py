"""Datasets to convert: small descriptions that give records when iterated.

>>> from shardwriter import sources
>>> sources.folder("photos", fields=["jpg", "txt"])
>>> sources.table("cc3m/train.tsv", columns=["txt", "jpg"], root="cc3m/images")

Any other iterable of Record, that gives the same records each time, is a source too.
"""

from .base import FileRef, Record, Source
from .folders import folder
from .tables import table

__all__ = ["FileRef", "Record", "Source", "folder", "table"]
