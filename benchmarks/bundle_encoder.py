"""Put a pre-trained encoder into the package, so that it can be loaded by name.

    python -m benchmarks.bundle_encoder RUN/encoder.pt siamdiff-atom --data "2,127 chains and complexes of the PDB"

Written are siamdiff_min/weights/NAME.pt, which holds the weights in the precision of the file, what builds the encoder
again and where it comes from, and in tests/bundled_encoders.json its checksum and one vector, which a test compares.
"""

import argparse
import json
from pathlib import Path

from siamdiff_min import __version__, names
from siamdiff_min.encoders import weights
from siamdiff_min.files import checksum, write_file
from siamdiff_min.reading.sources import Source, bundle_path, find_structures

RECORD = Path(__file__).parent.parent / "tests" / "bundled_encoders.json"
KEPT = ("epochs", "batch_size", "lr", "lr_decay", "max_length", "valid_fraction", "seed")  # options of the run


def smallest() -> Source:
    """The bundled structure whose vector is compared."""
    return min(find_structures(bundle_path()).sources, key=lambda source: source.size)


def put(file: Path, name: str, data: str, record: Path = RECORD) -> Path:
    """Write an encoder and its entry in `record`; returns the file. Raises CheckpointError if `file` is no encoder."""
    content = weights.load_encoder_file(file)
    encoder = weights.load_encoder(file, "cpu").to(next(iter(content["state"].values())).dtype)
    config = content["config"]
    steps = content.get("steps") or json.loads((file.parent / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    about = {"method": content["method"], "data": data, "steps": steps}
    about |= {option: config[option] for option in KEPT} | {"version": __version__}
    about |= {"seq_mlp": content["seq_mlp"]} if "seq_mlp" in content else {}
    bundled = names.BUNDLED / f"{name}.pt"
    identity = [content[key] for key in names.IDENTITY]
    weights.save_encoder_file(bundled, encoder, *identity, **about)
    source = smallest()
    mean = weights.load_encoder(name, "cpu").embed(source.read()).mean
    entries = json.loads(record.read_text()) if record.exists() else {}
    entries[name] = {
        "sha256": checksum(bundled),
        "structure": source.name,
        "mean": [round(x, 6) for x in mean.tolist()],
    }
    write_file(record, (json.dumps(entries, sort_keys=True) + "\n").encode())
    return bundled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="encoder.pt of a run, beside its metrics.jsonl")
    parser.add_argument("name", help="siamdiff-atom or siamdiff-residue")
    parser.add_argument("--data", required=True, help="what it was trained on, in words")
    args = parser.parse_args()
    bundled = put(args.file, args.name, args.data)
    print(f"{bundled}: {bundled.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
