"""ESM-2 against fair-esm, how a batch becomes tokens, the weight files, and what ESM-GearNet promises."""

import argparse
import importlib.util
import itertools
import re
from dataclasses import replace

import pytest
import torch
from conftest import generator, golden_graph, load_golden, real_protein, relative_error

from siamdiff_min.conventions import OFFICIAL
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.esm import (
    CLS,
    EOS,
    ESM2,
    ESM_SIZES,
    MASK,
    RESIDUE_TOKEN,
    VOCABULARY,
    ESMGearNet,
)
from siamdiff_min.encoders.graph import RESIDUE_GRAPH
from siamdiff_min.encoders.weights import load_esm
from siamdiff_min.files import CheckpointError
from siamdiff_min.protein.constants import ONE_LETTER, RESIDUES
from siamdiff_min.protein.protein import Protein

LEFT_OUT = re.compile(r"inv_freq|lm_head|regression")  # of fair-esm's tensors: constants and heads


def sequences(*letters: str, chain: list[int] | None = None, masked: list[list[int]] | None = None) -> Protein:
    """A batch of alpha carbons on a line, a protein or, with the same entry in `chain`, a chain for every string."""
    size = torch.tensor([len(s) for s in letters])
    types = torch.tensor([ONE_LETTER.index(x) for s in letters for x in s])
    index = torch.cat([torch.arange(n) for n in size.tolist()])
    of = torch.tensor(chain or range(len(letters)))
    hidden = torch.zeros(len(types), dtype=torch.bool)
    for start, places in zip((size.cumsum(0) - size).tolist(), masked or []):
        hidden[[start + k for k in places]] = True
    return Protein(
        pos=torch.arange(len(types), dtype=torch.float64)[:, None] * torch.tensor([3.8, 0, 0], dtype=torch.float64),
        element=torch.full_like(types, 6),
        atom_name=torch.ones_like(types),
        atom_residue=torch.arange(len(types)),
        residue_type=types,
        masked=hidden,
        residue_number=index + 1,
        insertion_code=torch.full_like(types, ord(" ")),
        residue_index=index,
        chain=torch.cat([torch.arange(int((of == g).sum())) for g in of.unique()]).repeat_interleave(size),
        residue_protein=of.repeat_interleave(size),
        num_proteins=int(of.max()) + 1,
    )


def random_letters(number: int, seed: int) -> str:
    return "".join(ONE_LETTER[k] for k in torch.randint(0, 20, (number,), generator=generator(seed)).tolist())


def test_vocabulary():
    """ESM's order of the amino acids is not the package's: every residue type, through its three-letter name."""
    published = "LEU4 ALA5 GLY6 VAL7 SER8 GLU9 ARG10 THR11 ILE12 ASP13 PRO14 LYS15 GLN16 ASN17 PHE18 TYR19 MET20 HIS21"
    expected = {name[:3]: int(name[3:]) for name in f"{published} TRP22 CYS23".split()}
    assert dict(zip(RESIDUES, RESIDUE_TOKEN)) == expected
    assert (CLS, EOS, MASK, len(VOCABULARY)) == (0, 2, 32, 33)


def tiny_esm() -> ESM2:
    torch.manual_seed(0)
    return ESM2(2, 24, 3).double().eval()


def test_a_chain_that_is_too_long_for_esm_is_read_in_equal_parts():
    """Of 1,023 residues at most 1,022 fit between the tokens of begin and end."""
    net, protein = tiny_esm(), sequences(random_letters(1023, 0))
    parts = [net(protein.crop(begin, size)) for begin, size in ((0, 512), (512, 511))]
    assert relative_error(net(protein), torch.cat(parts).detach()) < 1e-6
    fits = sequences(random_letters(1022, 0))
    assert relative_error(net(fits)[:511], net(fits.crop(0, 511)).detach()) > 0.01


