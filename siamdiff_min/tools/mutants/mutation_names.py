"""Mutations as people write them: A52G, A:A52aG, t2e, p.Ala12Val, A52G/L60V, WT."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...files import ConfigError
from ...protein.constants import ONE_LETTER, RESIDUES
from ...reading.structure import Structure
from ..table.labels import DATE
from .mutation_model import Mutant, Mutation

# Chain, type in one letter or three, number, insertion code, new type.
MUTATION = re.compile(rf"(?:(\w+):)?([A-Z]{{3}}|[A-Z])(-?\d+)([A-Z]?)([A-Z]{{3}}|[{ONE_LETTER}])", re.IGNORECASE)
LETTERS = dict(zip(RESIDUES, ONE_LETTER))
# Between mutations. A:A52G is a mutation of chain A, A52G:L60V are two; T2E-Y3A are two, L-3P is one of residue -3.
BETWEEN = re.compile(r"[/+,;\s]+|(?<=\d[A-Z]):|(?<=[A-Za-z])[-_](?=[A-Za-z]{1,3}-?\d)")
PREFIX = re.compile(r"([\w.]+:)?p\.\s*")  # of HGVS, with the accession of the sequence; it may have brackets too
WILD_TYPE = {"wt", "wildtype", "wild-type", "wild type", "_wt"}
SYNONYMOUS = re.compile(r"=|_sy|([A-Z]{1,3}-?\d+)=", re.IGNORECASE)  # the protein is the wild type's
WITH_CHAIN = re.compile(r"^([A-Z])(\w)(-?\d+[A-Z])$", re.IGNORECASE)  # LA38G, as some programs write L38G of chain A
NO_SUBSTITUTION = {  # kind -> how it is written, by the rules of HGVS or by habit
    "a frame shift": re.compile(r"\dfs|\d[A-Z]{1,3}fs", re.IGNORECASE),
    "an insertion": re.compile(r"\d(ins|dup|delins)|(?<!del)ins|^(p\.)?delins", re.IGNORECASE),
    "a deletion": re.compile(r"\d(del|Δ)|^(p\.)?(del|Δ)[A-Z]", re.IGNORECASE),
    "a stop codon": re.compile(r"\d(\*|ter|stop)", re.IGNORECASE),
    "of an effect that is not known": re.compile(r"^(.*p\.)?(\?|0|na)$|\?\)?$", re.IGNORECASE),
}
GAP = "in a gap of the structure"
RANGE = re.compile(r"(?:(\w+):)?(-?\d+)(?:-(-?\d+))?")
MAX_SHIFT = 2000
SHOWN = 5  # misfits in an error
Key = tuple[str, int, str]  # chain, number by the author, insertion code


class Word(NamedTuple):
    """One mutation as it is written."""

    chain: str  # "" if it does not say
    own: str  # one letter
    number: int
    code: str
    new: str  # one letter


class Positions(NamedTuple):
    """The P positions of a structure that may be mutated. Chains of one sequence share them, as one gene makes both."""

    residues: list[list[int]]  # rows of the structure: of the chain, and of its copies
    keys: list[Key]  # of the chain
    wild: str  # one letter each
    copy_of: Mapping[str, str] = {}  # chain -> the one with the same sequence that stands for it

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

        # Every chain stands for those of its sequence.
        copy_of = {}
        for chain in chains:
            if chain not in copy_of:
                copy_of |= {other: chain for other in known if are_copies(of_chain[chain], of_chain[other])}

        residues = []
        keys = []
        wild = ""
        for chain in dict.fromkeys(copy_of.values()):
            others = [of_chain[other] for other, own in copy_of.items() if own == chain != other]
            for place, (row, own) in of_chain[chain].items():
                residues.append([row, *(other[place][0] for other in others if place in other)])
                keys.append((chain, *place))
                wild += own
        return Positions(residues, keys, wild, copy_of)

    @property
    def index(self) -> dict[Key, int]:
        """Every position by its key."""
        return {key: i for i, key in enumerate(self.keys)}

    @property
    def chains(self) -> list[str]:
        """The chains that stand for all of their sequence."""
        return [*dict.fromkeys(chain for chain, _, _ in self.keys)]

    def chain_of(self, chain: str) -> str:
        """The chain that stands for this one; the first if none is named."""
        chain = chain or self.chains[0]
        return self.copy_of.get(chain, chain)

    def label(self, i: int, own: str = "", new: str = "") -> str:
        """A position as text, such as 52 or A52G; with its chain if there are several."""
        chain, number, code = self.keys[i]
        ahead = f"{chain}:" if len(self.chains) > 1 else ""
        return f"{ahead}{own}{number}{code}{new}"

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V."""
        words = [self.label(i, self.wild[i], ONE_LETTER[new]) for i, new in mutant]
        return "/".join(words) or "WT"

    def is_first_methionine(self, i: int) -> bool:
        """Whether a position is the first of its chain, and Met: translation begins there."""
        chain, _, _ = self.keys[i]
        return self.wild[i] == "M" and (i == 0 or self.keys[i - 1][0] != chain)

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
                place = self.chain_of(found.chain), found.number + shift
                key = (*place, found.code)
                if key not in index and (*place, found.code.swapcase()) in index:
                    key = (*place, found.code.swapcase())
                written[key] = found.own

                # Whether the structure has this type there, and no other mutation of this text is of it.
                i = index.get(key)
                if place[0] not in self.chains:
                    wrong[word] = f"chain {place[0]} is not among those of --chain"
                elif i is None:
                    wrong[word] = "no such residue"
                elif self.wild[i] != found.own:
                    wrong[word] = f"the structure has {self.wild[i]}"
                elif i in changes:
                    wrong[word] = f"a second mutation there in {text}"
                changes[i] = found.new
            if not wrong:
                mutations = [Mutation(i, ONE_LETTER.index(new)) for i, new in changes.items() if new != self.wild[i]]
                mutants.append(tuple(sorted(mutations)))
        if wrong:
            raise ConfigError(self.all_misfits(wrong, written, shift))
        return mutants

    def all_misfits(self, wrong: Mapping[str, str], written: Mapping[Key, str], shift: int) -> str:
        """The sentence about mutations that do not fit, and about another shift with which all would."""
        first = [f"{word} ({reason})" for word, reason in wrong.items()][:SHOWN]
        sentence = f"{len(wrong)} mutations do not fit the structure: {', '.join(first)}"
        if len(wrong) > SHOWN:
            sentence += f" and {len(wrong) - SHOWN} more"
        more = self.fitting_shift(written)
        if more:
            sentence += f"; all fit if {more} is added to the numbers (--shift {more + shift})"
        return sentence

    def fitting_shift(self, written: Mapping[Key, str]) -> int | None:
        """What to add to the numbers so that all mutations fit, if anything. One or two might fit by chance."""
        if len(written) < 3:
            return None
        index = self.index
        for more in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)[1:]:  # but for 0
            found = [index.get((chain, number + more, code)) for chain, number, code in written]
            if None not in found and [self.wild[i] for i in found] == [*written.values()]:
                return more
        return None

    def left_out(self, text: str, shift: int = 0) -> str:
        """Why a text is no substitution of the structure that could be learned from, in words; "" if it may be one."""
        for kind, pattern in NO_SUBSTITUTION.items():
            if pattern.search(text):
                return kind
        for word in words_of(text):
            found = parse(word)
            if found and self.in_gap(self.chain_of(found.chain), found.number + shift):
                return GAP
        return ""

    def in_gap(self, chain: str, number: int) -> bool:
        """Whether the structure lacks this residue, although it has others before and behind it in the chain."""
        numbers = {known for own, known, _ in self.keys if own == chain}
        return number not in numbers and bool(numbers) and min(numbers) < number < max(numbers)

    def within(self, text: str) -> np.ndarray:
        """Which positions are in ranges of the structure's numbers, as 5-60,80 or B:1-9 (P,). Raises ConfigError."""
        chains = np.array([chain for chain, _, _ in self.keys])
        numbers = np.array([number for _, number, _ in self.keys])
        found = np.zeros(len(self.keys), dtype=bool)
        for part in re.split(r"[,;\s]+", text.strip()):
            match = RANGE.fullmatch(part)
            chain, first, last = match.groups() if match else (None, "1", "0")
            if int(last or first) < int(first):
                raise ConfigError(f"{part!r} is no range of residues like 5-60")
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
    if 2 * len(shared) < max(len(one), len(two)):
        return False
    return all(one[place][1] == two[place][1] for place in shared)


