"""What the residue features of a frozen encoder tell a linear map, on families that it was not fitted to.

    python -m benchmarks.probe DATA ENCODER... [--valid] [--out runs/probe]

DATA/probe.tsv lists structures: file, split (train, val, test), family, cluster, and for a complex its partners ("A:B",
names of their chains); commit 7012424 has the script that made ours. No family may be in two splits. An ENCODER is a
file with the weights of one, or a floor: `random-NAME-LEVEL-SIZE-SEED` (as `random-gearnet-atom-tiny-0`; its batch norm
has seen training chains, as finetune.py does for --freeze) or, without any network, `onehot`, `geometry`, `both`,
`counts` or `neighbours`. Names joined with + are features beside each other: `siamdiff-residue.pt+counts`.

Ridge regression on standardised features: of the numbers, or of one-hot classes, of which the largest answer is taken.
Fitted on training chains, with the penalty that does best on validation chains, for 1, 10 and 100 % of the labelled
residues of training. The labels of a residue, all from coordinates in angstrom:

    structure   helix, strand or other, see `residue_labels.secondary_structure`
    contacts    number of other residues whose CB (CA without it) is within 10
    longrange   number of those within 8 that are 24 or more places away in the chain
    exposure    Shrake-Rupley area of the chain alone over the largest of its type (Tien et al. 2013, theoretical)
    masked      the type of the residues that are masked, 15 %, whose side chains are left out
    interface   a heavy atom of the partner is within 6; the encoder sees one side of the complex alone
    retrieval   no fit: is the chain with the most similar mean vector of the same cluster? (chains that have such)

OUT/NAME.npz keeps, for every test structure, the sums that the scores are made of, so that every interval can be
computed again: `benchmarks.probe_report`. OUT/labels.npz keeps the labels.
"""

import argparse
import hashlib
import io
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from benchmarks import residue_labels
from benchmarks.kept import rows_of
from benchmarks.residue_labels import atoms_of, labels_of
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.encoders.ops import segment_mean
from siamdiff_min.files import ConfigError, console, write_file
from siamdiff_min.pretraining.diffusion import hide_residues
from siamdiff_min.protein.constants import CA, NUM_RESIDUE_TYPES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.structure import Structure, join
from siamdiff_min.tools.build import chains_of

SPLITS = ("train", "val", "test")
KIND = {"structure": "class", "contacts": "number", "longrange": "number", "exposure": "number", "masked": "class"}
KIND |= {"interface": "yes or no", "retrieval": "class"}
SHARES = (1, 10, 100)  # % of the labelled residues of training
PENALTIES = np.logspace(-1, 6, 15)
MASKED = 0.15
LONGEST = 250  # residues of a side of a complex; longer ones are left out
RADII = (5, 6, 7, 8, 10, 12, 14, 16)  # angstrom, of `counts`
LEVELS = 128  # of the answers that a ROC curve is drawn from
CALIBRATION = 50  # training chains that the batch norm of a random encoder sees


# ---- structures and features -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A chain, or one side of a complex."""

    name: str
    split: str
    family: str
    cluster: str
    protein: Protein
    partner: Protein | None = None

    @property
    def chosen(self) -> torch.Tensor:
        """The residues that are masked for the probe of types, always the same (M,)."""
        seed = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        order = np.random.default_rng(seed).permutation(self.protein.num_residues)
        return torch.from_numpy(np.sort(order[: max(1, round(MASKED * len(order)))]))


def sides(structure: Structure, partners: str) -> list[Structure]:
    """The two sides of a complex; `partners` names their chains, as in "A:B"."""
    chains = chains_of(structure).items()
    return [join([chain for name, chain in chains if name in names]) for names in partners.split(":")]


def read_items(table: Path) -> list[Item]:
    """The structures of DATA/probe.tsv. Raises ConfigError where a family is in two splits, or a split is empty."""
    split_of, items = {}, []
    for row in rows_of(table):
        if row["split"] not in SPLITS:
            raise ConfigError(f"{table}: split {row['split']!r} of {row['file']} is none of {', '.join(SPLITS)}")
        if split_of.setdefault(row["family"], row["split"]) != row["split"]:
            raise ConfigError(f"{table}: family {row['family']} is in {split_of[row['family']]} and {row['split']}")
        structure, about = read_structure(table.parent / row["file"]), (row["split"], row["family"], row["cluster"])
        name = Path(row["file"]).name.split(".")[0]
        if row["partners"]:
            one, two = (side.protein for side in sides(structure, row["partners"]))
            for letter, own, other in (("1", one, two), ("2", two, one)):
                if own.num_residues <= LONGEST:
                    items.append(Item(f"{name}/{letter}", *about, own, other))
        else:
            items.append(Item(name, *about, structure.protein))
    missing = [split for split in SPLITS if not any(item.split == split for item in items)]
    if missing:
        raise ConfigError(f"{table}: no structure of {', '.join(missing)}")
    return items


