"""Families of damage: pure functions (bytes, numpy Generator) -> bytes, equal for equal generators.

`mutate` draws one to three of them. Text families work on anything with lines and numbers in it (PDB, mmCIF, JSON,
tables), binary families on anything at all, `tar_header` on archives, whose headers it signs anew so that the damage
gets past their checksum.
"""

import re
import string

import numpy as np

NUMBERS = [
    *(b"********", b"nan", b"-nan", b"inf", b"-inf", b"1e400", b"-1e400", b"1e39", b"1e-400", b"NaN", b"Infinity"),
    *(b"9" * 5000, b"99999999999999999999", b"-1", b"0", b"-0", b"2147483648", b"-2147483649", b"100000.1", b"1_2"),
    *(b"0x10", b"1,5", b"1.2.3", b"--1", b"+", b"-", b".", b"?", b"", b"1e", b"1d5", b"\xb2\xb3", b"\xd9\xa1", b"null"),
]
WORDS = [
    *(b"'", b'"', b";", b"\n;\n", b"#", b"\0", b"\x1a", b"\x0b", b"\x1c", b"\x85", b"\t", b"\n", b"\n\n\n", b"<"),
    *(b"<html>", b"\nMODEL        2\n", b"\nENDMDL\n", b"\nEND\n", b"\nTER\n", b"\nATOM\n", b"\nHETATM", b"\nANISOU\n"),
    *(b"\nSIGATM\n", b"\nloop_\n", b"\ndata_\n", b"\n_x y\n", b"\n_atom_site.id\n", b"\n_atom_site.Cartn_x 1\n"),
    *(b"\nsave_\n", b"_", b"stop_", b"[", b"]", b"{", b"}", b",", b":", b"[" * 2000, b"{}", b"[]", b'"\\ud800"', b"\\"),
    *(b"()", b"__import__('os')", b"../", b"/", b"\xff\xfe", b"\xef\xbb\xbf", "\u00e9\u4e2d\U0001f600".encode()),
    *(b"%s%n", b" " * 3000, b"A" * 3000),
]
INTEGERS = [0, 1, -1, 2, 127, 128, 255, 2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
_NUMBER = re.compile(rb"[-+]?\d+\.?\d*")


def _place(data: bytes, rng: np.random.Generator) -> int:
    """An offset: anywhere, near an end, at a line end, or at a multiple of 512."""
    kind = rng.integers(5)
    if kind == 0:
        at = int(rng.integers(40))
    elif kind == 1:
        at = len(data) - int(rng.integers(40))
    elif kind == 2:
        at = data.find(b"\n", int(rng.integers(len(data) + 1))) + int(rng.integers(2))
    elif kind == 3:
        at = 512 * int(rng.integers(len(data) // 512 + 1))
    else:
        at = int(rng.integers(len(data) + 1))
    return min(max(at, 0), len(data))


def truncate(data, rng):
    return data[: _place(data, rng)]


def flip_bytes(data, rng):
    flipped = np.frombuffer(data, np.uint8).copy()
    if len(flipped):
        at = rng.integers(len(flipped), size=rng.choice([1, 1, 2, 5, 30]))
        flipped[at] ^= rng.integers(1, 256, size=len(at)).astype(np.uint8)
    return flipped.tobytes()


def flip_bit(data, rng):
    at = _place(data, rng)
    return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :] if at < len(data) else data


def splice(data, rng):
    """A piece of the file over, or into, another place of it."""
    source, target, size = _place(data, rng), _place(data, rng), int(rng.integers(1, 300))
    over = size if rng.integers(2) else int(rng.integers(100))
    return data[:target] + data[source : source + size] + data[target + over :]


def delete(data, rng):
    at = _place(data, rng)
    return data[:at] + data[at + int(rng.choice([1, 2, 8, 80, 600])) :]


def insert_bytes(data, rng):
    at = _place(data, rng)
    return data[:at] + rng.bytes(int(rng.choice([1, 2, 8, 80]))) + data[at:]


def insert_zeros(data, rng):
    at = _place(data, rng)
    return data[:at] + bytes(int(rng.choice([1, 8, 512, 1024]))) + data[at + int(rng.choice([0, 512])) :]


def integers(data, rng):
    """A whole number that no size or offset should be, in either byte order."""
    at, width = _place(data, rng), int(rng.choice([1, 2, 4, 8]))
    value = int(INTEGERS[rng.integers(len(INTEGERS))]) % 2 ** (8 * width)
    return data[:at] + value.to_bytes(width, "little" if rng.integers(2) else "big") + data[at + width :]


def random_bytes(data, rng):
    return rng.bytes(int(rng.integers(2000)))


def random_text(data, rng):
    letters = np.frombuffer((string.printable + " \n" * 20).encode(), np.uint8)
    return rng.choice(letters, size=int(rng.integers(2000))).tobytes()


def words(data, rng):
    """Text that means something to one of the formats, over or between what is there."""
    for _ in range(rng.integers(1, 4)):
        at, word = _place(data, rng), WORDS[rng.integers(len(WORDS))]
        data = data[:at] + word + data[at + len(word) * int(rng.integers(2)) :]
    return data


def numbers(data, rng):
    """Hostile numbers in place of some, in fixed columns or not."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    chosen = sorted(rng.choice(len(found), size=min(len(found), int(rng.choice([1, 1, 2, 10]))), replace=False))
    pieces, end = [], 0
    for match in (found[i] for i in chosen):
        number = NUMBERS[rng.integers(len(NUMBERS))]
        if rng.integers(2):
            number = number[: len(match[0])].rjust(len(match[0]))
        pieces += [data[end : match.start()], number]
        end = match.end()
    return b"".join([*pieces, data[end:]])


def _some_lines(data, rng) -> tuple[list[bytes], int, int]:
    lines = data.splitlines(keepends=True)
    first, last = sorted(rng.integers(len(lines) + 1, size=2))
    return lines, int(first), int(last)


def shuffle_lines(data, rng):
    lines, first, last = _some_lines(data, rng)
    return b"".join([*lines[:first], *(lines[first + i] for i in rng.permutation(last - first)), *lines[last:]])


def repeat_lines(data, rng):
    """Duplicate atoms, headers, keys."""
    lines, first, last = _some_lines(data, rng)
    return b"".join(lines[:last] + lines[first:last] * int(rng.integers(3)) + lines[first:])


def shuffle_columns(data, rng):
    """The words of some lines in another order, or a range of their columns moved."""
    lines, first, last = _some_lines(data, rng)
    left, right = sorted(int(c) for c in rng.integers(80, size=2))
    shift, kind = int(rng.integers(-3, 4)), rng.integers(3)
    for i in range(first, last):
        line = lines[i].rstrip(b"\r\n")
        if kind == 0:
            parts = line.split(b" ")
            line = b" ".join(parts[j] for j in rng.permutation(len(parts)))
        elif kind == 1:
            line = line[:left] + line[left:right][shift:] + line[left:right][:shift] + line[right:]
        else:
            line = line[:left] + line[right:]
        lines[i] = line + b"\n"
    return b"".join(lines)


def line_ends(data, rng):
    ends = [b"\r\n", b"\r", b"\n\r", b"\n\n", b"", b" ", b"\x0b", b"\x85", b"\n\0"]
    return data.replace(b"\n", ends[rng.integers(len(ends))])


def other_encoding(data, rng):
    kind = rng.integers(4)
    if kind == 0:
        return b"\xef\xbb\xbf" * int(rng.integers(1, 3)) + data
    if kind == 1:
        return data.decode("latin-1").encode("utf-16")
    return data.replace(b" " if kind == 2 else b"A", b"\xc2\xa0" if rng.integers(2) else b"\xff")


def many_chains(data, rng):
    """An atom again and again, 100,000 of them, each in the chain that comes next."""
    atoms = [line for line in data.splitlines() if line.startswith(b"ATOM") and b" A " in line]
    if not atoms:
        return data * min(1000, 2**21 // max(len(data), 1))
    before, _, after = atoms[rng.integers(len(atoms))].partition(b" A ")
    long = b"_atom_site" in data  # PDB has one column for the chain
    chains = (b"c%d" % i if long else bytes([33 + i % 94]) for i in range(100_000))
    head = data.partition(b"ATOM")[0]
    return head + b"".join(b"%s %s %s\n" % (before, chain, after) for chain in chains)


def tar_header(data, rng):
    """A hostile value in one field of one header, with a checksum that is correct again."""
    fields = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "type": (156, 1), "link": (157, 100)}
    values = [
        *(
            b"../../outside.pdb",
            b"/tmp/outside.pdb",
            b"..\\outside.pdb",
            b"a/../../b.pdb",
            b"\xff.pdb",
            b"\0",
            b"x" * 99,
        ),
        *(b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"x", b"g", b"S", b"D", b"V", b"\xff"),
        *(b"00000000000\0", b"77777777777\0", b"-0000000001\0", b"99999999999\0", b"00000001000\0", b"1_0"),
        *(b"\x80" + bytes(3) + size.to_bytes(8, "big") for size in (2**31, 2**40, 2**62, 2**63)),
        *(b"\xff" * 12, b"\x80" + b"\xff" * 11),
    ]
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"] or [0]
    at = int(rng.choice(headers))
    start, width = fields[str(rng.choice(list(fields)))]
    value = values[rng.integers(len(values))][:width].ljust(width, b"\0")
    header = bytearray(data[at : at + 512].ljust(512, b"\0"))
    header[start : start + width] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


def tar_repeat(data, rng):
    """Some blocks many times over: additions to the additions of a header."""
    first, last = sorted(512 * int(i) for i in rng.integers(len(data) // 512 + 1, size=2))
    return data[:last] + data[first:last] * int(rng.choice([1, 3, 400])) + data[last:]


BINARY = (truncate, flip_bytes, flip_bit, splice, delete, insert_bytes, insert_zeros, integers, random_bytes)
TEXT = (words, numbers, shuffle_lines, repeat_lines, shuffle_columns, line_ends, other_encoding, random_text)


def mutate(data: bytes, rng: np.random.Generator, families: tuple = BINARY + TEXT) -> bytes:
    """One to three draws from the families; one in 4,000 inputs has 100,000 chains."""
    if words in families and rng.integers(4000) == 0:
        return many_chains(data, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = families[rng.integers(len(families))](data, rng)
    return data
