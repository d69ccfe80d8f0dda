"""Text without a model: token counts, hashes of cache blocks, generated answers."""

from collections.abc import Sequence
from random import Random
from zlib import crc32

CHARACTERS = 4  # of one token; what English text in a large vocabulary comes to

_WORDS = (  # of three letters each
    "theandforarebutnotyouallanycanhadherwasoneouroutdaygethashimhishowmannewnowold"
    "seetwowaywhoboydiditsletputsayshetoouse"
)


def draws(seed: int, *about: object) -> Random:
    """Return a separate random stream for each purpose, the same for the same seed."""
    return Random(":".join(map(str, (seed, *about))))  # noqa: S311 - simulation, not cryptography


class Transcript:
    """The text of a request: its prompt and the answer so far, with the hashes of its full blocks.

    Each generated token has four characters, so that a client that sends the answer back as part of its next
    prompt finds the same blocks again.
    """

    def __init__(self, prompt: str | Sequence[int], block_size: int, seed: int) -> None:
        self._tokens = isinstance(prompt, str)
        self._text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        self.prompt_tokens = max(1, -(-len(prompt) // CHARACTERS) if self._tokens else len(prompt))
        self.hashes: list[int] = []
        self._block = block_size * CHARACTERS
        self._draw = crc32(self._text.encode(errors="surrogatepass"), seed & 0xFFFFFFFF)
        self.natural_length = 16 + self._draw % 240  # tokens until this "model" would stop by itself
        if isinstance(prompt, str):
            self._hash_up_to(len(self._text))
        else:
            self._hash_ids(prompt, block_size)

    def produce(self) -> str:
        """Return the next token, the same for the same seed and prompt."""
        self._draw = (self._draw * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        word = 3 * ((self._draw >> 8) % (len(_WORDS) // 3))
        token = " " + _WORDS[word : word + 3]
        if self._tokens:
            self._text += token
            self._hash_up_to(len(self._text))
        return token

    def _hash_up_to(self, end: int) -> None:
        while (len(self.hashes) + 1) * self._block <= end:
            start = len(self.hashes) * self._block
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(hash((parent, self._text[start : start + self._block])))

    def _hash_ids(self, ids: Sequence[int], block_size: int) -> None:
        for start in range(0, len(ids) - block_size + 1, block_size):
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(hash((parent, *ids[start : start + block_size])))


def chat_prompt(messages: Sequence[tuple[str, str]]) -> str:
    """Return the prompt of a chat; an earlier turn with its answer is a prefix of the later turns."""
    return "".join(f"{role}:{content}\n" for role, content in messages) + "assistant:"
