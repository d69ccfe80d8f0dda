"""The errors of this package.

VllmFactsError
└── FlagError   a vLLM command line or flag value that cannot be read
"""


class VllmFactsError(Exception):
    """The input is not what vLLM accepts; the message says what was found and what to write instead."""


class FlagError(VllmFactsError):
    """A vLLM command line that cannot be read or edited safely."""
