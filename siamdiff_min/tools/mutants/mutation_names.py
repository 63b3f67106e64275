"""Mutations as people write them: A52G, A:A52aG, t2e, p.Ala12Val, A52G/L60V, WT."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from ...files import ConfigError, first_three
from ...protein.constants import ONE_LETTER, RESIDUES
from ...reading.structure import Structure
from ..table.values import DATE
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
SAME_RANGE = re.compile(r"([A-Z]{1,3}-?\d+)_([A-Z]{1,3}-?\d+=)", re.IGNORECASE)  # Glu2_Pro3=
WITH_CHAIN = re.compile(r"([A-Z])([A-Z])(-?\d+[A-Z])", re.IGNORECASE)  # LA38G, as some programs write L38G of chain A
NO_SUBSTITUTION = {  # kind -> how it is written, by the rules of HGVS or by habit
    "a frame shift": re.compile(r"\dfs|\d[A-Z]{1,3}fs", re.IGNORECASE),
    "an insertion": re.compile(r"\d(ins|dup|delins)|(?<!del)ins|^(p\.)?delins", re.IGNORECASE),
    "a deletion": re.compile(r"\d\)?(del|Δ)|^(p\.)?(del|Δ)[A-Z]", re.IGNORECASE),
    "an extension": re.compile(r"\dext|(^|\W)(ter|\*)\d", re.IGNORECASE),
    "a stop codon": re.compile(r"\d(\*|ter|stop)", re.IGNORECASE),
    "of no amino acid of the twenty": re.compile(
        r"\d(xaa|sec|pyl|asx|glx|xle|[xuobzj])(?![A-Z])|(^|[^A-Z])(xaa|sec|pyl|asx|glx|xle)-?\d", re.IGNORECASE
    ),
    "of an effect that is not known": re.compile(r"^(.*p\.)?(\?|0|na)$|\?\)?$", re.IGNORECASE),
}
RANGE = re.compile(r"(?:(\w+):)?(-?\d+)(?:-(-?\d+))?")
MAX_SHIFT = 2000
Key = tuple[str, int, str]  # chain, number by the author, insertion code


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

    def chain_of(self, chain: str) -> str:
        """The chain that stands for this one; the first if none is named."""
        return self.copy_of.get(chain, chain) if chain else self.keys[0][0]

    def label(self, i: int, own: str = "", new: str = "") -> str:
        """A position as text, such as 52 or A52G; with its chain if there are several."""
        chain, number, code = self.keys[i]
        ahead = f"{chain}:" if len({*self.copy_of.values()}) > 1 else ""
        return f"{ahead}{own}{number}{code}{new}"

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V."""
        return "/".join(self.label(i, self.wild[i], ONE_LETTER[new]) for i, new in mutant) or "WT"

    def key_of(self, word: Word, shift: int) -> Key:
        """The residue that a mutation is of. Its insertion code may be in the other case."""
        place = self.chain_of(word.chain), word.number + shift
        other = (*place, word.code.swapcase())
        return other if other in self.index else (*place, word.code)

    def read(self, texts: Iterable[str], shift: int = 0) -> list[Mutant]:
        """The mutants that texts stand for. Raises ConfigError, with all that do not fit in one sentence."""
        index = self.index
        mutants = []
        wrong = {}  # mutation as written -> what is wrong with it
        written = {}  # key -> own type, of all mutations, whether they fit or not
        for text in texts:
            changes = {}  # position -> new type
            for word in words_of(text):
                found = parse(word)
                if not found:
                    wrong[word] = no_mutation(word, text)
                    continue
                key = self.key_of(found, shift)
                written[key] = found.own

                # Whether the structure has this type there, and no other mutation of this text is of it.
                i = index.get(key)
                if key[0] not in self.copy_of:
                    wrong[word] = f"chain {key[0]} is not among those of --chain"
                elif i is None:
                    wrong[word] = "no such residue"
                elif self.wild[i] != found.own:
                    wrong[word] = f"the structure has {self.wild[i]}"
                elif i in changes:
                    wrong[word] = f"a second mutation there in {text}"
                else:
                    changes[i] = found.new
            mutations = [Mutation(i, ONE_LETTER.index(new)) for i, new in changes.items() if new != self.wild[i]]
            mutants.append(tuple(sorted(mutations)))
        if wrong:
            reasons = first_three([f"{word} ({reason})" for word, reason in wrong.items()])
            more = self.fitting_shift(written)
            advice = f"; all fit if {more} is added to the numbers (--shift {more + shift})" if more else ""
            raise ConfigError(f"{len(wrong)} mutations do not fit the structure: {reasons}{advice}")
        return mutants

    def fitting_shift(self, written: Mapping[Key, str]) -> int:
        """What to add to the numbers so that all mutations fit; 0 if nothing. One or two might fit by chance."""
        types = dict(zip(self.keys, self.wild))
        for more in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs):
            shifted = {(chain, number + more, code): own for (chain, number, code), own in written.items()}
            if len(written) > 2 and shifted.items() <= types.items():
                return more
        return 0

    def left_out(self, text: str, shift: int = 0) -> str:
        """Why a text is no substitution of the structure that could be learned from, in words; "" if it may be one."""
        for kind, pattern in NO_SUBSTITUTION.items():
            if pattern.search(unquote(text)):
                return kind
        for word in filter(None, map(parse, words_of(text))):
            chain, number, _ = self.key_of(word, shift)
            numbers = {known for own, known, _ in self.keys if own == chain}
            if numbers and number not in numbers and min(numbers) < number < max(numbers):
                return "in a gap of the structure"
        return ""

    def within(self, text: str) -> np.ndarray:
        """Which positions are in ranges of the structure's numbers, as 5-60,80 or B:1-9 (P,). Raises ConfigError."""
        chains, numbers, _ = map(np.array, zip(*self.keys))
        found = np.zeros(len(self.keys), dtype=bool)
        for part in re.split(r"[,;\s]+", text.strip()):
            match = RANGE.fullmatch(part)
            if not match:
                raise ConfigError(f"{part!r} is no range of residues like 5-60")
            chain, first, last = match.groups()
            inside = (int(first) <= numbers) & (numbers <= int(last or first))
            if chain:
                inside &= chains == self.chain_of(chain)
            if not inside.any():
                raise ConfigError(f"there is no residue {part}")
            found |= inside
        return found


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
    return [word for word in BETWEEN.split(SAME_RANGE.sub(r"\1=;\2", text)) if word.lower() not in SYNONYMOUS]


