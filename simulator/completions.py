"""OpenAI's completions and chat completions in vLLM's format: requests and answers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flettner.simulator.text import chat_prompt

CompletionKind = Literal["completion", "chat"]


class CompletionRefusal(Exception):  # noqa: N818 - an answer, not a failure of ours
    """An error answer: `status` and vLLM's body."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One request. `max_tokens` None: up to the model's context length."""

    kind: CompletionKind
    model: str
    prompt: str | tuple[int, ...]
    max_tokens: int | None
    stream: bool
    include_usage: bool
    ignore_eos: bool


def parse_request(kind: CompletionKind, raw: bytes, served: tuple[str, ...]) -> CompletionRequest:
    """Parse a body. Raises CompletionRefusal, as vLLM, for an invalid body or another model."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise CompletionRefusal(
            400, f"1 validation error:\n  JSON decode error: {error}", kind="Bad Request"
        ) from error
    if not isinstance(body, dict):
        raise CompletionRefusal(
            400, "1 validation error:\n  Input should be a valid dictionary", kind="Bad Request"
        )
    model = body.get("model") or served[0]
    if model not in served:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}."
        raise CompletionRefusal(404, message, kind="NotFoundError", param="model")
    most = body.get("max_completion_tokens") if kind == "chat" else None
    most = body.get("max_tokens", 16 if kind == "completion" else None) if most is None else most
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        message = f"max_tokens must be at least 1, got {most}. (parameter=max_tokens, value={most})"
        raise CompletionRefusal(400, message, param="max_tokens")
    options = body.get("stream_options")
    return CompletionRequest(
        kind=kind,
        model=model,
        prompt=_messages(body) if kind == "chat" else _prompt(body),
        max_tokens=most,
        stream=bool(body.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        ignore_eos=bool(body.get("ignore_eos")),
    )


def fit(request: CompletionRequest, prompt_tokens: int, max_model_len: int) -> int:
    """Return the number of tokens to generate. Raises CompletionRefusal if they exceed the context."""
    room = max_model_len - prompt_tokens
    if room < 1:
        raise CompletionRefusal(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"at least {prompt_tokens} input tokens, which exceeds this limit even without any output "
            f"tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            param="input_tokens",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise CompletionRefusal(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{request.max_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, "
            f"for a total of {request.max_tokens + prompt_tokens} tokens. Please reduce the length of the "
            f"input prompt or the number of requested output tokens. "
            f"(parameter=max_tokens, value={request.max_tokens})",
            param="max_tokens",
        )
    return room if request.max_tokens is None else request.max_tokens


def _prompt(body: Mapping[str, Any]) -> str | tuple[int, ...]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return tuple(prompt)
    raise CompletionRefusal(400, "prompt must be one non-empty string or list of token ids", param="prompt")


def _messages(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CompletionRefusal(400, "messages must be a non-empty list", param="messages")
    turns: list[tuple[str, str]] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise CompletionRefusal(400, "each message has a role and a content of text", param="messages")
        turns.append((str(message.get("role", "user")), message["content"]))
    return chat_prompt(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The frame of one answer: id, model, time and kind."""

    request: CompletionRequest
    name: str  # "cmpl-…" or "chatcmpl-…"
    created: int  # unix seconds
    fingerprint: str

    def chunk(self, text: str, finish_reason: str | None) -> bytes:
        """Return a server-sent event with a piece of text."""
        return self._event([self._choice(text, finish_reason, streamed=True)])

    def opening(self) -> bytes:
        """Return the first event: the role of a chat; nothing for a completion."""
        if self.request.kind == "completion":
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def closing(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """Return the usage, if requested, and the end mark."""
        done = b"data: [DONE]\n\n"
        if not self.request.include_usage:
            return done
        return self._event([], usage=_usage(prompt_tokens, completion_tokens)) + done

    def whole(
        self, text: str, finish_reason: str, prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """Return the body of an answer without streaming."""
        return {
            "id": self.name,
            "object": "text_completion" if self.request.kind == "completion" else "chat.completion",
            "created": self.created,
            "model": self.request.model,
            "choices": [self._choice(text, finish_reason, streamed=False)],
            "system_fingerprint": self.fingerprint,
            "usage": _usage(prompt_tokens, completion_tokens),
        }

    def _choice(self, text: str, finish_reason: str | None, *, streamed: bool) -> dict[str, Any]:
        rest = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        if self.request.kind == "completion":
            return {"index": 0, "text": text, **rest}
        if streamed:
            return {"index": 0, "delta": {"content": text}, **rest}
        return {"index": 0, "message": {"role": "assistant", "content": text}, **rest}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self.name,
            "object": "text_completion" if self.request.kind == "completion" else "chat.completion.chunk",
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }
        if usage is not None:
            body |= {"usage": usage, "system_fingerprint": self.fingerprint}
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