def test_a_gap_in_the_sequence_moves_the_positions():
    net, letters = tiny_esm(), random_letters(20, 0)
    keep = (torch.arange(20) < 8) | (torch.arange(20) > 12)
    x = net(sequences(letters).select_residues(keep))
    assert relative_error(x, net(sequences(letters[:8] + letters[13:])).detach()) > 0.01


def test_golden_network():
    """One packed batch, and every sequence alone. fair-esm takes its softmax in float32, whatever the weights are."""
    golden = load_golden("esm2_2x24")
    net = ESM2(2, 24, 3).double().eval()
    net.load_state_dict({k: v for k, v in golden.state().items() if not LEFT_OUT.search(k)}, strict=True)
    for which in ([0, 1, 2], [2, 0], [0], [1], [2]):
        letters = [str(golden[f"letters_{i}"]) for i in which]
        masked = [golden[f"masked_{i}"].tolist() for i in which]
        x = net(sequences(*letters, masked=masked))
        expected = torch.cat([golden[f"representations_{i}"] for i in which])
        assert relative_error(x, expected) < 1e-6


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """fair-esm's network of the 6-layer size with random weights, and a file with them in the published layout."""
    fair = pytest.importorskip("esm", reason="fair-esm is not installed")
    torch.manual_seed(0)
    network = fair.ESM2(*ESM_SIZES["8M"]).eval()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    path = tmp_path_factory.mktemp("esm") / "esm2_t6_8M_UR50D.pt"
    save(path, network.state_dict())
    return network, path


def save(path, state: dict) -> None:
    """The layout of fair-esm's files: prefixes, and the training options as a Namespace."""
    kept = {k: v for k, v in state.items() if not k.startswith("contact_head")}
    prefix = {k: "encoder." if k.startswith("lm_head") else "encoder.sentence_encoder." for k in kept}
    options = argparse.Namespace(encoder_layers=6)
    torch.save({"cfg": {"model": options}, "model": {prefix[k] + k: v for k, v in kept.items()}}, path)


def run_published(network, letters: list[str], masked: list[list[int]]) -> list[torch.Tensor]:
    """Representations of the residues of every sequence; a blank is <pad>."""
    longest = max(map(len, letters))
    tokens = torch.full((len(letters), longest + 2), VOCABULARY.index("<pad>"))
    kept = []
    for row, s, hidden in zip(tokens, letters, masked):
        row[0], row[len(s) + 1] = CLS, EOS
        places = [k for k, x in enumerate(s, 1) if x != " "]
        row[places] = torch.tensor([VOCABULARY.index(s[k - 1]) for k in places])
        row[[k + 1 for k in hidden]] = MASK
        kept.append(places)
    last = network.num_layers
    with torch.no_grad():
        out = network(tokens, repr_layers=[last])
    return [x[places] for x, places in zip(out["representations"][last], kept)]


@pytest.mark.parametrize("lengths", [(60,), (33, 90, 33, 5), (300, 40)])
def test_equals_fair_esm(published, lengths):
    network, path = published
    net = ESM2(*ESM_SIZES["8M"])
    assert "6 layers of 320" in load_esm(net, path)
    letters = [random_letters(n, n + i) for i, n in enumerate(lengths)]
    masked = [list(range(i, n, 4)) if i % 2 else [] for i, n in enumerate(lengths)]
    x = net(sequences(*letters, masked=masked))
    expected = run_published(network, letters, masked)
    assert relative_error(x, torch.cat(expected)) < 1e-5


def test_residues_left_out_are_as_padding(published):
    """A gap in `residue_index` moves the positions: the same as fair-esm with <pad> in the gap."""
    network, path = published
    net = ESM2(*ESM_SIZES["8M"])
    load_esm(net, path)
    letters = random_letters(80, 0)
    keep = torch.ones(80, dtype=torch.bool)
    keep[10:15], keep[40], keep[60:70] = False, False, False
    x = net(sequences(letters, masked=[[5, 30]]).select_residues(keep))
    holes = "".join(x if k else " " for x, k in zip(letters, keep.tolist()))
    assert relative_error(x, run_published(network, [holes], [[5, 30]])[0]) < 1e-5


