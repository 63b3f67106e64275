"""Side-chain rotation: the official code's numbers, what physics promises, and clashes."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from Bio.PDB.vectors import Vector, calc_angle, calc_dihedral, rotaxis
from conftest import chi_angles, generator, load_golden, move, real_protein, relative_error, rigid_motion

from siamdiff_min.conventions import OFFICIAL
from siamdiff_min.protein import conformer, geometry, neighbors
from siamdiff_min.protein.conformer import GaussianConformer, TorsionalConformer, rotate_side_chains
from siamdiff_min.protein.constants import ATOM_INDEX, CHI_ATOMS, RESIDUE_INDEX, RESIDUES

ANGLES = ["zero", "pi_half", "normal_0.1pi", "uniform", "normal_pi", *(f"chi{k}_1rad" for k in (1, 2, 3, 4))]


@pytest.mark.parametrize("name", ANGLES)
def test_golden_rotation(name):
    golden = load_golden("rotamer_20types")
    protein = golden.protein()
    turned = rotate_side_chains(protein, golden[f"angle/{name}"], OFFICIAL)
    assert relative_error(turned.pos, golden[f"out32/{name}"]) < 1e-5
    double = replace(protein, pos=protein.pos.double())
    turned = rotate_side_chains(double, golden[f"angle/{name}"].double(), OFFICIAL)
    assert relative_error(turned.pos, golden[f"out64/{name}"]) < 1e-9
    # The paper preset differs in proline alone (differences.md, row 17).
    paper = rotate_side_chains(double, golden[f"angle/{name}"].double())
    proline = (protein.residue_type == RESIDUE_INDEX["PRO"])[protein.atom_residue]
    assert relative_error(paper.pos[~proline], golden[f"out64/{name}"][~proline]) < 1e-9
    assert torch.equal(paper.pos[proline], double.pos[proline])


def test_golden_rotation_with_missing_atoms():
    golden = load_golden("rotamer_missing_CG")
    protein = golden.protein()
    turned = rotate_side_chains(protein, golden["angle"], OFFICIAL)
    assert relative_error(turned.pos, golden["out32"]) < 1e-5
    # Here: chi 1 needs the missing atom, so nothing turns in the residues that lost it.
    paper = rotate_side_chains(protein, golden["angle"])
    _, defined = chi_angles(protein)
    still = ~defined.any(1)[protein.atom_residue]
    assert still.any() and torch.equal(paper.pos[still], protein.pos[still])


def test_each_chi_changes_by_its_angle_and_nothing_else_does():
    """All 20 types: chi changed by exactly the drawn angle, bond lengths and angles unchanged, backbone unmoved."""
    protein = load_golden("rotamer_20types").protein()
    protein = replace(protein, pos=protein.pos.double())
    angles = (torch.rand(protein.num_residues, 4, generator=generator(), dtype=torch.float64) * 2 - 1) * math.pi
    turned = rotate_side_chains(protein, angles)
    before, defined = chi_angles(protein)
    after, _ = chi_angles(turned)
    for r, name in enumerate(RESIDUES):
        assert defined[protein.residue_type == r].sum() == 3 * len(CHI_ATOMS[name])
    turns = defined & (protein.residue_type != RESIDUE_INDEX["PRO"])[:, None]
    error = torch.remainder(after - before - angles + math.pi, 2 * math.pi) - math.pi
    assert error[turns].abs().max() < 1e-9
    assert (after - before)[~turns].abs().max() < 1e-12

    same = protein.atom_residue[:, None] == protein.atom_residue[None]
    old, new = torch.cdist(protein.pos, protein.pos), torch.cdist(turned.pos, turned.pos)
    bonded = same & (old < 1.95) & (old > 0)
    assert (old - new)[bonded].abs().max() < 1e-4  # bond lengths, angstrom
    bond_angle = (bonded.float() @ bonded.float() > 0) & same  # ends of two bonds: their distance fixes the angle
    assert (old - new)[bond_angle].abs().max() < 1e-4
    assert torch.equal(turned.pos[protein.atom_name < 5], protein.pos[protein.atom_name < 5])  # N, CA, C, O, CB


def test_conformers_make_no_new_clash_and_log_the_rates():
    protein = real_protein("2BEG")
    wild = TorsionalConformer(std=math.pi)
    first = rotate_side_chains(protein, wild.draw(protein, math.pi, generator()))
    assert conformer.new_clashes(protein, first.pos).any()  # without the check, side chains do collide
    other, logs = wild(protein, generator())
    assert not conformer.new_clashes(protein, other.pos).any()
    drawn, residues = logs["clash_rate_drawn"].sums.tolist()
    assert residues == 130 and 0 < drawn < 130
    assert logs["clash_rate"].sums.tolist() == [0, 130]
    assert (other.pos != protein.pos).any(-1).sum() > 100


@pytest.mark.parametrize("name", ["1LCD_A", "2BEG"])
def test_clashes_equal_brute_force(name):
    """Within a chain and between five: what overlaps now, did not before, and has moved."""
    protein = real_protein(name)
    moved = rotate_side_chains(protein, TorsionalConformer().draw(protein, 3.0, generator(3)))
    radius = torch.tensor([conformer.VDW_RADIUS[e] for e in protein.element.tolist()])
    reach = radius[:, None] + radius[None] - conformer.CLASH_OVERLAP
    other = protein.atom_residue[:, None] != protein.atom_residue[None]
    before, now = (torch.cdist(p.pos, p.pos) < reach for p in (protein, moved))
    has_moved = (moved.pos != protein.pos).any(-1)
    fresh = now & ~before & other & has_moved[:, None]
    expected = torch.zeros(protein.num_residues, dtype=torch.bool)
    expected[protein.atom_residue[fresh.any(1)]] = True
    assert expected.any()
    assert torch.equal(conformer.new_clashes(protein, moved.pos), expected)


def test_equal_residues_of_two_proteins_turn_by_angles_of_their_own():
    protein = real_protein("1LCD_A")
    both = protein.pack([protein, protein])
    one, other = TorsionalConformer().draw(both, 0.3, generator()).split(protein.num_residues)
    assert (one != other).all()
    one, other = GaussianConformer()(both, generator())[0].pos.split(protein.num_atoms)
    assert (one != other).all()


@pytest.mark.parametrize("name, radius", [("SG", 1.80), ("NZ", 1.55), ("OG", 1.52), ("CB", 1.70)])
def test_spheres_clash_if_they_overlap_by_more_than_0_8(name, radius):
    """Bondi's radii; 0.1 angstrom on either side. Two sulphurs at 2.7 angstrom clash: the search reaches that far."""
    protein = real_protein().crop(0, 2).alpha_carbons()
    protein = replace(protein, atom_name=torch.full((2,), ATOM_INDEX[name]))
    line = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    native = replace(protein, pos=torch.stack([0 * line, 8 * line]))
    for overlap, clash in ((0.7, False), (0.9, True)):
        pos = torch.stack([0 * line, (2 * radius - overlap) * line])
        assert conformer.new_clashes(native, pos).tolist() == [False, clash]


