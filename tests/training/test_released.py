"""Files of released encoders: torchdrug's names, wrapped in all the ways they come in; what does not fit is refused."""

import ast

import pytest
import torch
from conftest import golden_graph, load_golden, relative_error

from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import (
    CHECKPOINT,
    ENCODER,
    MODEL,
    load,
    load_encoder,
    load_encoder_file,
    read,
    save_encoder_file,
    write,
)
from siamdiff_min.files import CheckpointError
from siamdiff_min.training.checkpoint import save

WRAPPERS = ["", "module.", "_orig_mod.", "module._orig_mod."]


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


@pytest.mark.parametrize("prefix", WRAPPERS)
@pytest.mark.parametrize("level, short", [("atom", "atom"), ("residue", "res")])
def test_encoders_and_whole_tasks_load_strictly(tmp_path, level, short, prefix):
    """The level is told from the shapes: both files have the same name here."""
    alone, task = blank(f"ckpt_keys_{short}"), blank(f"ckpt_keys_task_{short}")
    content = load_encoder_file(written(tmp_path, alone, prefix))
    assert (content["encoder"], content["level"], content["size"]) == ("gearnet", level, "paper")
    encoder = load_encoder(written(tmp_path, alone, prefix))
    assert {k: v.flatten()[0] for k, v in encoder.state_dict().items()} == {k: v.flatten()[0] for k, v in alone.items()}

    content = load_encoder_file(written(tmp_path, task, prefix))
    assert content["not_loaded"] == ["alphas", "dist_mlp", "seq_mlp", "struct_mlp"]
    loaded = load_encoder(written(tmp_path, task, prefix)).state_dict()
    assert all(torch.equal(tensor, task[f"model.{name}"]) for name, tensor in loaded.items())


def test_outputs_are_the_golden_ones(tmp_path):
    golden = load_golden("gearnet_atom_6x128")
    state = {f"model.{k}": v for k, v in golden.state().items()} | {"alphas": torch.zeros(3)}
    encoder = load_encoder(written(tmp_path, state, "module."))
    assert relative_error(encoder(*golden_graph(golden)).node[::16], golden["out32/eval/node_feature"]) < 1e-5


def test_what_does_not_fit_is_named(tmp_path):
    state = blank("ckpt_keys_atom")
    missing = {k: v for k, v in state.items() if k != "layers.3.linear.bias"}
    with pytest.raises(CheckpointError, match=r"missing: layers.3.linear.bias \(128,\)"):
        load_encoder(written(tmp_path, missing))
    with pytest.raises(CheckpointError, match=r"unexpected: layers.0.extra \(1,\)"):
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


class Evil:
    def __reduce__(self):
        return print, ("code in a file of weights was run",)


def test_a_pickle_with_code_is_refused(tmp_path, capsys):
    path = written(tmp_path, blank("ckpt_keys_atom") | {"x": Evil()})
    with pytest.raises(CheckpointError, match="cannot be read as a torch file"):
        load_encoder_file(path)
    assert capsys.readouterr().out == ""


def test_every_kind_of_file_gives_its_encoder(tmp_path):
    identity = {"encoder": "gearnet", "level": "residue", "size": "tiny", "preset": "paper"}
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    task = TASKS["psr"](encoder)
    plain, model = tmp_path / "encoder.pt", tmp_path / "best.pt"
    save_encoder_file(plain, encoder, *identity.values(), steps=7)
    about = {"labels": [], "seed": 3, "epochs": 2.0, "valid": {"rho": 0.5}}
    write(model, MODEL, {"task": "psr", **identity, **about, "state": task.state_dict()})
    whole = save(tmp_path, 4, {"objective": task.state_dict(), "config": identity, "step": 4})
    for path, kind in [(plain, ENCODER), (model, MODEL), (whole, CHECKPOINT)]:
        loaded = load_encoder(path)
        assert not loaded.training
        assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), encoder.state_dict().values()))
        assert read(path)[0] == torch.load(path)["format"] == kind
    assert load(model, MODEL)["valid"] == {"rho": 0.5}
    with pytest.raises(CheckpointError, match=r"encoder.pt is an encoder, not a fine-tuned model"):
        load(plain, MODEL)


def test_an_encoder_nobody_knows_is_refused(tmp_path):
    identity = {"encoder": "gearnet", "level": "atom", "size": "tiny", "preset": "paper", "state": {}}
    for name, value in (("encoder", "transformer"), ("level", "backbone"), ("size", "huge"), ("preset", "mine")):
        write(tmp_path / "e.pt", ENCODER, identity | {name: value})
        with pytest.raises(
            CheckpointError, match=f"e.pt (is damaged, or of another version|holds the encoder).*{value}"
        ):
            load_encoder(tmp_path / "e.pt")
