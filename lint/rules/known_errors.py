"""Error messages of vLLM's log, what each means, and the change that ends it: rule F9.

The rows are in vllm_facts/known_errors and read only if there is a log. A row names a function of this module
where its change or its condition depends on the line or the flags.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import ceil

from flettner.lint.host_causes import FUNCTIONS as HOST_CAUSES
from flettner.lint.kernel_causes import FUNCTIONS as KERNEL_CAUSES
from flettner.lint.memory_causes import FUNCTIONS as MEMORY_CAUSES
from flettner.lint.memory_causes import describe_host_memory
from flettner.lint.recogniser import LOG, Recogniser, recogniser
from flettner.lint.request_causes import FUNCTIONS as REQUEST_CAUSES
from flettner.lint.rules.environment import describe_tuned_nccl
from flettner.lint.rules.formats import MISTRALS
from flettner.lint.rules.serving import generates_text, pool_by_release, pools, reranker_overrides
from flettner.lint.rules.version import HMA_SINCE, without_offloading
from flettner.lint.sleep_causes import FUNCTIONS as SLEEP_CAUSES
from flettner.vllm_facts.code_areas import name_suspects
from flettner.vllm_facts.fact_tables import FOLDER, read_rows
from flettner.vllm_facts.model_parsers import TOOLS, find_family
from flettner.vllm_facts.releases import TABLE
from flettner.vllm_facts.releases.history import describe_value, values_in
from flettner.vllm_facts.serve_config import Finding, FindingSeverity, ServeConfig
from flettner.vllm_facts.sizing.divisibility import why_indivisible
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    effective_batched_tokens,
    effective_seqs,
    is_at_least,
    is_older_than,
    json_entries,
    layout,
    patch_number,
    text_of,
)
from flettner.vllm_facts.start_facts import LONGEST_LINE
from flettner.vllm_facts.values import Knob, Value

FILES = (
    *("requests", "routes", "models", "packages", "weights", "layouts", "caches", "host", "kernels"),
    "warnings",
)
AT_START = ("start",)  # errors of other rules, which report the same before a start: see start_errors.py
PINNED = "kv_cache_memory_bytes"
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
_NO_HYBRID = "disable_hybrid_kv_cache_manager"
_FEW_SEQS = 16
_STEP = 2048  # tokens: vLLM's least default of max_num_batched_tokens
_WAITS = 3  # lines, of which the first is usual
_FAILURE = re.compile(r"\b(?:ERROR|CRITICAL|Traceback)\b|\w(?:Error|Exception):")
_HYBRID_CONNECTORS = frozenset(
    {"MooncakeConnector", "MooncakeStoreConnector", "OffloadingConnector", "SimpleCPUOffloadConnector"}
)
"""Connectors that are SupportsHMA."""

_HINT = re.compile(r"\bconsider using `--(?P<flag>[a-z][a-z-]{1,60})[ =](?P<value>[\w.]{1,40})`")
_SAMPLER = re.compile(r'File "[^"]*(?:topk_topp_sampler|flashinfer/sampling)\.py|\bin _dummy_sampler_run\b')

_OF_NCCL = re.compile(
    r"ShmOpen|shared memory segment|insufficient shared memory|Duplicate GPU|ibv_reg_.*Cannot allocate memory"
    r"|ibv_modify_qp failed|(?:Cuda|CUDA|HIP) failure:? ?(?:2 )?'out of memory'"
)
"""Causes of an error of NCCL that other rows name."""


def _no_changes(_: re.Match[str], __: ServeConfig) -> Mapping[Knob, Value]:
    return {}


def _no_variables(_: re.Match[str], __: ServeConfig) -> Mapping[str, str | None]:
    return {}


def _always(_: ServeConfig) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """One row. `why` and `expects` may name groups of `pattern`.

    `set` and `remove` change flags, `set_env` and `unset` variables; `changes` and `changes_env`: changes
    that depend on the line or the present value. What the command line has already is left out; if all of it
    is, the line is of another start.
    `applies`: False if the flags show the same, or that the line is of another start; with `or_unknown`, if
    the cause is another one, which nobody knows.
    """

    pattern: str
    why: str
    expects: str
    source: str
    beside: str = ""  # a pattern that another line of the log has, or the cause is another one
    set: Mapping[str, Value] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    set_env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    changes: Callable[[re.Match[str], ServeConfig], Mapping[Knob, Value]] = _no_changes
    changes_env: Callable[[re.Match[str], ServeConfig], Mapping[str, str | None]] = _no_variables
    applies: Callable[[ServeConfig], bool] = _always
    or_unknown: bool = False
    severity: FindingSeverity = "error"
    risks: str = "none known"
    rule: str = "F9"
    reports: str = ""  # in docs/reference/rules.md; empty: `why`, without the words of the line
    quotes: bool = True  # the finding shows the line
    until: str = ""  # the first patch release without the fault, if known: a log of it is of another one
    blames: bool = False  # the finding names what of the command the crash may come from
    names_nccl: bool = False  # the finding names the variables with which NCCL is tuned by hand
    names_host_memory: bool = False  # the finding names what of the command takes memory of the host
    choice_of: str = ""  # the flag, or the group of `pattern` with it, whose value `name` a release lacks

    def recognise(self, match: re.Match[str], config: ServeConfig) -> Finding | None:
        if not self.applies(config):
            return None
        knobs = {**self.set, **dict.fromkeys(self.remove), **self.changes(match, config)}
        variables = {**self.set_env, **dict.fromkeys(self.unset), **self.changes_env(match, config)}
        to = {knob: value for knob, value in knobs.items() if config.setting.get(knob) != value}
        env = {name: value for name, value in variables.items() if config.env.get(name) != value}
        if (knobs or variables) and not (to or env):
            return None
        groups = {name: text or "" for name, text in match.groupdict().items()}
        present = patch_number(config)
        if self.until and present is not None and present >= tuple(map(int, self.until.split("."))):
            return self._report_other_release(match, config)
        return Finding(
            rule=self.rule,
            klass="gated" if to or env else "note",
            severity=self.severity,
            why=self.why.format(**groups) + self._name_suspects(config),
            to=to,
            env=env,
            expects=self.expects.format(**groups) + self._name_release(groups),
            risks=self.risks,
            evidence={"line": match[0].strip()[:200]} if self.quotes else {},
        )

    def _name_suspects(self, config: ServeConfig) -> str:
        tuned = describe_tuned_nccl(config) if self.names_nccl else ""
        held = describe_host_memory(config) if self.names_host_memory else ""
        if tuned or held:
            return f"; set by hand here: {tuned}" if tuned else f"; here it is taken by {held}"
        return _describe_suspects(config) if self.blames else ""

    def _name_release(self, groups: Mapping[str, str]) -> str:
        knob = groups.get(self.choice_of, self.choice_of).lstrip("-").replace("-", "_")
        releases = describe_value(knob, groups["name"].strip("'")) if knob else ""
        return f"; vLLM {releases} takes it" if releases else ""

    def _report_other_release(self, match: re.Match[str], config: ServeConfig) -> Finding:
        return Finding(
            rule=self.rule,
            severity="warning",
            why=f"the log shows an error that vLLM {self.until} ended, so it is not of {config.version}",
            expects="give the log of this release; or the server that wrote it runs an earlier one",
            evidence={"line": match[0].strip()[:200]},
        )


def _describe_suspects(config: ServeConfig) -> str:
    suspects = name_suspects(config)
    return f"; in use here: {suspects}" if suspects else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErrors(DeploymentCheck):
    """The rows of several files as one check, so that a command without a log reads no file."""

    files: tuple[str, ...]

    def parts(self) -> tuple[DeploymentCheck, ...]:
        return read_checks(self.files)


def check_known_errors(*rules: str, files: tuple[str, ...]) -> KnownErrors:
    def find(config: ServeConfig) -> Iterable[Finding]:
        if config.log:
            for check in read_checks(files):
                yield from check.check(config)

    return KnownErrors(
        rules=rules,
        find=find,
        reports="an error in the log whose cause is known",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
        needs=LOG,
        files=files,
    )


@cache
def read_checks(files: tuple[str, ...]) -> tuple[Recogniser, ...]:
    """A check for each row. Its report is the text of its finding, without the words of the line."""
    return tuple(
        recogniser(
            row.rule,
            row.pattern,
            row.recognise,
            reports=row.reports or re.sub(r"\{\w+\}", "…", row.why),
            source=row.source,
            beside=row.beside,
            is_cause=row.applies if row.or_unknown else _always,
        )
        for file in files
        for row in read_rows(FOLDER / f"known_errors/{file}.toml", "error", KnownError, FUNCTIONS)
    )


def enable_tools(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The switch, and the parser of the model's family where none is given; nothing for an unknown family."""
    parser = {} if config.setting.get(TOOLS) else matching_parser(match, config)
    return {"enable_auto_tool_choice": True, **parser} if parser or config.setting.get(TOOLS) else {}


