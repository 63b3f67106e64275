"""Mutations as people write them: A52G, A:A52aG, A52G/L60V, WT."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..files import ConfigError
from ..protein.constants import ONE_LETTER
from ..reading.structure import Structure
from .mutation_model import Mutant, decode, encode

MUTATION = re.compile(rf"(?:(\w+):)?([A-Z])(-?\d+)([A-Za-z]?)([{ONE_LETTER}])")  # chain, type, number, code, new type
BETWEEN = re.compile(r"[/+,;\s]+|(?<=\d[A-Z]):")  # mutations; A:A52G is a mutation of chain A, A52G:L60V are two
WILD_TYPE = {"wt", "wildtype", "wild-type", "wild type"}
MAX_SHIFT = 2000
SHOWN = 5  # misfits in an error
Key = tuple[str, int, str]  # chain, number by the author, insertion code


class Places(NamedTuple):
    """The R residues of a structure that may be mutated."""

    rows: list[int]  # of the structure
    keys: list[Key]
    wild: str  # one letter each

    @staticmethod
    def of(structure: Structure, chains: Sequence[str] | None) -> "Places":
        """The residues of these chains, by default of the first. Raises ConfigError."""
        known = structure.chain_names
        chains = chains or known[:1]
        unknown = {*chains} - {*known}
        if unknown:
            raise ConfigError(f"there is no chain {', '.join(sorted(unknown))}, but {', '.join(known)}")

        keys = [(chain, number, code.strip()) for chain, number, code in structure.positions]
        rows = []
        for chain in chains:
            rows += [i for i, (own, _, _) in enumerate(keys) if own == chain]
        types = structure.protein.residue_type[rows].tolist()
        return Places(rows, [keys[i] for i in rows], "".join(ONE_LETTER[t] for t in types))

    def label(self, i: int, own: str = "", new: str = "") -> str:
        """A residue as text, such as 52 or A52G; with its chain if there are several."""
        chain, number, code = self.keys[i]
        first, last = self.keys[0], self.keys[-1]
        ahead = f"{chain}:" if first[0] != last[0] else ""
        return f"{ahead}{own}{number}{code}{new}"

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V."""
        words = []
        for mutation in mutant:
            i, new = decode(mutation)
            words.append(self.label(i, self.wild[i], ONE_LETTER[new]))
        return "/".join(words) or "WT"

    def read(self, texts: Iterable[str], shift: int = 0) -> list[Mutant]:
        """The mutants that texts stand for. Raises ConfigError, with all that do not fit in one sentence."""
        index = {key: i for i, key in enumerate(self.keys)}
        mutants = []
        wrong = {}  # mutation as written -> what is wrong with it
        written = {}  # key -> own type, of all mutations, whether they fit or not
        for text in texts:
            changes = {}  # residue -> new type
            for word in words_of(text):
                match = MUTATION.fullmatch(word)
                if not match:
                    wrong[word] = "is no mutation like A52G"
                    continue
                # Which residue it is of. Without a chain that is the first one.
                default_chain, _, _ = self.keys[0]
                chain, own, number, code, new = match.groups(default_chain)
                key = chain, int(number) + shift, code
                written[key] = own

                # Whether the structure has this type there, and no other mutation of this text is of it.
                i = index.get(key)
                misfit = self.misfit(chain, i, own)
                if misfit:
                    wrong[word] = misfit
                elif i in changes:
                    wrong[word] = f"a second mutation there in {text}"
                changes[i] = new
            if not wrong:
                mutations = [encode(i, ONE_LETTER.index(new)) for i, new in changes.items() if new != self.wild[i]]
                mutants.append(tuple(sorted(mutations)))
        if wrong:
            raise ConfigError(self.all_misfits(wrong, written, shift))
        return mutants

    def misfit(self, chain: str, i: int | None, own: str) -> str:
        """Why a mutation of residue `i` of a chain does not fit; "" if it does."""
        if chain not in {known for known, _, _ in self.keys}:
            return f"chain {chain} is not among those of --chain"
        if i is None:
            return "no such residue"
        if self.wild[i] != own:
            return f"the structure has {self.wild[i]}"
        return ""

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
        index = {key: i for i, key in enumerate(self.keys)}
        for more in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)[1:]:  # but for 0
            places = [index.get((chain, number + more, code)) for chain, number, code in written]
            if None not in places and [self.wild[i] for i in places] == [*written.values()]:
                return more
        return None


def words_of(text: str) -> list[str]:
    """The mutations in a text, none of the wild type."""
    text = text.strip()
    return [] if text.lower() in WILD_TYPE else BETWEEN.split(text)