def cached_labels(items: list[Item], table: Path, path: Path) -> list[dict[str, np.ndarray]]:
    """The labels of every item, from `path` where they are those of this table and this script."""
    state = hashlib.sha256(table.read_bytes() + Path(residue_labels.__file__).read_bytes()).hexdigest()
    if path.is_file():
        with np.load(path, allow_pickle=False) as kept:
            if str(kept["state"]) == state:
                names = [name.split("/", 1) for name in kept.files if name != "state"]
                found = [{} for _ in items]
                for i, label in names:
                    found[int(i)][label] = kept[f"{i}/{label}"]
                return found
    found = [labels_of(item.protein, item.partner) for item in items]
    arrays = {f"{i}/{label}": values for i, labels in enumerate(found) for label, values in labels.items()}
    save(path, state=np.array(state), **arrays)
    return found


def save(path: Path, **arrays: np.ndarray) -> None:
    """A compressed .npz, written as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_file(path, content.getvalue())


def onehot(protein: Protein) -> torch.Tensor:
    """Types of the residues -4 .. +4 places away (R, 180)."""
    kinds = F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES) * ~protein.masked[:, None]
    wide = F.pad(kinds, (0, 0, 4, 4))
    return torch.cat([wide[k : k + len(kinds)] for k in range(9)], dim=1).float()


def distances(protein: Protein) -> torch.Tensor:
    """Between the CA of all residues (R, R), angstrom."""
    ca = atoms_of(protein, CA)
    return torch.cdist(ca, ca, compute_mode="donot_use_mm_for_euclid_dist")


def geometry(protein: Protein) -> torch.Tensor:
    """Distances of the CA to those 1 to 4 places away (20 at most, and where there is none), numbers of CA within 6 and
    10, mean number of atoms within 4.5 of the residue's (R, 11)."""
    distance = distances(protein)
    wide = F.pad(distance, (4, 4), value=20.0)
    row = torch.arange(len(distance))
    ladder = [wide[row, row + 4 + k].clamp(max=20) for k in range(-4, 5) if k]
    near = [(distance < radius).sum(1).double() for radius in (6, 10)]
    atoms = torch.cdist(protein.pos, protein.pos, compute_mode="donot_use_mm_for_euclid_dist") < 4.5
    crowd = segment_mean(atoms.sum(1).double()[:, None], protein.atom_residue, protein.num_residues)[:, 0]
    return torch.stack([*ladder, *near, crowd], dim=1).float()


def counts(protein: Protein) -> torch.Tensor:
    """How many CA lie within RADII of the CA, and how many virtual CB of the virtual CB, before and after the residue
    in the chain, 1 to 5, 6 to 23, and 24 or more places away (R, 96).

    The virtual CB is 2.4 angstrom from CA, away from the middle of the CA before and after; all from CA alone.
    """
    ca = atoms_of(protein, CA)
    wide = torch.cat([ca[:1], ca, ca[-1:]])
    beta = ca + 2.4 * F.normalize(2 * ca - wide[:-2] - wide[2:], dim=-1)
    offset = torch.arange(len(ca)) - torch.arange(len(ca))[:, None]
    ranges = ((1, 6), (6, 24), (24, torch.inf))
    where = [(s * offset >= low) & (s * offset < high) for low, high in ranges for s in (-1, 1)]
    found = []
    for point in (ca, beta):
        distance = torch.cdist(point, point, compute_mode="donot_use_mm_for_euclid_dist")
        found += [((distance < radius) & side).sum(1) for radius in RADII for side in where]
    return torch.stack(found, dim=1).float()


def neighbours(protein: Protein) -> torch.Tensor:
    """How many CA of every type lie within 6, 10 and 14 angstrom, without the residue's own (R, 60)."""
    kinds = (F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES) * ~protein.masked[:, None]).double()
    distance = distances(protein).fill_diagonal_(torch.inf)
    return torch.cat([(distance < radius).double() @ kinds for radius in (6, 10, 14)], dim=1).float()


FLOORS = {"onehot": onehot, "geometry": geometry, "counts": counts, "neighbours": neighbours}  # without a network


