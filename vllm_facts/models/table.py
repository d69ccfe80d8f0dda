"""Well-known models, one line each in `known_models.csv`: the facts in their `config.json`, and their size.

The columns are the fields of ModelRow. Uncertain numbers are left out. `scripts/known_models.py` adds lines;
`source` says where a line's numbers come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

TABLE = Path(__file__).with_name("known_models.csv")

LOADED = {
    "gpt-oss-20b": 0.704,  # 13.72 GiB: start-up logs of 0.19.0 on an A100 (myoceane.fr, April 2026)
    "gpt-oss-120b": 0.592,  # "Model loading took 64.38 GiB": vllm-project/vllm issue 33155 (0.14.1, H100)
    "kimi-k2-thinking": 0.58,  # 594 GB of files: the experts in 4 bit, the rest in 16
    "kimi-k2.5": 0.58,
    "kimi-k2.6": 0.58,
    "kimi-k2.7-code": 0.58,
}
"""Bytes of one parameter in GPU memory, if a start-up log shows more than the files' size (padding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model as published; the columns of the table. None: not known, or not of this kind of model."""

    key: str  # beginning of the name in lower case; in the file several, with blanks
    architecture: str
    model_type: str
    billions: float  # of parameters
    active: float | None  # billions for one token; None: all
    layers: int | None
    kv_layers: int | None  # those with a KV cache, if others have a recurrent state
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate: int | None  # of a dense MLP
    experts: int | None
    top: int | None  # experts for one token
    moe_intermediate: int | None
    shared: int | None  # width of all shared experts of a layer
    moe_layers: int | None  # layers with experts, if not all
    vocab: int | None
    tied: bool  # embedding and output are one matrix
    hybrid: bool
    mla: bool
    latent: int | None  # MLA: kv_lora_rank + qk_rope_head_dim
    max_len: int | None
    base_len: int | None  # max_len of the model with exactly this name, if it differs: the base model
    dtype: str
    stored: str  # quantization as published, with its blocks: "fp8:128x128"; empty for 16 bit
    encoder: float | None  # billions of image or audio encoder
    source: str

    @property
    def parameters(self) -> float:
        return round(self.billions * 1e4) * 1e5

    @property
    def apart(self) -> int:
        """Parameters of embedding and output: quantization leaves them in 16 bit."""
        return (self.vocab or 0) * (self.hidden or 0) * (1 if self.tied else 2)


COLUMNS = tuple(field.name for field in fields(ModelRow))
_KINDS = {field.name: field.type for field in fields(ModelRow)}


def find_row(key: str) -> ModelRow | None:
    line = LINES.get(key)
    return None if line is None else _row(key, line.split(","))


def _read_lines() -> dict[str, str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return {key: line for line in lines for key in line[: line.index(",")].split()}


LINES: Mapping[str, str] = _read_lines()  # when imported: the machine asks for a model, and must read no file


def _row(key: str, cells: list[str]) -> ModelRow:
    values: dict[str, object] = {
        name: _value(_KINDS[name], cell) for name, cell in zip(COLUMNS, cells, strict=True)
    }
    return ModelRow(**{**values, "key": key})  # type: ignore[arg-type]


def _value(kind: object, cell: str) -> object:
    if kind is str:
        return cell
    if kind is bool:
        return cell == "yes"
    if not cell:
        return None
    return int(cell) if kind == int | None else float(cell)
