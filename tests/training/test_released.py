"""Files of released encoders, of Lightning and of your own loop: an encoder is found in all of them, or refused."""

import ast
import sys
from dataclasses import replace

import pytest
import torch
from conftest import golden_graph, load_golden, real_protein, relative_error

from benchmarks import bundle_encoder
from siamdiff_min.conventions import OFFICIAL
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, GEARNET_DIMS
from siamdiff_min.encoders.esm import ESM2
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.encoders.graph import RESIDUE_GRAPH
from siamdiff_min.encoders.weights import (
    CHECKPOINT,
    ENCODER,
    IDENTITY,
    MODEL,
    load_encoder,
    load_encoder_file,
    read_weights,
    save_encoder_file,
    write_weights,
)
from siamdiff_min.files import CheckpointError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.training.checkpoint import initialise, save

WRAPPERS = ["", "module._orig_mod.", "encoder.", "net.backbone."]
AS_RELEASED = "names no preset, so it is read as one of the released code"


def blank(name: str) -> dict[str, torch.Tensor]:
    """Tensors with the names, shapes and types of a released file, all different."""
    golden, state = load_golden(name), {}
    for i, (key, shape, dtype) in enumerate(zip(golden["sd_keys"], golden["sd_shapes"], golden["sd_dtypes"])):
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        state[str(key)] = torch.full(ast.literal_eval(str(shape)), i + 1, dtype=kind)
    return state


def written(tmp_path, state, prefix="", file="mc_gearnet_edge.pth"):
    torch.save({prefix + name: tensor for name, tensor in state.items()}, tmp_path / file)
    return tmp_path / file


@pytest.mark.repeats
@pytest.mark.parametrize(
    "level, short, prefix", [*(("atom", "atom", prefix) for prefix in WRAPPERS[:3]), ("residue", "res", WRAPPERS[3])]
)
def test_encoders_and_whole_tasks_load_strictly(tmp_path, level, short, prefix):
    """The level is told from the shapes: both files have the same name here."""
    alone, task = blank(f"ckpt_keys_{short}"), blank(f"ckpt_keys_task_{short}")
    content = load_encoder_file(written(tmp_path, alone, prefix))
    assert (content["encoder"], content["level"], content["size"]) == ("gearnet", level, "paper")
    with pytest.warns(UserWarning, match=rf"{AS_RELEASED} \(official\)$"):
        encoder = load_encoder(written(tmp_path, alone, prefix))
    first = {name: x.flatten()[0] for name, x in alone.items()}
    assert {name: x.flatten()[0] for name, x in encoder.state_dict().items()} == first

    with pytest.warns(UserWarning, match=r"\(official\); not loaded: alphas, dist_mlp, seq_mlp, struct_mlp$"):
        loaded = load_encoder(written(tmp_path, task, prefix)).state_dict()
    assert all(torch.equal(tensor, task[f"model.{name}"]) for name, tensor in loaded.items())


@pytest.mark.parametrize("prefix", ["", "encoder."])
@pytest.mark.parametrize("key", ["state_dict", "model_state_dict"])
def test_files_of_lightning_and_of_your_own_loop(tmp_path, key, prefix):
    """A head beside the encoder is named and left, and so is what the trainer keeps."""
    source = ENCODERS["gearnet"]("residue", "tiny", "official")
    state = {f"{prefix}{name}": x for name, x in source.state_dict().items()}
    state |= {"head.0.weight": torch.ones(2, 2), "steps": torch.tensor(3)}
    content = {key: state, "epoch": 3, "hyper_parameters": {"model": "gearnet"}, "optimizer_states": [{"state": {}}]}
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.warns(UserWarning, match=r"not loaded: head, steps$"):
        encoder = load_encoder(tmp_path / "last.ckpt", "cpu")
    assert encoder.identity == source.identity
    assert all(torch.equal(x, state[f"{prefix}{name}"]) for name, x in encoder.state_dict().items())

    torch.save({key: state | {f"teacher.{name}": x for name, x in source.state_dict().items()}}, tmp_path / "two.ckpt")
    with pytest.raises(CheckpointError, match=rf"several GearNets {prefix}layers.0.self_loop.weight, teacher.layers.0"):
        load_encoder(tmp_path / "two.ckpt", "cpu")


def test_safetensors(tmp_path, monkeypatch):
    save_file = pytest.importorskip("safetensors.torch").save_file
    source = ENCODERS["gearnet"]("residue", "tiny", "official")
    save_file({f"encoder.{name}": x for name, x in source.state_dict().items()}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=AS_RELEASED):
        encoder = load_encoder(tmp_path / "model.safetensors", "cpu")
    assert all(torch.equal(x, y) for x, y in zip(encoder.state_dict().values(), source.state_dict().values()))
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(CheckpointError, match="pip install safetensors"):
        load_encoder(tmp_path / "model.safetensors", "cpu")


