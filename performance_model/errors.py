"""Input that the performance model cannot use."""

from flettner.vllm_facts.errors import VllmFactsError


class PredictionInputError(VllmFactsError):
    """A trace, a law or an option; the message names the place and what it must hold."""