def matching_parser(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    family, present = find_family(text_of(config, "model")), text_of(config, TOOLS)
    parsers = family.parsers(TOOLS, config.version) if family else ()
    return {} if present in parsers or not parsers else {TOOLS: parsers[0]}


def recommended_parser(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    family = find_family(text_of(config, "model"))
    parsers = family.parsers(TOOLS, config.version) if family else ()
    return {TOOLS: parsers[0]} if parsers else {}


def classify_reranker(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    overrides = reranker_overrides(config)
    return {"hf_overrides": overrides} if overrides else {}


def raise_batch(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The next power of two, unless the present budget already holds an item."""
    needed, present = int(match["need"]), config.setting.get("max_num_batched_tokens")
    enough = present if isinstance(present, int) and present >= needed else 1 << (needed - 1).bit_length()
    return {"max_num_batched_tokens": enough}


def raise_batch_by_missing(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """Room for the drafts and for a step of vLLM's least default, as a power of two."""
    present = effective_batched_tokens(config)
    if present is None:
        return {}
    return {"max_num_batched_tokens": 1 << (present + int(match["missing"]) + _STEP - 1).bit_length()}


def quarter_seqs(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    seqs = effective_seqs(config)
    return {"max_num_seqs": seqs // 4} if seqs and seqs >= _FEW_SEQS else {}


def half_on_gpus(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    return {} if any("not supported on CPU" in line for line in config.log) else {"dtype": "half"}


def pipeline_for_tensor(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    now = layout(config)
    return {"tensor_parallel_size": 1, "pipeline_parallel_size": now.tp * now.pp}


def tensor_of_present_devices(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The largest power of two, if nothing but tensor parallelism takes the devices."""
    now, present = layout(config), int(match["has"])
    if now.tp <= present or now.pp * now.dp > 1 or not present:
        return {}
    return {"tensor_parallel_size": 1 << (present.bit_length() - 1)}


def current_connector(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The name that the V1 engine has for LMCache's connector."""
    given = json_entries(config, "kv_transfer_config")
    if match["name"] != "LMCacheConnector" or given.get("kv_connector") != match["name"]:
        return {}
    return {"kv_transfer_config": json.dumps({**given, "kv_connector": "LMCacheConnectorV1"})}


def raise_pinned(match: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """The needed size plus 1 %; no change if the flag already gives more."""
    needed = ceil(float(match["need"]) * 1.01 * 1024) << 20
    given = config.setting.get(PINNED)
    return {PINNED: given if isinstance(given, int) and given >= needed else needed}


def keep_hybrid(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    connector = json_entries(config, "kv_transfer_config").get("kv_connector")
    return {_NO_HYBRID: False} if connector in _HYBRID_CONNECTORS else {}


def keep_hybrid_without_connector(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """Without a connector nothing but the flag turns the manager off."""
    setting = config.setting
    if setting.get("kv_offloading_size") and is_older_than(config, HMA_SINCE):
        return without_offloading(setting)
    connects = setting.get("kv_transfer_config") or setting.get("kv_offloading_size")
    return {} if connects or _NO_HYBRID not in setting else {_NO_HYBRID: None}


def without_expandable_segments(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """The allocator's variables without that entry; a variable with no other entry is unset."""
    given = {
        name: config.env[name].split(",") for name in ALLOCATORS if EXPANDABLE in config.env.get(name, "")
    }
    rest = {name: ",".join(part for part in parts if EXPANDABLE not in part) for name, parts in given.items()}
    return {name: value or None for name, value in rest.items()}


def follow_hints(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    """Choices that vLLM's own lines advise, `consider using --flag value`, where the release takes them."""
    hints = (match for line in config.log for match in _HINT.finditer(line[:LONGEST_LINE]))
    advised = {match["flag"].replace("-", "_"): match["value"] for match in hints}
    return {
        knob: value
        for knob, value in advised.items()
        if knob in TABLE and TABLE[knob].choices and value in (values_in(knob, config.version) or ())
    }


def leave_sampler_out(_: re.Match[str], config: ServeConfig) -> Mapping[str, str | None]:
    """Without FlashInfer's sampler, if it is what the traceback compiles."""
    compiles = any(_SAMPLER.search(line) for line in config.log)
    return {"VLLM_USE_FLASHINFER_SAMPLER": "0"} if compiles else {}


def has_not_served(config: ServeConfig) -> bool:
    return not any('HTTP/1.1" 200' in line or "tool_parser" in line for line in config.log)


def has_no_template(config: ServeConfig) -> bool:
    return not config.setting.get("chat_template")


def lacks_tool_flags(config: ServeConfig) -> bool:
    return not (config.setting.get("enable_auto_tool_choice") and config.setting.get("tool_call_parser"))


def serves_adapters(config: ServeConfig) -> bool:
    return config.setting.get("enable_lora") is True


def is_tensor_parallel(config: ServeConfig) -> bool:
    return layout(config).tp > 1


def divides_known_sizes(config: ServeConfig) -> bool:
    """Whether tensor parallelism divides what is known of the model, so that no flag rule names the cause."""
    return is_tensor_parallel(config) and not why_indivisible(config.model, layout(config).tp)


def is_not_tensor_parallel(config: ServeConfig) -> bool:
    return not is_tensor_parallel(config)


def speculates(config: ServeConfig) -> bool:
    return bool(config.setting.get("speculative_config") or config.setting.get("spec_method"))


def does_not_speculate(config: ServeConfig) -> bool:
    return not speculates(config)


def has_fixed_cache_size(config: ServeConfig) -> bool:
    return bool(config.setting.get(PINNED))


def is_short_of_cache(config: ServeConfig) -> bool:
    return any("larger than the available KV cache memory" in line for line in config.log)


def has_unnamed_cause(config: ServeConfig) -> bool:
    """Whether no other row names the cause of an error of NCCL."""
    return not any(map(_OF_NCCL.search, config.log))


def allocates_expandable(config: ServeConfig) -> bool:
    return any(EXPANDABLE in config.env.get(name, "") for name in ALLOCATORS)


def allocates_plainly(config: ServeConfig) -> bool:
    return not allocates_expandable(config)


def sizes_nccl_buffers(config: ServeConfig) -> bool:
    return "NCCL_BUFFSIZE" in config.env


def may_lack_memlock(config: ServeConfig) -> bool:
    return not (sizes_nccl_buffers(config) or config.locks_memory)


def locks_memory(config: ServeConfig) -> bool:
    return config.locks_memory and not sizes_nccl_buffers(config)


def forces_compatibility(config: ServeConfig) -> bool:
    return config.env.get("VLLM_ENABLE_CUDA_COMPATIBILITY", "0").lower() not in {"0", "false", ""}


def leaves_compatibility(config: ServeConfig) -> bool:
    return not forces_compatibility(config)


def runs_out_uncounted(config: ServeConfig) -> bool:
    """Whether memory ran out under a release whose model runner V2 leaves CUDA graphs out of its accounts.

    Beside a KV cache of a given size no model runner keeps memory for them.
    """
    ran_out = config.start is not None and config.start.ran_out
    return ran_out and is_older_than(config, (0, 28)) and not has_fixed_cache_size(config)


def keeps_offloaded_weights(config: ServeConfig) -> bool:
    """Whether weights for the host may have stayed on the GPU, for lack of an offloader in the V2 runner."""
    start, affected = config.start, is_at_least(config, (0, 25)) and is_older_than(config, (0, 28))
    installed = any("Offloader set to" in line and "Noop" not in line for line in config.log)
    ran_out = start is not None and start.ran_out and start.stage == "load"
    return bool(config.setting.get("cpu_offload_gb")) and affected and ran_out and not installed


def bypasses_entrypoint(config: ServeConfig) -> bool:
    """Whether NVIDIA's own image starts without its entrypoint, which prepares CUDA's libraries."""
    return config.bypassed_image.startswith("nvcr.io/nvidia/")


def keeps_entrypoint(config: ServeConfig) -> bool:
    return not bypasses_entrypoint(config)


def has_no_user_name(config: ServeConfig) -> bool:
    """Whether Python asks the system for the user's name: getpass.getuser."""
    return not any(config.env.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))


def waits_for_engines(config: ServeConfig) -> bool:
    """Whether the log ends while vLLM waits, which it says every ten seconds, and tells no error."""
    waits = [place for place, line in enumerate(config.log) if "remote core engine proc" in line]
    failed = any(_FAILURE.search(line) for line in config.log)
    loaded = config.start is not None and config.start.loaded
    return len(waits) >= _WAITS and not failed and not loaded


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(
            enable_tools,
            matching_parser,
            recommended_parser,
            classify_reranker,
            raise_batch,
            raise_batch_by_missing,
            half_on_gpus,
            quarter_seqs,
            pipeline_for_tensor,
            tensor_of_present_devices,
        ),
        *(
            follow_hints,
            leave_sampler_out,
            current_connector,
            raise_pinned,
            keep_hybrid,
            keep_hybrid_without_connector,
        ),
        *(has_not_served, has_no_template, lacks_tool_flags, serves_adapters),
        *(
            divides_known_sizes,
            is_tensor_parallel,
            is_not_tensor_parallel,
            speculates,
            does_not_speculate,
            has_fixed_cache_size,
        ),
        *HOST_CAUSES,
        *KERNEL_CAUSES,
        *MEMORY_CAUSES,
        *REQUEST_CAUSES,
        *SLEEP_CAUSES,
        *MISTRALS,
        *(generates_text, pool_by_release, pools),
        *(is_short_of_cache, has_unnamed_cause, has_no_user_name, without_expandable_segments),
        *(allocates_expandable, allocates_plainly, sizes_nccl_buffers, may_lack_memlock, locks_memory),
        *(forces_compatibility, leaves_compatibility, waits_for_engines),
        *(runs_out_uncounted, keeps_offloaded_weights, bypasses_entrypoint, keeps_entrypoint),
    )
}
"""The functions that a row may name."""

LINTS = (check_known_errors("F9", "V3", "E2", files=FILES),)
