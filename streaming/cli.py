"""The command `shardstream`: what shardwriter has, `plan` and `cache`.

>>> main(["plan", "/data/cc3m", "--batch", "pixels:12845056", "--ranks", "8", "--workers", "4"])
0
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwriter.cli import Commands, command, positive, show, storage
from shardwriter.cli import main as run

from .cache_cli import add_cache

if TYPE_CHECKING:
    from .plan import CostBudget, FixedBatch, PixelBudget


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0, 1 for an error or a finding, 2 for wrong usage, 130 after Ctrl-C."""
    return run(arguments, [_add_plan, add_cache])


def _add_plan(commands: Commands) -> None:
    parser = command(
        commands, "plan", _plan, "show what a dataset and a way to batch come to: steps, buckets, padding, tail",
        "  shardstream plan s3://bucket/cc3m --batch pixels:224*224*256 --ranks 8 --workers 4\n"
        "  shardstream plan speech --batch cost:frames:16000*600 --mode pack --where 'seconds < 30' --plot plan.png",
    )  # fmt: skip
    parser.add_argument("url", metavar="URL", help="folder, URL or pattern of the dataset")
    parser.add_argument(
        "--batch", required=True, type=_batch, metavar="KIND",
        help="fixed:SAMPLES, pixels:MOST or cost:COLUMN:MOST, such as pixels:224*224*256",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=("bucket", "pad", "pack"),
        help="how a budget is filled (default: bucket for pixels, pad for costs)",
    )  # fmt: skip
    parser.add_argument("--longest", type=positive, metavar="N", help="pixels: scale longer sides down to N")
    parser.add_argument("--area", type=positive, metavar="N", help="pixels: scale images in buckets down to N pixels")
    parser.add_argument("--oversize", choices=("alone", "skip", "error"), help="samples over the budget by themselves")
    parser.add_argument("--where", metavar="EXPR", help="only samples such as 'width >= 256 and height >= 256'")
    parser.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, default=True, help="for training (default), or in order"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the shuffle (default: 0)")
    parser.add_argument("--ranks", type=positive, default=1, metavar="N", help="processes that train (default: 1)")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="workers of each rank (default: 1)")
    parser.add_argument("--tail", choices=("drop", "pad", "uneven"), help="default: drop with --shuffle, else pad")
    parser.add_argument("--lanes", type=positive, metavar="N", help="parallel tracks (default: by the shards)")
    parser.add_argument(
        "--sticky", action="store_true", help="lanes keep their shards over epochs, for caches of nodes"
    )
    parser.add_argument("--together", type=positive, metavar="N", help="batches of a bucket in a row (default: 8)")
    parser.add_argument("--index", metavar="URL", help="where the index is (default: beside the shards)")
    parser.add_argument("--plot", metavar="FILE", help="draw the buckets into a .png, .svg or .pdf file")


def _plan(options: argparse.Namespace) -> int:
    from .catalog import open_catalog
    from .plan import Chosen, Plan, Statistics
    from .plan.where import Where
    from .plan_report import report
    from .plot import draw, require

    batch = _budget(options)
    where = Where(options.where) if options.where else None
    if options.plot:
        require()
    together = {} if options.together is None else {"together": options.together}
    catalog = open_catalog(options.url, index=options.index, options=storage(options))
    statistics: Statistics = Chosen(catalog, where) if where else catalog
    plan = Plan.make(
        statistics, batch=batch, shuffle=options.shuffle, seed=options.seed, lanes=options.lanes, tail=options.tail,
        world_size=options.ranks, dataset=catalog.digest(), where=options.where,
        sticky=options.sticky, **together,
    )  # fmt: skip
    found = report(plan, options.workers)
    if options.plot:
        draw(plan, found, options.plot)
    show(found, options)
    return 0


def _budget(options: argparse.Namespace) -> FixedBatch | PixelBudget | CostBudget:
    """The batch that the options describe together; those that have no meaning with it are wrong usage."""
    from .plan import CostBudget, FixedBatch, PixelBudget

    kind, column, most = options.batch
    given = {name: getattr(options, name) for name in ("mode", "longest", "area", "oversize")}
    given = {name: value for name, value in given.items() if value is not None}
    allowed = {"fixed": (), "cost": ("mode", "oversize"), "pixels": tuple(given)}[kind]
    for name in given:
        if name not in allowed or (kind == "cost" and given[name] == "bucket"):
            options.parser.error(f"--{name} {given[name]} has no meaning with --batch {kind}")
    if kind == "fixed":
        return FixedBatch(most)
    if kind == "cost":
        return CostBudget(column, most, pad=given.pop("mode", "pad") == "pad", **given)
    return PixelBudget(most, **given)


def _batch(text: str) -> tuple[str, str, int | float]:
    """(kind, column or nothing, number) of fixed:N, pixels:N or cost:COLUMN:N, where N may be a product."""
    kind, _, rest = text.partition(":")
    column, _, number = rest.rpartition(":")
    factors = [part.strip() for part in number.split("*")]
    pattern = r"[0-9]{1,15}(\.[0-9]{1,15})?" if kind == "cost" else r"[0-9]{1,15}"
    fits = all(re.fullmatch(pattern, part) for part in factors)
    if kind not in ("fixed", "pixels", "cost") or (kind == "cost") != bool(column) or not fits:
        raise argparse.ArgumentTypeError(f"{text!r}: write fixed:256, pixels:224*224*256 or cost:frames:160000")
    return kind, column, math.prod(float(part) if "." in part else int(part) for part in factors)


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


if __name__ == "__main__":
    sys.exit(main())
