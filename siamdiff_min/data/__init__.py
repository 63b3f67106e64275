"""The modules of 0.4 by their old names, so that plugins written for it still load. They go with 1.0."""

import sys

from ..reading import bundled, crops, shards, sources, store
from ..sets import atom3d, demo, ec, labelled_set, samples, sets, table_set

OLD_NAMES = {
    "atom3d": atom3d,
    "bundled": bundled,
    "crops": crops,
    "demo": demo,
    "ec": ec,
    "labelled": labelled_set,
    "samples": samples,
    "sets": sets,
    "shards": shards,
    "sources": sources,
    "store": store,
    "table": table_set,
}
for name, module in OLD_NAMES.items():
    sys.modules[f"{__name__}.{name}"] = module
