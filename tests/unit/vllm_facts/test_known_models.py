"""The table of well-known models: its shapes give the published number of parameters."""

from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.models.table import LINES, ModelRow, find_row

TOLERANCE = 0.03
TWO_MATRICES = frozenset(  # an MLP without a gate
    {"apertus", "arcee", "bert", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpnet", "mpt"}
    | {"nemotron", "opt", "phi", "roberta", "starcoder2", "xlm-roberta"}
)
LEARNED_POSITIONS = frozenset({"bert", "gpt2", "mpnet", "opt", "roberta", "xlm-roberta"})
MLA = {  # q_lora_rank, qk_nope_head_dim, v_head_dim; qk_rope_head_dim is 64
    "deepseek_v2": (1536, 128, 128),
    "deepseek_v3": (1536, 128, 128),
    "deepseek_v32": (1536, 128, 128),
    "deepseek_vl_v2": (0, 128, 128),
    "glm4_moe_lite": (768, 192, 256),
    "glm_moe_dsa": (2048, 192, 256),
    "kimi_k2": (1536, 128, 128),
    "kimi_k25": (1536, 128, 128),
    "kimi_vl": (0, 128, 128),
    "mistral3": (1024, 64, 128),
}
SMALL_MLA = 4096  # a narrower model has no q_lora_rank
OF_ANOTHER_FORM = frozenset(
    {"arctic", "aria", "deepseek_v4", "ernie4_5_moe_vl", "fuyu", "gemma3n", "gemma4"}
    | {"gemma4_unified", "glm_ocr", "granite_speech", "paddleocr_vl"}
    | {"longcat_flash", "mimo_v2_flash", "minicpm3", "minicpmo", "minicpmv", "mllama", "modernbert", "molmo"}
    | {
        "nemotron-nas",
        "new",
        "nomic_bert",
        "ovis2_5",
        "persimmon",
        "phi4mm",
        "qwen2_5_omni",
        "qwen3_omni_moe",
    }
    | {"step3p5", "step3p7", "ultravox", "voxtral", "whisper"}
)
"""model_types with layers that differ, with encoders of unknown size, or with an encoder and a decoder."""
WITHOUT_OUTPUT = frozenset({"bge-en-icl", "e5-mistral-7b-instruct"})  # embedding models
OF_ANOTHER_SIZE = frozenset(
    {"deepseek-ocr", "deepseek-vl2-tiny", "glm-4v-9b", "jina-embeddings-v3", "opt-350m"}
)
"""An encoder of unknown size; adapters; an embedding that is narrower than the layers."""


def parameters_of_shapes(row: ModelRow) -> float | None:
    """Attention, MLP or experts, embedding; None if a shape is unknown or the layers have another form."""
    if row.hybrid or row.model_type in OF_ANOTHER_FORM or row.key in OF_ANOTHER_SIZE:
        return None
    if not (row.layers and row.hidden and row.heads and row.kv_heads and row.head_dim and row.vocab):
        return None
    matrices = 2 if row.model_type in TWO_MATRICES else 3
    moe = (row.layers if row.moe_layers is None else row.moe_layers) if row.experts else 0
    experts = (row.moe_intermediate or 0) * (row.experts or 0) + (row.shared or 0)
    attention = _mla(row) if row.latent else 2 * row.hidden * row.head_dim * (row.heads + row.kv_heads)
    dense = (row.layers - moe) * matrices * row.hidden * (row.intermediate or 0)
    embedding = row.hidden * row.vocab if row.source and _embeds_only(row) else row.apart
    positions = row.hidden * (row.max_len or 0) if row.model_type in LEARNED_POSITIONS else 0
    sparse = moe * row.hidden * (matrices * experts + (row.experts or 0))
    encoder = (row.encoder or 0) * 1e9
    return row.layers * attention + dense + sparse + embedding + positions + encoder


def _mla(row: ModelRow) -> int:
    assert row.latent
    assert row.hidden
    assert row.heads
    low, flat, value = MLA[row.model_type]
    low = 0 if row.hidden < SMALL_MLA and row.model_type != "glm4_moe_lite" else low
    rope, rank = 64, row.latent - 64
    query = low * (row.hidden + row.heads * (flat + rope)) if low else row.hidden * row.heads * (flat + rope)
    return (
        query + row.hidden * row.latent + rank * row.heads * (flat + value) + row.heads * value * row.hidden
    )


def _embeds_only(row: ModelRow) -> bool:
    return "embed" in row.key or "reward" in row.key or row.key in WITHOUT_OUTPUT


def test_the_shapes_of_each_known_model_give_its_published_size() -> None:
    counted = {}
    for key in LINES:
        row = find_row(key)
        assert row is not None
        parameters = parameters_of_shapes(row)
        if parameters is not None:
            counted[key] = parameters / row.parameters
    assert len(counted) > 800
    assert {key: ratio for key, ratio in counted.items() if abs(ratio - 1) > TOLERANCE} == {}


def test_a_model_of_which_only_the_size_is_published_is_not_known() -> None:
    unknown = [key for key in LINES if find_model(key) is None]
    assert all((row := find_row(key)) and row.layers is None for key in unknown)
    assert len(unknown) < 40