def test_every_new_draw_of_a_residue_has_half_the_noise():
    """The standard deviations that are asked for: those of clashing residues shrink, the others stay."""
    protein, asked = real_protein("2BEG"), []

    class Recording(TorsionalConformer):
        def draw(self, protein, std, generator):
            asked.append(torch.as_tensor(std).expand(protein.num_residues, 1).squeeze(1).clone())
            return super().draw(protein, math.pi, generator)

    Recording(std=0.3, attempts=3)(protein, generator())
    assert len(asked) == 4 and (asked[0] == 0.3).all()
    for before, after in pairwise(asked):
        halved = after != before
        assert halved.any() and not halved.all()
        assert torch.allclose(after[halved], before[halved] / 2)
    assert asked[-1].unique().numel() == 4  # drawn once, twice, three times, four times


def test_a_residue_that_cannot_turn_freely_keeps_its_native_side_chain(monkeypatch):
    """Those that still clash after the last draw, and no others: the log counts them."""
    protein, seen, clashes = real_protein("1LCD_A"), [], conformer.new_clashes
    monkeypatch.setattr(conformer, "new_clashes", lambda *args: seen.append(clashes(*args)) or seen[-1])
    # Every side chain is caged by a second copy of the chain, displaced by less than a bond.
    cage = replace(protein, pos=protein.pos + 0.7, residue_protein=protein.residue_protein)
    crowd = protein.pack([protein, cage])
    crowd = replace(crowd, residue_protein=torch.zeros_like(crowd.residue_protein), num_proteins=1)
    other, logs = TorsionalConformer(std=math.pi, attempts=1)(crowd, generator())
    assert not clashes(crowd, other.pos).any()
    native = torch.stack(seen[1:]).any(0)  # seen[0]: the first draw; seen[1]: the one new attempt; then native ones
    assert logs["native_side_chains"].sums.tolist() == [native.sum(), crowd.num_residues]
    kept = (other.pos == crowd.pos).all(-1)
    assert kept[native[crowd.atom_residue]].all() and not kept[~native[crowd.atom_residue]].all()
    assert 0 < native.sum() < seen[0].sum() < crowd.num_residues


