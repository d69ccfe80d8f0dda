"""The errors of this package.

VllmFactsError
├── FlagError         a vLLM command line, config file or flag value that cannot be read
└── MetricsPageError  a /metrics page that is cut, malformed or not of a vLLM server
"""


class VllmFactsError(Exception):
    """Invalid input; the message states what was found and what to write instead."""


class FlagError(VllmFactsError):
    """A vLLM command line that cannot be read or edited safely."""


class MetricsPageError(VllmFactsError):
    """A /metrics page that cannot be read."""
