"""`siamdiff-data build PATHS` builds and checks stores, `siamdiff-data download ...` fetches the paper's data."""

import argparse
import sys

from . import build, download

COMMANDS = {"build": build.main, "download": download.main}


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-data", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see siamdiff-data build --help")
    args = parser.parse_args(argv)
    return COMMANDS[args.command](args.options)


if __name__ == "__main__":
    sys.exit(main())
