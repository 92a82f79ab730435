"""Write samples that a program makes, one by one, with a number of our own for each in the index.

python examples/write_shards.py out
"""

import argparse

import numpy as np

from shardwriter import ShardWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder or URL for the shards; it holds no dataset yet")
    parser.add_argument("--samples", type=int, default=200)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    with ShardWriter(args.out, max_samples=50) as writer:
        for number in range(args.samples):
            caption = f"picture number {number}"
            sample = {
                "__key__": f"{number:06d}",
                "jpg": rng.integers(0, 256, (48, 64, 3), dtype=np.uint8),  # arrays are encoded, bytes stay as they are
                "txt": caption,
                "cls": number % 10,
                "json": {"source": "random", "number": number},
            }
            writer.write(sample, columns={"words": len(caption.split())})
    print(writer.report)


if __name__ == "__main__":
    main()
