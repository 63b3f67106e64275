"""Small structure files from rows, one per atom, as PDB and as mmCIF."""


def atom(
    name, residue, number, chain="A", code=" ", alt=" ", occ=1.0, x=0.0,
    het=False, element=None, model=1, segment="", label=None,
):  # fmt: skip
    """One row of a structure file; y and z follow from x. `segment` is of PDB alone, `label` of mmCIF."""
    element = name[0] if element is None else element
    return {
        "het": het, "name": name, "alt": alt, "residue": residue, "chain": chain, "number": number, "code": code,
        "x": x, "occ": occ, "element": element, "model": model, "segment": segment, "label": label,
    }  # fmt: skip


def residue(kind, number, names=("N", "CA", "C", "O"), **options):
    """Rows of one residue with distinct coordinates."""
    x = options.pop("x") if "x" in options else float(number)
    return [atom(name, kind, number, x=x + i / 8, **options) for i, name in enumerate(names)]


def as_pdb(rows, models=False):
    lines, model = [], None
    for i, r in enumerate(rows, 1):
        if models and r["model"] != model:
            lines += ["ENDMDL"] * (model is not None) + [f"MODEL     {r['model']:4d}"]
            model = r["model"]
        name = f" {r['name']:<3}" if len(r["name"]) < 4 else r["name"]
        place = f"{r['residue']:>3}{r['chain']:>{5 - max(len(r['residue']), 3)}}{r['number']:>4}{r['code']}"
        lines.append(
            f"{'HETATM' if r['het'] else 'ATOM':<6}{i:5d} {name}{r['alt']}{place}   {r['x']:8.3f}{r['x'] + 1:8.3f}"
            f"{-r['x']:8.3f}{r['occ']:6.2f}{0:6.2f}      {r['segment']:<4}{r['element']:>2}"
        )
    return "\n".join([*lines, *["ENDMDL"] * models, "END", ""])


FIELDS = """
    group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_entity_id label_seq_id
    pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy B_iso_or_equiv auth_seq_id auth_asym_id pdbx_PDB_model_num
""".split()  # noqa: SIM905


def as_mmcif(rows, models=False):
    lines = ["data_TEST", "#", "_struct.title 'a title with #, 5'-quotes and _atom_site.id'", "#", "loop_"]
    lines += [f"_atom_site.{field}" for field in FIELDS]
    for i, r in enumerate(rows, 1):
        name = f'"{r["name"]}"' if "'" in r["name"] else r["name"]
        label = r["label"] or f"L{ord(r['chain'][0]) % 7}"
        lines.append(
            f"{'HETATM' if r['het'] else 'ATOM'} {i} {r['element'] or '?'} {name} {r['alt'].strip() or '.'} "
            f"{r['residue']} {label} 1 {i} {r['code'].strip() or '?'} "
            f"{r['x']:.3f} {r['x'] + 1:.3f} {-r['x']:.3f} {r['occ']:.2f} 0.00 {r['number']} {r['chain']} {r['model']}"
        )
    return "\n".join([*lines, "#", ""])
