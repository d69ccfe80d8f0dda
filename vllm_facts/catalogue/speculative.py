"""Speculative decoding: a cheap guess, checked by the model."""

from vllm_facts.catalogue.facts import Effects, KnobFacts

CONFIG = "vLLM 0.32 config/speculative.py"
FASTER = Effects(itl="-", throughput="±", kv="-", oom="+", quality="±")

FACTS = (
    KnobFacts(
        name="speculative_config",
        type="json",
        unit="JSON",
        meaning="Guesses tokens ahead: faster answers at low load, less throughput at high load.",
        default="off",
        effects=FASTER,
        needs=(
            "ngram, suffix and medusa switch async_scheduling off",
            "num_speculative_tokens_per_batch_size (since 0.26) guesses less as the batch grows",
        ),
        start="cold",
        klass="gated",
        source=CONFIG,
    ),
    KnobFacts(
        name="spec_method",
        type="text",
        unit="method",
        meaning="The method of speculative_config: ngram, eagle3, mtp, draft_model and others.",
        default="found from the draft model",
        effects=FASTER,
        start="cold",
        klass="gated",
        since="0.22",
        source=CONFIG,
    ),
    KnobFacts(
        name="spec_model",
        type="text",
        unit="model",
        meaning="The model that guesses.",
        default="none",
        effects=FASTER,
        start="cold",
        klass="gated",
        since="0.22",
        source=CONFIG,
    ),
    KnobFacts(
        name="spec_tokens",
        type="int",
        unit="tokens",
        min=1,
        meaning="Tokens guessed at once: more pay off only while most of them are right.",
        default="the draft model's own",
        effects=Effects(itl="±", throughput="-", kv="-", quality="±"),
        start="cold",
        klass="gated",
        since="0.22",
        source=CONFIG,
    ),
)
