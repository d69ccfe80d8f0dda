"""Every live rule passes `policies/conformance/safety_checks.py` and proposes flags that vLLM has."""

import pytest

from flettner.agent.domain.model import Proposal
from flettner.agent.domain.ports import Context, Policy
from flettner.agent.domain.reading import Reading
from flettner.policies.conformance.readings import a_context, a_reading
from flettner.policies.conformance.safety_checks import harms
from flettner.policies.context_length import ContextLength
from flettner.policies.graphs import Graphs
from flettner.policies.host_bound import HostBound
from flettner.policies.long_prompts import LongPrompts
from flettner.policies.memory_share import MemoryShare
from flettner.policies.offloading import Offloading
from flettner.policies.prefix_cache import PrefixCache
from flettner.policies.speculation import Speculation
from tests.support.proposals import rules
from tests.unit.policies import test_graphs as graphs
from tests.unit.policies import test_host_bound as host
from tests.unit.policies import test_length_drafts_offloading as length_rules
from tests.unit.policies import test_long_prompts as prompts
from tests.unit.policies import test_memory_share as memory
from tests.unit.policies import test_prefix_cache as prefixes

DRAFTED = a_context({"spec_method": "ngram", "spec_tokens": 5})
CONFIGURED = a_context({graphs.CONFIG: '{"cudagraph_mode": "NONE", "mode": 3}'})
SMALL_GRAPHS = a_context({graphs.SIZES: "1 2 4 8", "max_num_seqs": 128})
NO_SHARE_LEFT = a_context({"gpu_memory_utilization": 0.8, "max_num_seqs": 64})


@pytest.mark.parametrize(
    ("rule", "policy", "reading", "context"),
    [
        ("A1", HostBound(), a_reading(), a_context(host.OFF)),
        ("C1", HostBound(), host.HOST, a_context()),
        ("C1", HostBound(), host.HOST, a_context({host.TOKENIZER: "slow"})),
        ("G1", Graphs(), a_reading(), a_context({graphs.EAGER: True})),
        ("G2", Graphs(), graphs.SPIKES, SMALL_GRAPHS),
        ("G2", Graphs(), graphs.WIDE, a_context({"max_num_seqs": 1024})),
        ("G3", Graphs(), a_reading(), a_context({graphs.LEVEL: 0})),
        ("G3", Graphs(), a_reading(), a_context({graphs.DOTTED: "PIECEWISE"})),
        ("G3", Graphs(), a_reading(), CONFIGURED),
        ("L1", ContextLength(), length_rules.SHORT, length_rules.LONG),
        ("M1", MemoryShare(), memory.SHORT, a_context(memory.AT)),
        ("M2", MemoryShare(), memory.FAILED, a_context(memory.AT)),
        ("M2", MemoryShare(), memory.FAILED, NO_SHARE_LEFT),
        ("M3", MemoryShare(), memory.ROOMY, a_context({"gpu_memory_utilization": 0.6})),
        ("O1", Offloading(), length_rules.QUEUE, length_rules.OFFLOADED),
        ("P4", LongPrompts(), prompts.MIXED, a_context(prompts.SETTING)),
        ("SD1", Speculation(), length_rules.REJECTED, length_rules.DRAFTS),
        ("SD1", Speculation(), length_rules.BUSY, DRAFTED),
        ("X1", PrefixCache(), prefixes.BUSY, prefixes.OFF),
    ],
)
def test_firing_rule_does_no_harm(rule: str, policy: Policy, reading: Reading, context: Context) -> None:
    proposals = list(policy.propose(reading, context))

    assert rules(proposals) == [rule]
    assert harms(reading, context, proposals) == ()


def test_tuning_a_hanging_server_counts_as_harm() -> None:
    hung = a_reading(waiting=9, prompt_tokens=0, answer_tokens=0)
    context = a_context({"max_num_seqs": 4})
    more = Proposal(rule="X", to={"max_num_seqs": 8}, why="1", expects="e", risks="r", source="s")

    assert harms(hung, context, [more]) == (
        "X: max_num_seqs changes although the server hangs: it generated no token",
    )
    assert harms(a_reading(waiting=9), context, [more]) == ()
