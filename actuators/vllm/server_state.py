"""What a vLLM server keeps in memory that no other server gets, as far as its environment tells."""

from collections.abc import Mapping

STORE = "VLLM_ENABLE_RESPONSES_API_STORE"  # vLLM 0.32, vllm/entrypoints/openai/responses/serving.py


def describe_lost_state(env: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences for the operator who approves that another server takes this one's place."""
    if env.get(STORE, "0") in {"", "0"}:
        return ()
    note = (
        f"the server stores answers of /v1/responses in its memory ({STORE}={env[STORE]}), and vLLM cannot "
        "list them: a request with their previous_response_id gets 404 from every other server, so from green"
    )
    return (note,)
