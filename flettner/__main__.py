"""`python -m flettner`."""

import sys

from flettner.agent.cli.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