def test_noise_is_wrapped_normal():
    protein = real_protein("2BEG")
    noise = torch.cat([TorsionalConformer().draw(protein, 0.1 * math.pi, generator(k)) for k in range(40)])
    assert noise.min() >= 0 and noise.max() < 2 * math.pi
    unwrapped = torch.remainder(noise + math.pi, 2 * math.pi) - math.pi
    assert unwrapped.std() == pytest.approx(0.1 * math.pi, rel=0.02)
    assert abs(unwrapped.mean()) < 0.01


def test_conformers_move_with_the_protein():
    protein = real_protein("1LCD_A")
    rotation, shift = rigid_motion(5)
    there, _ = TorsionalConformer()(move(protein, 5), generator(1))
    here, _ = TorsionalConformer()(protein, generator(1))
    assert (here.pos @ rotation.T + shift - there.pos).abs().max() < 1e-9


def test_gaussian_conformer():
    protein = real_protein("2BEG").alpha_carbons()
    noise = torch.cat([GaussianConformer()(protein, generator(k))[0].pos - protein.pos for k in range(30)])
    assert noise.std() == pytest.approx(0.3, rel=0.02)


def test_batch_equals_singles_for_the_same_angles():
    proteins = [real_protein("1LCD_A"), real_protein("2BEG")]
    batch = proteins[0].pack(proteins)
    angles = torch.rand(batch.num_residues, 4, generator=generator(), dtype=torch.float64)
    together = rotate_side_chains(batch, angles).unpack()
    apart = [rotate_side_chains(p, a) for p, a in zip(proteins, angles.split([p.num_residues for p in proteins]))]
    assert all(torch.equal(a.pos, b.pos) for a, b in zip(together, apart))


# ---- geometry against biopython, neighbour search against brute force ------------------------------------------------


def random_points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, 3, dtype=torch.float64, generator=generator(seed))


def test_angle_and_dihedral_equal_biopython():
    a, b, c, d = random_points(4, 50)
    for k in range(50):
        vectors = [Vector(*p[k].tolist()) for p in (a, b, c, d)]
        assert geometry.angle(a, b, c)[k] == pytest.approx(calc_angle(*vectors[:3]), abs=1e-6)
        assert geometry.dihedral(a, b, c, d)[k] == pytest.approx(calc_dihedral(*vectors), abs=1e-6)


def test_rotation_equals_biopython_and_leaves_the_axis():
    point, start, end = random_points(3, 20)
    theta = torch.linspace(-3, 3, 20, dtype=torch.float64)
    turned = geometry.rotate_about_axis(point, start, end, theta)
    for k in range(20):
        matrix = rotaxis(theta[k].item(), Vector(*(end - start)[k].tolist()))
        expected = Vector(*(point - start)[k].tolist()).left_multiply(matrix).get_array() + start[k].numpy()
        assert np.allclose(turned[k].numpy(), expected, atol=1e-9)
    assert torch.allclose(geometry.rotate_about_axis(end, start, end, theta), end, atol=1e-12)
    assert torch.equal(geometry.rotate_about_axis(point, start, start, theta), point)