HUGGING_FACE = {  # a layer there -> the same layer in fair-esm
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "LayerNorm": "final_layer_norm",
}


@pytest.mark.parametrize("scale", ["weight", "gamma"])
@pytest.mark.parametrize("prefix", ["", "esm.", "model.esm."])
def test_files_of_hugging_face(tmp_path, prefix, scale):
    """Names of `EsmModel`, alone or under a head, with what it keeps beside its weights; and its older names."""
    torch.manual_seed(0)
    source = ESM2(2, 24, 3)
    state = source.state_dict()
    theirs = {f"{prefix}embeddings.word_embeddings.weight": state["embed_tokens.weight"]}
    for x in ("weight", "bias"):
        theirs[f"{prefix}encoder.emb_layer_norm_after.{x}"] = state[f"emb_layer_norm_after.{x}"]
        for i, (their, ours) in itertools.product(range(2), HUGGING_FACE.items()):
            theirs[f"{prefix}encoder.layer.{i}.{their}.{x}"] = state[f"layers.{i}.{ours}.{x}"]
    assert len(theirs) == len(state)
    position = f"{prefix}embeddings.position_embeddings.weight"
    beside = ["encoder.layer.0.attention.self.rotary_embeddings.inv_freq", "contact_head.regression.weight"]
    beside = [prefix + name for name in (*beside, "embeddings.position_ids", "pooler.dense.bias")]
    more = {name: torch.ones(9) for name in (*beside, "lm_head.dense.weight")} | {position: torch.ones(9, 24)}
    if scale == "gamma":
        older = {"weight": "gamma", "bias": "beta"}
        norm = r"((?:LayerNorm|norm_after)\.)(\w+)$"
        theirs = {re.sub(norm, lambda x: x[1] + older[x[2]], name): x for name, x in theirs.items()}
    files = [tmp_path / "pytorch_model.bin"]
    torch.save(theirs | more, files[0])
    if importlib.util.find_spec("safetensors"):
        files.append(tmp_path / "model.safetensors")
        importlib.import_module("safetensors.torch").save_file(theirs | more, files[1])
    for file in files:
        net = ESM2(2, 24, 3)
        assert f"({len(state)} tensors)" in load_esm(net, str(file))
        assert all(torch.equal(x, state[name]) for name, x in net.state_dict().items())
    # ESM-1 adds a table of positions to its tokens.
    torch.save(theirs | {position: more[position]}, tmp_path / "esm1.bin")
    with pytest.raises(CheckpointError, match="do not fit"):
        load_esm(ESM2(2, 24, 3), str(tmp_path / "esm1.bin"))


def test_files_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    source, net = ESM2(2, 24, 3), ESM2(2, 24, 3)
    state = source.state_dict()
    save("fits.pt", {**state, "layers.0.self_attn.rot_emb.inv_freq": torch.ones(4), "lm_head.bias": torch.ones(33)})
    assert "2 layers of 24 from fits.pt (35 tensors)" in load_esm(net, "fits.pt")
    assert all(torch.equal(x, state[name]) for name, x in net.state_dict().items())
    before = {name: x.clone() for name, x in net.state_dict().items()}
    save("missing.pt", {k: v for k, v in state.items() if k != "layers.1.fc1.bias"})
    save("more.pt", {**state, "embed_positions.weight": torch.ones(3)})
    save("wide.pt", ESM2(2, 32, 4).state_dict())
    for name, said in [
        ("missing", "layers.1.fc1.bias"),
        ("more", "embed_positions"),
        ("wide", "2 layers of 24, do not fit"),
    ]:
        with pytest.raises(ValueError, match=said):
            load_esm(net, f"{name}.pt")
    torch.save([1, 2], "list.pt")
    with pytest.raises(ValueError, match=r"list\.pt.*is not a weight file of"):
        load_esm(net, "list.pt")
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