def load(name: str, items: list[Item]):
    """Features of an ENCODER of the command line: protein -> (R, d). Raises SiamDiffError for what is none."""
    name = "onehot+geometry" if name == "both" else name
    if "+" in name:
        parts = [load(part, items) for part in name.split("+")]
        return lambda protein: torch.cat([part(protein) for part in parts], dim=1)
    if name in FLOORS:
        return FLOORS[name]
    if match := re.fullmatch(r"random-([\w-]+)-(atom|residue)-([a-z]+)-(\d+)", name):
        kind, level, size, seed = match.groups()
        torch.manual_seed(int(seed))
        encoder = ENCODERS[kind](level, size)
        chains = [item.protein for item in items if item.split == "train" and item.partner is None][:CALIBRATION]
        batches = [Protein.pack(chains[i : i + 4]) for i in range(0, len(chains), 4)]
        with torch.no_grad():
            update_bn(map(encoder.builder.select_nodes, batches), encoder)
    else:
        encoder = weights.load_encoder(name, "cpu")
    encoder.eval()
    return lambda protein: encoder(encoder.builder.select_nodes(protein)).residue


def short(name: str) -> str:
    """The name of the results of an ENCODER: the folder of an encoder.pt, else the file without its ending."""
    if "+" in name:
        return "+".join(map(short, name.split("+")))
    path = Path(name)
    return path.resolve().parent.name if path.name == "encoder.pt" else path.name.removesuffix(".pt")


# ---- the probes ------------------------------------------------------------------------------------------------------


def solve(x: np.ndarray, y: np.ndarray):
    """Ridge regression for every one of PENALTIES: a generator of functions features (K, d) -> answers (K, c)."""
    centre, scale, mean = x.mean(0), x.std(0), y.mean(0)
    scale = np.where(scale > 1e-6 * max(1e-6, abs(centre).max()), scale, np.inf)  # a constant feature says nothing
    z = (x - centre) / scale
    values, vectors = np.linalg.eigh(z.T @ z)
    projected = vectors.T @ (z.T @ (y - mean))
    for penalty in PENALTIES:
        weight = vectors @ (projected / (values.clip(0) + penalty)[:, None])
        yield lambda new, weight=weight: ((new - centre) / scale) @ weight + mean


def sums(kind: str, answer: np.ndarray, y: np.ndarray, item: np.ndarray, num_items: int) -> np.ndarray:
    """What the score of a probe is made of, for every item (num_items, k); see `score`."""
    if kind == "class":
        columns = [answer.argmax(1) == y, np.ones(len(y))]
    elif kind == "number":
        columns = [np.ones(len(y)), y, y**2, (y - answer[:, 0]) ** 2]
    else:
        level = np.searchsorted(np.unique(np.quantile(answer[:, 1], np.linspace(0, 1, LEVELS))), answer[:, 1])
        found = np.zeros((num_items, 2, LEVELS + 1))
        np.add.at(found, (item, y.astype(int), level), 1)
        return found.reshape(num_items, -1)
    return np.stack([np.bincount(item, weights=column, minlength=num_items) for column in columns], axis=1)


def score(kind: str, total: np.ndarray) -> np.ndarray:
    """Accuracy, R2 or AUROC of sums (..., k) over items; nan of nothing."""
    if not total.any():
        return np.full(total.shape[:-1], np.nan)
    if kind == "class":
        return total[..., 0] / total[..., 1]
    if kind == "number":
        n, y, square, error = np.moveaxis(total, -1, 0)
        return 1 - error / (square - y**2 / n)
    no, yes = np.moveaxis(total.reshape(*total.shape[:-1], 2, -1), -2, 0)
    lower = no.cumsum(-1) - no / 2
    return (yes * lower).sum(-1) / (yes.sum(-1) * no.sum(-1))


@dataclass(frozen=True)
class Rows:
    """The residues of one probe."""

    x: np.ndarray  # (K, d)   features
    y: np.ndarray  # (K,)   labels
    split: np.ndarray  # (K,)   0, 1, 2: train, val, test
    item: np.ndarray  # (K,)   row of the item