def no_mutation(word: str, text: str) -> str:
    """What is wrong with a word of a text that is no mutation."""
    if DATE.fullmatch(text.strip()):
        return "is a date: a spreadsheet may have made it of a name, so format the names as text"
    of_chain = WITH_CHAIN.fullmatch(word)
    hint = of_chain.expand(r"; of chain \2 it is \2:\1\3") if of_chain else ""
    return f"is no mutation like A52G{hint}"


def is_synonymous(text: str) -> bool:
    """Whether a text says that the protein is that of the wild type, though the gene is not."""
    words = map(parse, words_of(text))
    return text.strip().lower() not in WILD_TYPE and all(word and word.own == word.new for word in words)


def parse(word: str) -> Word | None:
    """The parts of one mutation, in one letter or three; None if it is none."""
    match = MUTATION.fullmatch(word)
    if not match:
        return None
    chain, own, number, code, new = match.groups()
    own, new = (LETTERS.get(name.upper(), name.upper()) for name in (own, new or own))  # A52= is A52A
    return Word(chain or "", own, int(number), code, new)


# ---- the next batch --------------------------------------------------------------------------------------------------


def letters(text: str) -> np.ndarray:
    """Which types are in a text such as AVIL or A,V: (20,). Raises ConfigError."""
    found = {*text.upper()} - {*", ;/"}
    if not found or found - {*ONE_LETTER}:
        raise ConfigError(f"{text!r} are no types like AVIL")
    return np.isin([*ONE_LETTER], [*found])


@dataclass(frozen=True)
class Wishes:
    """What the next batch shall be like. Raises ConfigError for one that is empty."""

    batch: int = 96
    per_position: int = 2
    explore: float = 0.0
    positions: str | None = None
    not_positions: str | None = None
    types: str | None = None
    not_types: str | None = None

    def __post_init__(self):
        if min(self.batch, self.per_position) < 1:
            raise ConfigError("the next batch must have one mutant at least, and one of a position (--per-position)")

    def allowed(self, numbering: Positions) -> np.ndarray:
        """Which mutations, by position and new type, may be in the next batch (P, 20). Raises ConfigError."""
        if self.positions is None:  # translation begins at the first Met of a chain
            chains = [chain for chain, _, _ in numbering.keys]
            places = np.array([own != "M" for own in numbering.wild])
            places |= [chain in chains[:i] for i, chain in enumerate(chains)]
        else:
            places = numbering.within(self.positions)
        new = letters(ONE_LETTER if self.types is None else self.types)
        if self.not_positions is not None:
            places &= ~numbering.within(self.not_positions)
        if self.not_types is not None:
            new &= ~letters(self.not_types)
        return np.outer(places, new)