# ---- neighbours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [0.0, -1000.0, 1e5])
@pytest.mark.parametrize("count", [0, 1, 2, 40, 700])
def test_radius_pairs_equal_brute_force(count, origin):
    pos = torch.rand(count, 3, generator=generator(count)) * 25 + origin
    protein = torch.randint(0, 3, (count,), generator=generator(1)).sort().values
    i, j = neighbors.radius_pairs(pos, protein, 4.5)
    near = (pos[:, None] - pos[None]).norm(dim=-1) < 4.5
    expected = (near & (protein[:, None] == protein[None])).triu(1).nonzero().tolist()
    assert sorted([min(a, b), max(a, b)] for a, b in zip(i.tolist(), j.tolist())) == expected


def test_radius_pairs_on_a_lattice_are_strictly_inside():
    """Points exactly at the cutoff, and on cell borders, where rounding could move them into the wrong cell."""
    axis = torch.arange(-4, 5).double() * 1.5
    pos = torch.cartesian_prod(axis, axis, axis)
    i, _ = neighbors.radius_pairs(pos, torch.zeros(len(pos), dtype=torch.long), 4.5)
    distance = torch.cdist(pos, pos, compute_mode="donot_use_mm_for_euclid_dist")
    assert len(i) == int(((distance < 4.5).sum() - len(pos)) // 2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e20])
def test_a_coordinate_that_is_none_is_refused(value):
    """It would decide on the cells of all points, of other proteins too."""
    pos = torch.rand(4, 3)
    pos[2, 1] = value
    with pytest.raises(ValueError, match="not finite, or too large"):
        neighbors.radius_pairs(pos, torch.tensor([0, 0, 1, 1]), 4.5)


def test_radius_pairs_at_100_000_atoms_needs_no_square_memory():
    """Protein-like density; an N x N matrix of floats would take 40 GB."""
    side = 100_000 ** (1 / 3) * 2.7  # angstrom: about one heavy atom per 20 cubic angstrom
    pos = torch.rand(100_000, 3, generator=generator()) * side
    i, j = neighbors.radius_pairs(pos, torch.zeros(100_000, dtype=torch.long), 4.5)
    sample = torch.randint(0, 100_000, (50,), generator=generator(2))
    count = torch.bincount(torch.cat([i, j]), minlength=100_000)
    for k in sample.tolist():
        assert count[k] == ((pos - pos[k]).norm(dim=-1) < 4.5).sum() - 1


@pytest.mark.parametrize("decimals", [3, 0], ids=["apart", "ties"])
@pytest.mark.parametrize("sizes", [[30], [1, 2, 25, 11], [5, 0, 40]])
def test_nearest_neighbors_equal_brute_force(sizes, decimals):
    """Of points equally far the lower index is the nearer one, whatever k is."""
    pos = random_points(sum(sizes), seed=3).round(decimals=decimals)
    protein = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for k in (1, 3, 10):
        neighbour, point = neighbors.nearest_neighbors(pos, protein, len(sizes), k)
        for p in range(len(pos)):
            others = [q for q in range(len(pos)) if protein[q] == protein[p] and q != p]
            nearest = sorted(others, key=lambda q, p=p: math.dist(pos[p].tolist(), pos[q].tolist()))[:k]
            assert neighbour[point == p].tolist() == nearest


def test_nearest_neighbors_in_blocks_equal_one_block():
    pos = random_points(2100, seed=4)
    protein = torch.zeros(2100, dtype=torch.long)
    neighbour, _ = neighbors.nearest_neighbors(pos, protein, 1, 5)  # 4.4e6 distances, more than one block of 4e6
    distance = (pos[:50, None] - pos[None]).norm(dim=-1)
    distance[torch.arange(50), torch.arange(50)] = torch.inf
    assert torch.equal(neighbour.view(-1, 5)[:50], distance.topk(5, largest=False).indices)