def fit(rows: Rows, kind: str, share: int, num_items: int) -> dict[str, np.ndarray]:
    """Fit a probe on a share (%) of the training residues, choose the penalty, and answer for the test items.

    Returns `sums` (num_items, k), of zeros but for test items; `val`, the score on validation; `constant`, the score of
    the best constant answer of training on test.
    """
    train, val, test = ((rows.split == i).nonzero()[0] for i in range(3))
    test = test if len(test) else val  # --valid
    order = np.random.default_rng(0).permutation(train)
    some = order[: max(2, len(order) * share // 100)]
    target = rows.y[:, None].astype(float) if kind == "number" else np.eye(int(rows.y.max()) + 1)[rows.y.astype(int)]
    best, chosen = -np.inf, None
    for answer in solve(rows.x[some], target[some]):
        value = score(kind, sums(kind, answer(rows.x[val]), rows.y[val], rows.item[val], num_items).sum(0))
        if value > best or chosen is None:
            best, chosen = value, answer
    found = sums(kind, chosen(rows.x[test]), rows.y[test], rows.item[test], num_items)
    constant = {"number": 0.0, "yes or no": 0.5}.get(kind)
    if constant is None:
        constant = (rows.y[test] == target[train].sum(0).argmax()).mean()
    return {"sums": found, "val": np.array(best), "constant": np.array(constant)}


def cosines(means: np.ndarray) -> np.ndarray:
    """Between vectors (K, d), each column centred and scaled over all of them: (K, K)."""
    z = means - means.mean(0)
    z = z / np.maximum(z.std(0), 1e-9)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-9)
    return z @ z.T


def retrieve(means: np.ndarray, clusters: list[str], whitened: bool = False) -> np.ndarray:
    """sums (K, 2) for the mean vectors (K, d) of chains: the nearest other one by cosine is of the same cluster."""
    alike = (means @ means.T if whitened else cosines(means)) - 2 * np.eye(len(means))
    counts = np.array([clusters.count(cluster) > 1 for cluster in clusters])
    hit = np.array([clusters[j] == cluster for j, cluster in zip(alike.argmax(1), clusters)])
    return np.stack([hit & counts, counts], axis=1).astype(float)


@torch.inference_mode()
def probe(features, items: list[Item], labels: list[dict[str, np.ndarray]], scored="test") -> dict[str, np.ndarray]:
    """All probes of one encoder, scored on a split: arrays `PROBE/SHARE/sums`, `.../val` and `.../constant`."""
    gathered = {name: [] for name in KIND if name != "retrieval"}
    means = {}
    for i, (item, known) in enumerate(zip(items, labels)):
        x = features(item.protein).double().numpy()
        place = SPLITS.index(item.split)
        for name, y in known.items():
            gathered[name].append((x, y, place, i))
        if item.partner is None:
            hidden = features(hide_residues(item.protein, item.chosen, backbone=4)).double().numpy()
            kinds = item.protein.residue_type[item.chosen].numpy()
            gathered["masked"].append((hidden[item.chosen.numpy()], kinds, place, i))
            if item.split == scored:
                means[i] = x.mean(0)
    found = {}
    for name, parts in ((name, parts) for name, parts in gathered.items() if parts):
        x, y = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        lengths = [len(part[1]) for part in parts]
        split, place = (np.repeat([part[k] for part in parts], lengths) for k in (2, 3))
        for share in SHARES:
            values = fit(Rows(x, y, split, place), KIND[name], share, len(items))
            found |= {f"{name}/{share}/{key}": value for key, value in values.items()}
    nearest = np.zeros((len(items), 2))
    nearest[list(means)] = retrieve(np.stack(list(means.values())), [items[i].cluster for i in means])
    return found | {"retrieval/100/sums": nearest, "retrieval/100/constant": np.array(0.0)}


def main(argv: list[str] | None = None) -> None:
    """Probe the encoders of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with probe.tsv")
    parser.add_argument("encoders", nargs="+", help="files with weights, random-NAME-LEVEL-SIZE-SEED, onehot, ...")
    parser.add_argument("--out", type=Path, default=Path("runs/probe"))
    parser.add_argument("--valid", action="store_true", help="score validation families; test families take no part")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    table, scored = args.data / "probe.tsv", "val" if args.valid else "test"
    items = [item for item in read_items(table) if item.split != "test" or not args.valid]
    labels = cached_labels(items, table, args.out / f"labels{'-valid' * args.valid}.npz")
    tested = [i for i, item in enumerate(items) if item.split == scored]
    about = {"item": [items[i].name for i in tested], "family": [items[i].family for i in tested]}
    for name in args.encoders:
        start = time.process_time()
        found = probe(load(name, items), items, labels, scored)
        found |= {key: value[tested].astype(np.float32) for key, value in found.items() if key.endswith("sums")}
        save(args.out / f"{short(name)}.npz", **{k: np.array(v) for k, v in about.items()}, **found)
        names = [name for name in KIND if f"{name}/100/sums" in found]
        values = {p: score(KIND[p], found[f"{p}/100/sums"].sum(0).astype(float)) for p in names}
        constant = {p: found[f"{p}/100/constant"] for p in names if p != "retrieval"}
        skills = [(values[p] - c) / (1 - c) for p, c in constant.items()]
        shown = "  ".join(f"{probe} {value:.3f}" for probe, value in {"skill": np.mean(skills), **values}.items())
        print(f"{short(name):32}  {shown}  ({time.process_time() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    with console():
        main()
