"""Behaviour of these flags in this vLLM version: rules V2 and V3 (V1 is in flags.py)."""

import re
from collections.abc import Iterable
from dataclasses import replace

from flettner.vllm_facts.regressions import REGRESSIONS
from flettner.vllm_facts.releases import cite
from flettner.vllm_facts.serve_config import Finding, Needs, ServeConfig
from flettner.vllm_facts.sizing.effective_flags import (
    DeploymentCheck,
    is_at_least,
    is_sparse,
    patch_number,
    release_number,
    text_of,
)
from flettner.vllm_facts.values import Knob, Setting, Value
from flettner.vllm_facts.weight_formats import SIXTEEN_BIT

HMA_ERROR_SINCE, HMA_SINCE = (0, 14), (0, 21)
DISABLE = "disable_hybrid_kv_cache_manager"


def _has_offloading(config: ServeConfig) -> bool:
    return bool(config.setting.get("kv_offloading_size")) and config.setting.get("kv_offloading_backend") in {
        None,
        "native",
    }


def _check_offloading(config: ServeConfig) -> Iterable[Finding]:
    """V2. Native offloading supports the hybrid KV cache manager since 0.21 (#41445); 0.14 to 0.20 fail."""
    if not _has_offloading(config) or release_number(config) is None:
        return
    disabled = config.setting.get(DISABLE) is True
    hybrid = config.model is not None and config.model.hybrid
    if config.start is not None and config.start.serves and (hybrid or not is_at_least(config, HMA_SINCE)):
        return  # the log refutes that it does not start
    if is_at_least(config, HMA_SINCE):
        if disabled:
            yield _unneeded_finding(config, hybrid=hybrid)
    elif is_at_least(config, HMA_ERROR_SINCE) and hybrid:
        yield _excluded_finding(config)
    elif is_at_least(config, HMA_ERROR_SINCE) and not disabled:
        yield _required_finding(config)


def _excluded_finding(config: ServeConfig) -> Finding:
    size, name = config.setting.get("kv_offloading_size"), config.model.name if config.model else "the model"
    return Finding(
        rule="V2",
        klass="gated",
        severity="error",
        why=(
            f"KV offloading ({size} GiB) with vLLM {config.version} excludes the hybrid KV cache manager, "
            f"without which {name} does not start"
        ),
        to=without_offloading(config.setting),
        expects="it starts, without offloading; or with it from 0.21 on",
        risks="prefixes that no longer fit the GPU are computed again",
    )


def without_offloading(setting: Setting) -> dict[Knob, Value]:
    return {
        name: None for name in ("kv_offloading_size", "kv_offloading_backend", DISABLE) if name in setting
    }


def _required_finding(config: ServeConfig) -> Finding:
    return Finding(
        rule="V2",
        klass="gated",
        severity="error",
        why=(
            f"KV offloading ({config.setting.get('kv_offloading_size')} GiB) with vLLM {config.version}: "
            "'OffloadingConnector does not support HMA but HMA is enabled', the server does not start"
        ),
        to={DISABLE: True},
        expects="it starts, with KV offloading",
        risks="models with sliding-window attention need more KV cache without that manager",
    )


def _unneeded_finding(config: ServeConfig, *, hybrid: bool) -> Finding:
    lost = "a hybrid model does not start without it" if hybrid else "sliding-window models lose KV cache"
    return Finding(
        rule="V2",
        klass="gated",
        severity="error" if hybrid else "info",
        why=(
            f"--{DISABLE.replace('_', '-')} is no longer needed for offloading with vLLM {config.version}, "
            f"and {lost}"
        ),
        to={DISABLE: None},
        expects="vLLM decides by the abilities of the connector",
        risks="none known since 0.21",
        source=(
            "vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py: SupportsHMA; "
            "vllm-project/vllm#41445"
        ),
    )


def _check_regressions(config: ServeConfig) -> Iterable[Finding]:
    release = release_number(config)
    if release is None:
        return
    model, card = f"{text_of(config, 'model')} {config.model.name if config.model else ''}", config.card
    experts = is_sparse(config) if config.model else None
    for row in REGRESSIONS:
        fits = row.fits(model, card.name if card else "", experts=experts)
        if not fits or not row.seen_in(release, patch_number(config)):
            continue
        if row.is_chosen(config.setting) or (row.unquantized and not _in_16_bit(config)):
            continue
        if row.at_start and config.start is not None and config.start.loaded:
            continue
        if row.more_than and _had_at_most(row.more_than, config):
            continue
        if not row.shows(config.env.get(row.env) if row.env else config.setting.get(row.knob)):
            continue
        unasked = row.answers and not row.to and config.start is not None and config.start.serves
        fixed = f"; fixed {row.fixed}" if row.fixed else "; no fix is on record"
        issue = cite(row.issue)
        yield Finding(
            rule="V3",
            klass="gated" if row.to else "note",
            severity="info" if row.remark or unasked else "warning",
            to=dict(row.to),
            why=f"vLLM {config.version}: {row.symptom} is reported for this case ({issue}{fixed})",
            expects=row.remedy,
            risks="a third-party report: your load may not show it",
            source=issue,
            evidence={"issue": issue},
        )


def _confirm_by_log(config: ServeConfig) -> Iterable[Finding]:
    """The regressions; one that the log shows is what happened."""
    patterns = {cite(row.issue): row.line for row in REGRESSIONS if row.line}
    for finding in _check_regressions(config):
        pattern, lines = patterns.get(finding.source), reversed(config.log)
        shown = (
            next((match for line in lines if (match := re.search(pattern, line))), None) if pattern else None
        )
        yield (
            replace(
                finding,
                severity="error",
                why=f"{finding.why}; the log shows it",
                evidence={**finding.evidence, "line": shown[0]},
            )
            if shown
            else finding
        )


def _had_at_most(requests: int, config: ServeConfig) -> bool:
    """Whether the counts of the log never show more requests at once."""
    most = config.start.most_at_once if config.start else None
    return most is not None and most <= requests


def _in_16_bit(config: ServeConfig) -> bool:
    """Whether the weights are known to be neither stored nor loaded in fewer bits."""
    model = config.model
    stored = model is not None and model.weight_bytes == SIXTEEN_BIT and not model.quantization
    return stored and not config.setting.get("quantization")


LINTS = (
    DeploymentCheck(
        rules=("V2",),
        find=_check_offloading,
        reports="KV offloading and the hybrid KV cache manager, which exclude each other from 0.14 to 0.20",
        source=(
            "vLLM 0.14 vllm/distributed/kv_transfer/kv_connector/factory.py: 'does not support HMA'; "
            "ovg-project/kvcached#267 (0.16); vllm-project/vllm#41445 (fixed in 0.21)"
        ),
        needs=Needs(facts=("version",), for_change=("model",), applies=_has_offloading),
    ),
    DeploymentCheck(
        rules=("V3",),
        find=_confirm_by_log,
        reports="defects of this release that public issues report for these flags, this model or this GPU",
        source="; ".join(dict.fromkeys(row.issue for row in REGRESSIONS)),
        needs=Needs(facts=("version", "gpu")),
    ),
)
