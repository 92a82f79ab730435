"""Write to object storage and read from it, with worker processes and a checkpoint.

    AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... python examples/s3.py s3://bucket/numbers
    python examples/s3.py s3://bucket/numbers --endpoint-url http://127.0.0.1:9000      # MinIO, Ceph, SeaweedFS

Credentials come from the usual places: AWS_ variables, ~/.aws, roles.
"""

import argparse
import json

from shardwriter import ShardWriter
from streaming import FixedBatch, StreamingDataset, StreamingLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the shards go; no dataset is there yet")
    parser.add_argument("--endpoint-url", help="the server, where it is not Amazon's")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    storage = {"endpoint_url": args.endpoint_url}

    with ShardWriter(args.url, max_samples=50, storage_options=storage) as writer:
        for number in range(400):
            writer.write({"__key__": f"{number:06d}", "cls": number})
    print(writer.report)

    dataset = StreamingDataset(args.url, batch=FixedBatch(10), shuffle=True, seed=3, storage_options=storage)
    with StreamingLoader(dataset, workers=args.workers) as loader:
        batches = iter(loader)
        seen = [number for _ in range(15) for number in next(batches)["cls"].tolist()]
        state = json.dumps(loader.state_dict())
    print(f"stopped after 15 batches; the checkpoint: {state}")

    with StreamingLoader(dataset, workers=0) as loader:
        loader.load_state_dict(json.loads(state))
        seen += [number for batch in loader for number in batch["cls"].tolist()]
    print(f"{len(seen)} samples, {len(set(seen))} different ones")


if __name__ == "__main__":
    main()
