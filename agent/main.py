"""The command `trimtab`."""

import sys

from agent import cli


def main() -> int:
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
