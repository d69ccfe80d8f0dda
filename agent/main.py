"""The command `flettner`."""

import sys

from agent.cli import dispatch


def main() -> int:
    return dispatch.main()


if __name__ == "__main__":
    sys.exit(main())