def test_chains_do_not_see_each_other():
    net, protein = tiny_esm(), real_protein("2BEG").alpha_carbons()
    other = torch.where(protein.chain == 1, (protein.residue_type + 1) % 20, protein.residue_type)
    changed = (net(protein) - net(replace(protein, residue_type=other))).abs().amax(1) > 1e-12
    assert torch.equal(changed, protein.chain == 1)


def small_net(preset: str = "paper", name: str = "esm-gearnet") -> ESMGearNet:
    torch.manual_seed(0)
    net = ENCODERS[name]("residue", "tiny", preset).double()
    for norm in (m for m in net.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return net.eval()


@pytest.mark.full
def test_sizes_of_the_builder():
    with torch.device("meta"):
        net = ENCODERS["esm-gearnet"]("residue")
    assert (len(net.esm.layers), net.esm.width, net.esm.heads) == ESM_SIZES["650M"] == (33, 1280, 20)
    assert net.layer_dims == [1280, *[512] * 6] and net.gearnet.layers[0].self_loop.in_features == 1280
    assert not any("edge_layers" in name for name, _ in net.named_parameters())
    edges = ENCODERS["esm-gearnet-edge"]("residue", "tiny").gearnet.edge_layers
    assert [layer.self_loop.in_features for layer in edges] == [59, 64, 32, 32]
    assert ENCODERS["esm-gearnet"]("residue", "tiny", "official").builder.conventions == OFFICIAL


@pytest.mark.parametrize("name", ["esm-gearnet", "esm-gearnet-edge"])
def test_both_representations_side_by_side(name):
    net = small_net(name=name)
    protein = real_protein("2BEG").alpha_carbons()
    encoding, h = net(protein), net.esm(protein)
    assert encoding.residue.shape == encoding.node.shape == (130, net.out_dim)
    for rows in (encoding.residue, encoding.node):
        assert torch.equal(rows[:, :64], h)
    structure = encoding.node[:, 64:]
    assert torch.allclose(encoding.protein[:, :64], h.mean(0), atol=1e-12)
    assert torch.allclose(encoding.protein[:, 64:], structure.sum(0), atol=1e-9)
    nothing = torch.zeros(130, 64, dtype=torch.float64)
    silent = net.gearnet(protein, replace(net.builder(protein), node_feature=nothing)).node
    assert relative_error(silent, structure.detach()) > 0.01  # it reads h


def test_golden_order_and_network():
    """torchdrug's GearNet without messages between edges, on given features in place of ESM's; after them."""

    class Given(torch.nn.Module):
        def __init__(self, x: torch.Tensor):
            super().__init__()
            self.x, self.width = x, x.shape[1]

        def forward(self, protein: Protein) -> torch.Tensor:
            return self.x

    golden = load_golden("gearnet_noedge_3x24")
    net = ESMGearNet(RESIDUE_GRAPH, [24] * 3, Given(golden["in_node_feature"])).eval()
    net.load_state_dict({f"gearnet.{name}": x for name, x in golden.state().items()}, strict=True)
    protein, graph = golden_graph(golden)
    encoding = net(protein, replace(graph, node_feature=torch.zeros_like(graph.node_feature)))
    assert torch.equal(encoding.residue[:, :21], golden["in_node_feature"])
    assert relative_error(encoding.node[:, -24:], golden["node_feature"]) < 1e-5  # the last layer alone is in the file
    assert relative_error(encoding.protein[:, -24:], golden["node_feature"].sum(0, keepdim=True)) < 1e-5


def test_learning_rates():
    net = small_net()
    factors = net.lr_factors()
    assert factors == {f"esm.{name}": 0.1 for name, _ in net.esm.named_parameters()}
    assert ENCODERS["gearnet"]("residue", "tiny").lr_factors() == ENCODERS["gvp"]("atom", "tiny").lr_factors() == {}
