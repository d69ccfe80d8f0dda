"""`python -m flettner`."""

import sys

from flettner.tools.cli.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
