"""The command `shardstream`, as far as it writes and checks datasets.

>>> main(["inspect", "/data/cc3m"])
0

`streaming.cli` adds the commands that plan and read.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .errors import ShardError

_UNITS: Final = {
    "": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip
_INTERRUPTED: Final = 130


Commands = Any
"""What add_subparsers returns; argparse gives it no public name."""


def main(arguments: Sequence[str] | None = None, more: Sequence[Callable[[Commands], None]] = ()) -> int:
    """Run the command; its exit code: 0, 1 for an error or a finding, 2 for wrong usage, 130 after Ctrl-C.

    `more` are functions that add commands of other packages (see `command`).
    """
    options = _parser(more).parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except ShardError as error:
        print(f"shardstream: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader has seen enough (`| head`).  What is left must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("shardstream: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code


def _parser(more: Sequence[Callable[[Commands], None]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shardstream", description="WebDataset shards, and training on them.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_write, _add_index, _add_verify, _add_inspect, *more):
        add(commands)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    with contextlib.suppress(PackageNotFoundError):
        return f"shardstream {version('shardstream')}"
    return "shardstream, not installed"


def command(commands: Commands, name: str, run: Any, text: str, example: str) -> argparse.ArgumentParser:
    """A command that calls run(options), which gives the exit code, with the options that all have."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    group = parser.add_argument_group("object storage")
    group.add_argument("--endpoint-url", metavar="URL", help="the server, where it is not the cloud's own")
    group.add_argument("--anon", action="store_true", help="no credentials: the data is public")
    return parser


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=positive, metavar="N", help="processes (default: one for each CPU)")


def _add_write(commands: Commands) -> None:
    parser = command(
        commands,
        "write",
        _write,
        "turn a dataset into shards with an index",
        "  shardstream write --source folder --input photos s3://bucket/photos\n"
        "  shardstream write --source table --input train.tsv --columns txt,jpg --root images out\n"
        "  shardstream write --source table --input list.csv --columns filepath=jpg,caption=txt out",
    )
    parser.add_argument("out", metavar="OUT", help="folder or URL for the shards")
    parser.add_argument("--source", required=True, choices=("folder", "table"), help="what --input is")
    parser.add_argument("--input", required=True, metavar="PATH", help="the folder, or the .csv, .tsv or .jsonl file")
    parser.add_argument("--fields", type=_names, metavar="A,B", help="folder: take these fields only, all required")
    parser.add_argument(
        "--columns", type=_columns, metavar="A,B",
        help="table: the field of each column in order ('-' passes one over); with a header COLUMN=FIELD,COLUMN=FIELD",
    )  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="table: folder that paths start from (default: the table's own)")
    parser.add_argument("--key", metavar="COLUMN", help="table: column with the keys (default: row numbers)")
    parser.add_argument("--delimiter", metavar="C", help="table: what separates columns (default: by the file's name)")
    parser.add_argument("--paths", type=_names, metavar="A,B", help="table: fields whose columns hold paths")
    parser.add_argument(
        "--max-bytes",
        type=_size,
        metavar="SIZE",
        default="128MiB",
        help="largest shard, such as 500MB (default: 128MiB)",
    )
    parser.add_argument(
        "--max-samples", type=positive, metavar="N", help="most samples in a shard (default: any number)"
    )
    parser.add_argument(
        "--prefix", type=_prefix, default="shard", metavar="NAME", help="start of shard names (default: shard)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a dataset that was not finished")
    _add_workers(parser)


def _add_index(commands: Commands) -> None:
    parser = command(
        commands, "index", _index, "make the index of shards that are there already",
        "  shardstream index /data/laion\n  shardstream index s3://public/laion --anon --index /data/laion-index",
    )  # fmt: skip
    parser.add_argument("url", metavar="URL", help="folder or URL with the shards")
    parser.add_argument("--index", metavar="URL", help="where the index goes (default: beside the shards)")
    parser.add_argument(
        "--salvage", action="store_true", help="index the whole samples of damaged shards, and report the rest"
    )
    parser.add_argument(
        "--reuse", action="store_true", help="keep what is there of shards that still have the same size"
    )
    _add_workers(parser)


