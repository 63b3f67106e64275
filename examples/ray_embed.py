"""Mean vectors of millions of structures with Ray Data: `python ray_embed.py FOLDER OUT`.

FOLDER holds PDB or mmCIF files, also packed by gzip, and may be a bucket (s3://, gs://). OUT becomes a folder of
Parquet files with the columns path, name, mean, residues, encoder and error. A file that fails has a sentence in
`error`, and an empty mean. The same script runs on a laptop and, where `ray.init()` finds one, on a cluster. It needs
`pip install "ray[data]"`.
"""

import argparse
import os

import numpy as np
import ray
import torch

import siamdiff_min


class Embed:
    """An actor: a process that loads the encoder once, and computes on one thread or one GPU."""

    def __init__(self, checkpoint: str, device: str):
        torch.set_num_threads(1)
        self.encoder = siamdiff_min.load_encoder(checkpoint, device)
        self.checkpoint = checkpoint

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        rows = {"path": [], "name": [], "mean": [], "residues": [], "encoder": [], "error": []}
        for path, content in zip(batch["path"], batch["bytes"]):
            mean, residues, error = [], 0, ""
            try:
                structure = siamdiff_min.read_structure(str(path), data=content)
                embedding = self.encoder.embed(structure, include=["mean"])
                mean, residues = embedding.mean.tolist(), len(embedding.sequence)
            except siamdiff_min.StructureError as failure:
                error = str(failure)
            name = os.path.basename(path).split(".")[0]
            for column, value in zip(rows.values(), (path, name, mean, residues, self.checkpoint, error)):
                column.append(value)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--checkpoint", default="siamdiff-residue")
    parser.add_argument("--actors", type=int, help="processes that embed (default: one for each CPU but one, or GPU)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs, one for each actor (default: none)")
    args = parser.parse_args()
    # As many actors as CPUs would leave none for reading, and the run would stand still ("backpressured").
    actors = args.actors or args.gpus or max(1, int(ray.cluster_resources()["CPU"]) - 1)
    resources = {"num_gpus": 1} if args.gpus else {"num_cpus": 1}
    files = ray.data.read_binary_files(args.folder, include_paths=True)
    vectors = files.map_batches(
        Embed,
        fn_constructor_args=(args.checkpoint, "cuda" if args.gpus else "cpu"),
        compute=ray.data.ActorPoolStrategy(size=actors),
        batch_size=64,
        **resources,
    )
    vectors.write_parquet(args.out)


if __name__ == "__main__":
    ray.init()
    main()
