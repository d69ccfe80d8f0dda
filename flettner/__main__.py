"""`python -m flettner`."""

import sys

from flettner.entry import flettner

if __name__ == "__main__":
    sys.exit(flettner())