@pytest.mark.repeats
@pytest.mark.parametrize("inside", ["model.model.", "", "model.", "module.model."])
def test_files_of_torchdrugs_engine(tmp_path, inside):
    """`solver.save` writes the weights of the task, which holds the encoder or another task, beside its optimizer."""
    alone, path = blank("ckpt_keys_atom"), tmp_path / "mc_gearnet_edge.pth"
    weights = {inside + name: x for name, x in alone.items()}
    if inside:
        head = inside.removesuffix("model.") + "mlp.layers"
        weights |= {f"{head}.{i}.weight": torch.ones(2) for i in (0, 1)}
    moments = {0: {"step": 3, "exp_avg": torch.ones(2)}}
    optimizer = {"state": moments, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    torch.save({"model": weights, "optimizer": optimizer}, path)
    encoder = ENCODERS["gearnet"]("atom", "paper", "official")
    objective = OBJECTIVES["siamdiff"](encoder, "atom", head_dim=8)
    said = []
    initialise(objective, path, said.append)
    with pytest.warns(UserWarning, match=AS_RELEASED):
        alone_again = load_encoder(path, "cpu")
    for encoder in alone_again, objective.encoder:
        assert all(torch.equal(tensor, alone[name]) for name, tensor in encoder.state_dict().items())
    assert said[0] == "in that file, not loaded: mlp" if inside else "loaded from" in said[0]


def test_outputs_of_gearnet_are_the_golden_ones(tmp_path, monkeypatch):
    """The network of the residue level, as a file of GearNet; its own widths are 512."""
    monkeypatch.setitem(GEARNET_DIMS, "paper", {"residue": [32] * 6, "atom": [128] * 6})
    golden = load_golden("gearnet_res_6x32")
    state = {f"model.model.{name}": x for name, x in golden.state().items()}
    torch.save({"model": state, "optimizer": {}}, tmp_path / "m.pth")
    with pytest.warns(UserWarning, match=AS_RELEASED):
        encoder = load_encoder(tmp_path / "m.pth", "cpu")
    encoding = encoder(*golden_graph(golden))
    assert relative_error(encoding.node[::16], golden["out32/eval/node_feature"]) < 1e-5
    assert relative_error(encoding.protein, golden["out32/eval/graph_feature"]) < 1e-5


def gearnet_of(dims: list[int], width: int) -> GearNet:
    """That on ESM's vectors, without messages between edges."""
    return GearNet(replace(RESIDUE_GRAPH, conventions=OFFICIAL), dims, 0, "sum", width).eval()


def esm_gearnet(layers: int, width: int, dims: list[int], real: bool = True) -> dict[str, torch.Tensor]:
    """Random weights with the names of ESM-GearNet's files; not `real`: shapes, in no memory."""
    with torch.device("meta"):
        parts = {"sequence_model.model": ESM2(layers, width, 20), "structure_model": gearnet_of(dims, width)}
    shapes = {}
    for part, net in parts.items():
        shapes |= {f"{part}.{name}": x.shape for name, x in net.state_dict().items()}
    unused = [
        "contact_head.regression.weight",
        "lm_head.bias",
        "lm_head.dense.weight",
        "lm_head.layer_norm.bias",
        *(f"layers.{i}.self_attn.rot_emb.inv_freq" for i in range(layers)),
    ]
    shapes |= {f"sequence_model.model.{name}": (8,) for name in unused}
    state = {name: torch.rand(x) / 4 if real else torch.ones(()).expand(x) for name, x in shapes.items()}
    state |= {name: torch.tensor(5) for name in state if name.endswith("num_batches_tracked")}
    tokens = [6, 5, 8, 14, 7, 11, 23, 12, 4, 17, 13, 16, 15, 9, 20, 21, 18, 10, 19, 22]  # GLY, ALA, SER, PRO, ...
    return state | {"sequence_model.mapping": torch.tensor(tokens + [-1] * 13)}


@pytest.mark.repeats
@pytest.mark.parametrize("around", ["engine", "", "model."])
def test_esm_gearnet_loads_strictly(tmp_path, monkeypatch, around):
    monkeypatch.setitem(GEARNET_DIMS, "paper", {"residue": [24, 24, 32], "atom": [128] * 6})
    state, path = esm_gearnet(6, 320, [24, 24, 32]), tmp_path / "siamdiff_esm_gearnet.pth"
    named = {f"{'model.' * (around != '')}{name}": x for name, x in state.items()}
    torch.save({"model": named, "optimizer": {}} if around == "engine" else named, path)
    with pytest.warns(UserWarning, match=AS_RELEASED):
        encoder, protein = load_encoder(path, "cpu"), real_protein("2BEG", torch.float32).alpha_carbons().crop(0, 40)
    assert encoder.identity == ("esm-gearnet-8M", "residue", "paper", "official")
    assert len(encoder.state_dict()) == len(state) - 11  # the mapping, four of the heads, six of inv_freq
    encoding = encoder(protein)

    esm = ESM2(6, 320, 20)
    names = {name: f"sequence_model.model.{name}" for name in esm.state_dict()}
    esm.load_state_dict({name: state[other] for name, other in names.items()})
    gearnet = gearnet_of([24, 24, 32], 320)
    gearnet.load_state_dict({name: state[f"structure_model.{name}"] for name in gearnet.state_dict()})
    h, graph = esm(protein), gearnet.builder(protein)
    structure = gearnet(protein, replace(graph, node_feature=h))
    assert torch.equal(encoding.residue, torch.cat([h, structure.residue], 1))
    assert torch.allclose(encoding.protein, torch.cat([h.mean(0, keepdim=True), structure.protein], 1), rtol=1e-4)
    embedding = encoder.embed(bundle_encoder.smallest().read())
    assert embedding.per_residue.shape[1] == len(embedding.mean) == 320 + 80


def test_the_published_size_of_esm_gearnet(tmp_path):
    torch.save(esm_gearnet(33, 1280, [512] * 6, real=False), tmp_path / "siamdiff_esm_gearnet.pth")
    content = load_encoder_file(tmp_path / "siamdiff_esm_gearnet.pth")
    assert [content[name] for name in IDENTITY] == ["esm-gearnet", "residue", "paper", "official"]
    with torch.device("meta"):
        encoder = ENCODERS["esm-gearnet"]("residue", "paper", "official")
    assert encoder.state_dict().keys() == content["state"].keys()
    assert sum(x.numel() for x in encoder.parameters()) == 649_400_320 + 8 * 512 * (1280 + 5 * 512) + 6 * 6 * 512


def test_esm_gearnets_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.setitem(GEARNET_DIMS, "paper", {"residue": [24], "atom": [128] * 6})
    state = esm_gearnet(6, 320, [24])
    order = state["sequence_model.mapping"].roll(1)
    with pytest.raises(CheckpointError, match=r"e.pth has the residue types in another order, with ESM's tokens \[-1"):
        load_encoder_file(written(tmp_path, state | {"sequence_model.mapping": order}, file="e.pth"))
    with pytest.raises(CheckpointError, match=r"do not fit(.|\n)*esm.layers.5.fc1.bias"):
        missing = {name: x for name, x in state.items() if not name.endswith("layers.5.fc1.bias")}
        load_encoder(written(tmp_path, missing, file="e.pth"), "cpu")
    with pytest.raises(CheckpointError, match=r"input 320 and widths \[12\]; known are .*; 1280 and \[24\]"):
        load_encoder_file(written(tmp_path, esm_gearnet(6, 320, [12]), file="e.pth"))


def test_what_does_not_fit_is_named(tmp_path):
    state = blank("ckpt_keys_atom")
    missing = {k: v for k, v in state.items() if k != "layers.3.linear.bias"}
    with pytest.raises(CheckpointError, match=r"do not fit(.|\n)*layers.3.linear.bias"):
        load_encoder(written(tmp_path, missing))
    with pytest.raises(CheckpointError, match=r"do not fit(.|\n)*layers.0.extra"):
        load_encoder(written(tmp_path, state | {"layers.0.extra": torch.ones(1)}))
    narrow = {k: v[:100] if k.endswith("self_loop.weight") else v for k, v in state.items()}
    with pytest.raises(CheckpointError, match=r"input 39 and widths \[100, 100"):
        load_encoder_file(written(tmp_path, narrow))
    with pytest.raises(CheckpointError, match="holds no GearNet"):
        load_encoder_file(written(tmp_path, {"weight": torch.ones(3)}))
    for nothing in ({}, [], {1: torch.ones(3)}, {"weight": 1}, torch.ones(3)):
        torch.save(nothing, tmp_path / "nothing.pt")
        with pytest.raises(CheckpointError, match="neither an encoder file nor a checkpoint nor a dict of tensors"):
            load_encoder_file(tmp_path / "nothing.pt")


def test_a_pickled_module_is_refused_with_what_to_do_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(GearNet, "__setstate__", lambda *_: pytest.fail("code of a file was run"), raising=False)
    torch.save(ENCODERS["gearnet"]("residue", "tiny"), tmp_path / "whole.pt")
    with pytest.raises(CheckpointError, match=r"whole.pt holds a pickled module .* write encoder.save\(PATH\), or"):
        load_encoder(tmp_path / "whole.pt", "cpu")


def test_every_kind_of_file_gives_its_encoder(tmp_path):
    identity = {"encoder": "gearnet", "level": "residue", "size": "tiny", "preset": "paper"}
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    task = TASKS["psr"](encoder)
    plain, model = tmp_path / "encoder.pt", tmp_path / "best.pt"
    save_encoder_file(plain, encoder, *identity.values(), steps=7)
    about = {"labels": [], "seed": 3, "epochs": 2.0, "valid": {"rho": 0.5}}
    write_weights(model, MODEL, {"task": "psr", **identity, **about, "state": task.state_dict()})
    whole = save(tmp_path, 4, {"objective": task.state_dict(), "config": identity, "step": 4})
    for path, kind in [(plain, ENCODER), (model, MODEL), (whole, CHECKPOINT)]:
        loaded = load_encoder(path)
        assert not loaded.training
        assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), encoder.state_dict().values()))
        assert read_weights(path)["format"] == torch.load(path)["format"] == kind
    assert read_weights(model, MODEL)["valid"] == {"rho": 0.5}
    with pytest.raises(CheckpointError, match=r"encoder.pt is an encoder, not a fine-tuned model"):
        read_weights(plain, MODEL)
