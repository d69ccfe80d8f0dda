"""`python -m trimtab`."""

import sys

from trimtab.entry import trimtab

if __name__ == "__main__":
    sys.exit(trimtab())
