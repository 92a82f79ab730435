"""Read shards that another tool wrote, as they are: index them once, then stream.

    python examples/read_existing_webdataset.py '/data/laion/{00000..00331}.tar' --fields 'jpg;png' txt

Without index_shards the index is made on first use, beside the shards where the folder can be written, else in the
user's cache folder.  Made by hand it can lie anywhere: --index.
"""

import argparse

from shardwriter import index_shards
from streaming import FixedBatch, StreamingDataset, StreamingLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="folder, URL or pattern")
    parser.add_argument("--index", help="folder or URL for the index of a folder of shards")
    parser.add_argument("--fields", nargs="+", default=["jpg;png", "txt"], help="'jpg;png': the first that is there")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    if args.index:
        print(index_shards(args.shards, index=args.index, reuse=True))
    dataset = StreamingDataset(
        args.shards, index=args.index, fields=args.fields, batch=FixedBatch(args.batch, size=64), shuffle=True, seed=1
    )
    print(dataset.plan)
    with StreamingLoader(dataset, workers=args.workers) as loader:
        for step, batch in enumerate(loader):
            if step == 0:
                shapes = {name: list(getattr(value, "shape", [len(value)])) for name, value in batch.items()}
                print("first batch:", {name: shape for name, shape in shapes.items() if not name.startswith("__")})
        print(f"{len(loader)} batches")


if __name__ == "__main__":
    main()
