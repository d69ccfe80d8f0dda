"""Quantized weights against the GPU's compute capability and the dtype."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flettner.vllm_facts.catalogue.facts import release_of
from flettner.vllm_facts.fact_tables import FOLDER, read_tables
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.dtypes import dtype_in_force
from flettner.vllm_facts.sizing.effective_flags import is_older_than, text_of
from flettner.vllm_facts.start_facts import find_last
from flettner.vllm_facts.validity.refusal import VLLM, InvalidSetting, capability_text

_SOURCE = f"{VLLM}: _get_quantization_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One quantization: the least compute capability that it needs, and the dtypes that it computes in."""

    capability: str
    dtypes: tuple[str, ...] = ("bfloat16", "float16")

    @property
    def least(self) -> tuple[int, int]:
        return release_of(self.capability) or (0, 0)


METHODS = read_tables(FOLDER / "validity/quantization.toml", Method)

_OLDER = {"fp8": (8, 0)}  # before Turing got the Marlin kernels
MARLIN_ON_TURING = (0, 14)  # vllm-project/vllm#29901

_LOADED = re.compile(
    r"\bquantization=(?!None)(?P<method>\w[\w-]{0,40})|/quantization/(?P<folder>compressed_tensors)/"
)
_SPELLINGS = {"auto-round": "inc", "auto_round": "inc", "compressed_tensors": "compressed-tensors"}


def method_in_force(config: ServeConfig) -> str:
    """The quantization of the checkpoint, else that of `--quantization`; "" without either."""
    name = (config.model.quantization if config.model else "") or text_of(config, "quantization")
    name = name.lower()
    name = _SPELLINGS.get(name, name)
    return name if name in METHODS else _SPELLINGS.get(name.replace("-", "_"), name.replace("-", "_"))


def refuses_dtype(config: ServeConfig, dtype: str) -> bool:
    """Whether the quantization in force has no kernels for `dtype`."""
    method = METHODS.get(method_in_force(config))
    return method is not None and bool(dtype) and dtype not in method.dtypes


def _is_other_by_log(config: ServeConfig, method: str) -> bool:
    """Whether the log shows another method than the model's name: AWQ names an algorithm, too."""
    told = find_last(_LOADED, config.log)
    return told is not None and (told["method"] or told["folder"]).replace("_", "-") != method.replace(
        "_", "-"
    )


def check_capability(config: ServeConfig) -> Iterator[InvalidSetting]:
    method = method_in_force(config)
    capability = config.card.capability if config.card else None
    if config.card is None or capability is None or method not in METHODS:
        return
    least = METHODS[method].least
    if is_older_than(config, MARLIN_ON_TURING):
        least = _OLDER.get(method, least)
    if capability >= least or _is_other_by_log(config, method):
        return
    by_flag = not (config.model and config.model.quantization)
    what = (
        f"--quantization {text_of(config, 'quantization')}"
        if by_flag
        else f"{_name(config)} ({method} weights)"
    )
    yield InvalidSetting(
        rule="H2",
        why=(
            f"{what} on {config.card.name} (compute capability {capability_text(capability)}): {method} "
            f"needs {capability_text(least)}, the server does not start"
        ),
        source=f"{_SOURCE}: 'The quantization method {method} is not supported for the current GPU. Minimum "
        f"capability: {least[0] * 10 + least[1]}.'",
        to={"quantization": None} if by_flag else {},
        expects=(
            "it starts with the weights as they are, if they fit"
            if by_flag
            else "a checkpoint in GPTQ, or in AWQ from 7.5 on, or a newer GPU"
        ),
        risks="the weights take more memory" if by_flag else "none",
    )


def check_dtype(config: ServeConfig) -> Iterator[InvalidSetting]:
    method, dtype = method_in_force(config), dtype_in_force(config)
    if not refuses_dtype(config, dtype) or any(check_capability(config)):
        return
    given = text_of(config, "dtype")
    automatic = replace(
        config, setting={knob: value for knob, value in config.setting.items() if knob != "dtype"}
    )
    mends = (
        bool(given) and given.lower() != "auto" and not refuses_dtype(automatic, dtype_in_force(automatic))
    )
    shown = f"--dtype {given}" if given else f"{dtype}, which vLLM chooses for this GPU"
    yield InvalidSetting(
        rule="H2",
        why=(f"{shown}: {method} weights ({_name(config)}) run in {', '.join(METHODS[method].dtypes)} only"),
        source=f"{_SOURCE}: 'torch.{dtype} is not supported for quantization method {method}.'",
        to={"dtype": None} if mends else {},
        expects="it starts, in the dtype that vLLM chooses"
        if mends
        else "another checkpoint, or a newer GPU",
        risks="none known",
    )


def _name(config: ServeConfig) -> str:
    return config.model.name if config.model else "the model"


CHECKS = (check_capability, check_dtype)
