"""The errors of this package.

VllmFactsError
├── FlagError         a vLLM command line, config file or flag value that cannot be read
├── MetricsPageError  a /metrics page that is cut, malformed or not of a vLLM server
└── FactError         a row of a table of facts that is wrong: a defect of flettner
"""


class VllmFactsError(Exception):
    """Invalid input; the message states what was found and what to write instead."""


class FlagError(VllmFactsError):
    """A vLLM command line that cannot be read or edited safely."""


class MetricsPageError(VllmFactsError):
    """A /metrics page that cannot be read."""


class FactError(VllmFactsError):
    """A wrong row in a TOML file of facts; the message names file, row and key."""