def _add_verify(commands: Commands) -> None:
    parser = command(
        commands, "verify", _verify, "read every byte and compare it with the index; exit code 1 on errors",
        "  shardstream verify s3://bucket/cc3m --workers 16",
    )  # fmt: skip
    parser.add_argument("url", metavar="URL", help="folder or URL with the shards")
    parser.add_argument("--index", metavar="URL", help="where the index is (default: beside the shards)")
    _add_workers(parser)


def _add_inspect(commands: Commands) -> None:
    parser = command(
        commands, "inspect", _inspect, "show what a dataset holds, or one sample of it",
        "  shardstream inspect s3://bucket/cc3m\n  shardstream inspect s3://bucket/cc3m 000000017",
    )  # fmt: skip
    parser.add_argument("url", metavar="URL", help="folder or URL with the dataset")
    parser.add_argument("key", metavar="KEY", nargs="?", help="the sample to show (default: the first three)")
    parser.add_argument("--index", metavar="URL", help="where the index is (default: beside the shards)")


def _write(options: argparse.Namespace) -> int:
    from .conversion import convert
    from .sources import folder, table

    if options.source == "folder":
        _refuse(options, "folder", "columns", "root", "key", "delimiter", "paths")
        source: Any = folder(options.input, fields=options.fields)
    else:
        _refuse(options, "table", "fields")
        if options.columns is None:
            options.parser.error("--source table needs --columns, for example --columns txt,jpg")
        # Without a header columns have positions.
        key = int(options.key) if isinstance(options.columns, list) and (options.key or "").isdigit() else options.key
        source = table(
            options.input, columns=options.columns, root=options.root, key=key, delimiter=options.delimiter,
            paths=options.paths,
        )  # fmt: skip
    report = convert(
        source, options.out, workers=options.workers, max_bytes=options.max_bytes, max_samples=options.max_samples,
        prefix=options.prefix, resume=options.resume, storage_options=storage(options),
    )  # fmt: skip
    show(report, options)
    return 0


def _index(options: argparse.Namespace) -> int:
    from .index import index_shards

    report = index_shards(
        options.url, index=options.index, workers=options.workers, reuse=options.reuse,
        on_error="salvage" if options.salvage else "raise", storage_options=storage(options),
    )  # fmt: skip
    show(report, options)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from .verify import verify_shards

    report = verify_shards(options.url, index=options.index, workers=options.workers, storage_options=storage(options))
    show(report, options, ok=report.ok)
    return 0 if report.ok else 1


def _inspect(options: argparse.Namespace) -> int:
    from .inspection import describe, describe_sample

    if options.key is None:
        show(describe(options.url, index=options.index, storage_options=storage(options)), options)
    else:
        found = describe_sample(options.url, options.key, index=options.index, storage_options=storage(options))
        show(found, options)
    return 0


def show(report: Any, options: argparse.Namespace, **more: Any) -> None:
    """Print a dataclass: as it prints itself or, with --json, all of its fields and some more."""
    print(json.dumps(dataclasses.asdict(report) | more, default=list) if options.json else report)


def storage(options: argparse.Namespace) -> Mapping[str, Any]:
    """What the options say about object storage."""
    given = {"endpoint_url": options.endpoint_url, "anon": options.anon or None}
    return {name: value for name, value in given.items() if value is not None}


def _refuse(options: argparse.Namespace, source: str, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            options.parser.error(f"--{name} has no meaning with --source {source}")


def positive(text: str) -> int:
    """A whole number from 1, as an option's type."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([A-Za-z]*)", text)
    if match is None or match[2].lower() not in _UNITS or float(match[1]) * _UNITS[match[2].lower()] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write for example 128MiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _prefix(text: str) -> str:
    from .destination import check_prefix

    try:
        return check_prefix(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(text: str) -> list[str | None] | dict[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if not any("=" in part for part in parts):
        return [None if part in ("", "-") else part for part in parts]
    pairs = [part.rpartition("=") for part in parts]
    if not all(column and field for column, _, field in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} mixes positions and COLUMN=FIELD")
    return {column: field for column, _, field in pairs}


if __name__ == "__main__":
    sys.exit(main())