def words_of(text: str) -> list[str]:
    """The mutations in a text, none of the wild type."""
    text = text.strip()
    if PREFIX.match(text):
        text = PREFIX.sub("", text, count=1).strip("[]()")
    if text.lower() in WILD_TYPE:
        return []
    return [word for word in BETWEEN.split(text) if not SYNONYMOUS.fullmatch(word)]


def no_mutation(word: str, text: str) -> str:
    """What is wrong with a word of a text that is no mutation."""
    if DATE.fullmatch(text.strip()):
        return "is a date: a spreadsheet may have made it of a name, so format the names as text"
    sentence = "is no mutation like A52G"
    of_chain = WITH_CHAIN.fullmatch(word)
    return (
        f"{sentence}; of chain {of_chain[2]} it is {of_chain[2]}:{of_chain[1]}{of_chain[3]}" if of_chain else sentence
    )


def is_synonymous(text: str) -> bool:
    """Whether a text says that the protein is that of the wild type, though the gene is not."""
    return not words_of(text) and text.strip().lower() not in WILD_TYPE


def parse(word: str) -> Word | None:
    """The parts of one mutation, in one letter or three; None if it is none."""
    match = MUTATION.fullmatch(word)
    if not match:
        return None
    chain, own, number, code, new = match.groups()
    own, new = (LETTERS.get(name.upper(), name.upper()) for name in (own, new))
    return Word(chain or "", own, int(number), code, new) if len(own + new) == 2 else None


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
        for least, what in ((self.batch, "one mutant"), (self.per_position, "one mutant of a position")):
            if least < 1:
                raise ConfigError(f"the next batch must have {what} at least, not {least}")

    def allowed(self, numbering: Positions) -> np.ndarray:
        """Which mutations, by position and new type, may be in the next batch (P, 20). Raises ConfigError."""
        first = [numbering.is_first_methionine(i) for i in range(len(numbering.wild))]
        places = ~np.array(first) if self.positions is None else numbering.within(self.positions)
        new = letters(ONE_LETTER if self.types is None else self.types)
        if self.not_positions is not None:
            places &= ~numbering.within(self.not_positions)
        if self.not_types is not None:
            new &= ~letters(self.not_types)
        return np.outer(places, new)
