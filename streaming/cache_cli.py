"""The command `shardstream cache`: what a cache folder holds, and removing it.

>>> main(["cache", "--stats", "/ssd/cache"])
0
"""

from __future__ import annotations

import argparse

from shardwriter.cli import Commands, show


def add_cache(commands: Commands) -> None:
    """Add the command to those of `shardstream`."""
    text = "show what the disk tier of a cache holds, or remove it"
    parser: argparse.ArgumentParser = commands.add_parser(
        "cache",
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="example:\n  shardstream cache --stats /ssd/cache\n  shardstream cache --clear /ssd/cache",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_cache, parser=parser)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--stats", metavar="DIR", help="list the datasets in the folder, with entries, bytes, last use")
    what.add_argument("--clear", metavar="DIR", help="remove the datasets that no process uses now; other files stay")


def _cache(options: argparse.Namespace) -> int:
    from .cache.contents import clear, describe

    show(describe(options.stats) if options.stats is not None else clear(options.clear), options)
    return 0
