"""Where proteins come from: structure files and archives, the memory-mapped store built from them, random crops."""

from .build import build_store, open_store
from .crops import Crops, collate, split
from .store import ProteinStore

__all__ = ["Crops", "ProteinStore", "build_store", "collate", "open_store", "split"]
