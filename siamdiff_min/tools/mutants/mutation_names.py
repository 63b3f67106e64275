"""Mutations as people write them: A52G, A:A52aG, t2e, p.Ala12Val, A52G/L60V, WT."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote

from ...files import ConfigError
from ...protein.constants import ONE_LETTER, RESIDUES
from ...reading.structure import Structure
from .mutation_model import Mutant, Mutation

# Chain, type in one letter or three, number, insertion code, new type.
TYPE = rf"({'|'.join(RESIDUES)}|[{ONE_LETTER}])"
MUTATION = re.compile(rf"(?:(\w+):)?{TYPE}(-?\d+)([A-Z]?)(?:{TYPE}|=)", re.IGNORECASE)
LETTERS = dict(zip(RESIDUES, ONE_LETTER))
# Between mutations. A:A52G is a mutation of chain A, A52G:L60V are two; T2E-Y3A are two, L-3P is one of residue -3.
BETWEEN = re.compile(r"[/+,;\s]+|(?<=\d[A-Z]):|(?<=[A-Za-z])[-_](?=[A-Za-z]{1,3}-?\d)")
PREFIX = re.compile(r"([\w.]+:)?p\.\s*")  # of HGVS, with the accession of the sequence; then brackets mean nothing
WILD_TYPE = {"wt", "wildtype", "wild-type", "wild type", "wild_type", "_wt"}
SYNONYMOUS = {"=", "_sy"}  # the protein is the wild type's
SHIFTS = range(-2000, 2001)  # to try
RANGE = re.compile(r"(?:(\w+):)?(-?\d+)(?:-(-?\d+))?")
Key = tuple[str, int, str]  # chain, number by the author, insertion code


class NoSubstitution(ConfigError):
    """A mutation at a residue that the structure lacks, or no substitution."""


class Word(NamedTuple):
    """One mutation as it is written."""

    chain: str  # "" if it does not say
    own: str  # one letter
    number: int
    code: str
    new: str  # one letter


@dataclass(frozen=True)
class Positions:
    """The P positions of a structure that may be mutated. Chains of one sequence share them, as one gene makes both."""

    residues: list[list[int]]  # rows of the structure: of the chain, and of its copies
    keys: list[Key]  # of the chain
    wild: str  # one letter each
    copy_of: Mapping[str, str]  # chain -> the one with the same sequence that stands for it

    @staticmethod
    def of(structure: Structure, chains: Sequence[str] | None) -> "Positions":
        """The residues of these chains and of their copies, by default of the first. Raises ConfigError."""
        known = structure.chain_names
        chains = [chains] if isinstance(chains, str) else chains or known[:1]
        unknown = {*chains} - {*known}
        if unknown:
            raise ConfigError(f"there is no chain {', '.join(sorted(unknown))}, but {', '.join(known)}")

        # Row and type of every residue, by chain.
        of_chain = {chain: {} for chain in known}
        types = structure.protein.residue_type.tolist()
        for row, (chain, number, code) in enumerate(structure.positions):
            of_chain[chain][number, code.strip()] = row, ONE_LETTER[types[row]]

        # Every chain stands for all chains of its sequence, for itself first.
        residues = []
        keys = []
        wild = ""
        copy_of = {}
        for chain in chains:
            if chain in copy_of:
                continue
            own = of_chain[chain]
            copies = [other for other in known if other != chain and are_copies(own, of_chain[other])]
            copy_of |= dict.fromkeys([chain, *copies], chain)
            for place, (row, letter) in own.items():
                residues.append([row, *(of_chain[other][place][0] for other in copies if place in of_chain[other])])
                keys.append((chain, *place))
                wild += letter
        return Positions(residues, keys, wild, copy_of)

    @cached_property
    def index(self) -> dict[Key, int]:
        """Every position by its key."""
        return {key: i for i, key in enumerate(self.keys)}

    def label(self, i: int) -> str:
        """A position as text, such as A52; with its chain if there are several."""
        chain, number, code = self.keys[i]
        ahead = f"{chain}:" if len({*self.copy_of.values()}) > 1 else ""
        return f"{ahead}{self.wild[i]}{number}{code}"

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V."""
        return "/".join(f"{self.label(i)}{ONE_LETTER[new]}" for i, new in mutant) or "WT"

    def position_of(self, word: Word, shift: int) -> int | None:
        """The position that a mutation is of. Its insertion code may be in the other case."""
        chain = self.copy_of.get(word.chain, word.chain) if word.chain else self.keys[0][0]
        place = chain, word.number + shift
        return self.index.get((*place, word.code), self.index.get((*place, word.code.swapcase())))

    def read(self, text: str, shift: int = 0) -> Mutant:
        """The mutant that a text stands for, () for the wild type. `shift` is added to its numbers.

        Raises NoSubstitution, and ConfigError if the structure has another type there.
        """
        changes = {}  # position -> new type
        for written in words_of(text):
            word = parse(written)
            i = word and self.position_of(word, shift)
            if word is None or i is None:
                raise NoSubstitution(f"{written} is no substitution of a residue that is there, such as A52G or B:A52G")
            if self.wild[i] != word.own:
                raise ConfigError(f"{written} (the structure has {self.wild[i]})")
            if i in changes:
                raise ConfigError(f"{written} (a second mutation there in {text})")
            changes[i] = word.new
        mutations = [Mutation(i, ONE_LETTER.index(new)) for i, new in changes.items() if new != self.wild[i]]
        return tuple(sorted(mutations))

    def other_shift(self, texts: Iterable[str], shift: int) -> str:
        """The other shift with which all mutations in some texts fit, in words; "" if none. Two may fit by chance."""
        words = {word._replace(new="") for text in texts for word in map(parse, words_of(text)) if word}
        places = {*enumerate(self.wild)}
        for other in sorted({*SHIFTS} - {shift}, key=abs):
            if len(words) > 2 and all((self.position_of(word, other), word.own) in places for word in words):
                return f"all fit with --shift {other}"
        return ""

    def within(self, text: str) -> set[int]:
        """The positions in ranges of the structure's numbers, as 5-60,80 or B:1-9. Raises ConfigError."""
        found = set()
        for part in filter(None, re.split(r"[,;\s]+", text)):
            match = RANGE.fullmatch(part)
            chain, first, last = match.groups() if match else ("", 1, 0)
            numbers = range(int(first), int(last or first) + 1)
            chain = self.copy_of.get(chain, chain)
            inside = {i for (own, k, _), i in self.index.items() if k in numbers and own == (chain or own)}
            if not inside:
                raise ConfigError(f"{part!r} is no range of the structure's residues, such as 5-60")
            found |= inside
        return found

    def wanted(self, positions: str, not_positions: str) -> set[int]:
        """The positions of the next batch. Without `positions` a chain's first Met stays: translation begins there."""
        chains = [chain for chain, _, _ in self.keys]
        every = {i for i, own in enumerate(self.wild) if own != "M" or chains[i] in chains[:i]}
        return (self.within(positions) or every) - self.within(not_positions)


def are_copies(one: Mapping, two: Mapping) -> bool:
    """Whether two chains, (row, type) by number, have one sequence: half of the residues in both, and all the same."""
    shared = one.keys() & two.keys()
    enough = 2 * len(shared) >= max(len(one), len(two))
    return enough and all(one[place][1] == two[place][1] for place in shared)


def words_of(text: str) -> list[str]:
    """The mutations in a text, none of the wild type."""
    text = unquote(text).strip()  # p.Glu2%3D of a web page
    if PREFIX.search(text):
        text = re.sub(r"[\[\]()]", "", PREFIX.sub("", text))
    if text.lower() in WILD_TYPE:
        return []
    return [word for word in BETWEEN.split(text) if word.lower() not in SYNONYMOUS]


def parse(word: str) -> Word | None:
    """The parts of one mutation, in one letter or three; None if it is none."""
    match = MUTATION.fullmatch(word)
    if not match:
        return None
    chain, own, number, code, new = match.groups()
    own, new = (LETTERS.get(name.upper(), name.upper()) for name in (own, new or own))  # A52= is A52A
    return Word(chain or "", own, int(number), code, new)
