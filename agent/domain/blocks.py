"""The evidence of a time-split trial, small enough for the journal: the present values of the knobs and the
candidate's take turns on the same servers, in blocks of 10 to 60 s."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flettner.agent.domain.canary_evidence import GainNeeded
from flettner.agent.domain.reading import EngineLiveness
from flettner.agent.domain.request_counts import RequestCounts

Arm = Literal["present", "candidate"]
BadOf = tuple[float, float]
"""Requests, bad requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The requests that began while one arm was on, as far as they have ended."""

    arm: Arm
    by_lot: bool = False  # whether the arm was drawn; otherwise the block is no evidence
    rest: bool = False  # after a block that was far worse; not even its share counts
    arrived: int = 0  # requests
    busy: bool = False  # more requests arrived than before the trial
    crowded: bool = False  # `busy` by more than chance, or the rate before the trial is unknown
    counts: tuple[BadOf, ...] = ()  # by measure
    left: int | None = None  # requests of this block still in flight; None while the block runs


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvidence:
    """Natural logarithms of e-processes, by the strength of the bet (agent/judge/blocks/evidence.py)."""

    worse: tuple[float, ...] = ()
    better: tuple[float, ...] = ()
    not_worse: tuple[float, ...] = ()
    no_gain: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMeasure:
    """One way in which a request can be bad: `goodput`, `errors`, or a latency above `edge_s`."""

    name: str
    edge_s: float | None = None
    margin: float = 0.0  # a share of requests; only a difference above it is worse, or better
    harm: float = 0.0  # its weight in the evidence that the candidate is worse
    gain: float = 0.0  # its weight in the evidence that the candidate is better
    levels: Mapping[str, BadOf] = field(
        default_factory=dict
    )  # by arm and load, of the latest blocks, decaying; at first, of the baseline
    evidence: BlockEvidence = field(default_factory=BlockEvidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTrial:
    """`arm` is the arm to have in force now. Only admissible seconds count."""

    seed: str  # of the arms and the lengths of the blocks
    arm: Arm = "present"
    gain_needed: GainNeeded = "never"
    missed: bool = False  # the present values missed the SLO before the trial
    usual: float = 0.0  # their share of bad requests before the trial
    usual_rps: float = 0.0  # requests that arrived then; 0: unknown
    least_gain: float = 0.1  # of goodput; less is not worth the change
    margin: float = 0.01  # worse by this share of the requests does not pass as "not worse"
    measures: tuple[BlockMeasure, ...] = ()
    number: int = 0  # of the block that is on, from 1 on
    last: Arm = "present"  # of the latest block that was no rest
    run: int = 0  # number of blocks in a row with that arm
    length_s: float = 0.0  # of the block that is on
    on_s: float = 0.0  # since its arm is in force
    counted_s: float = 0.0  # the part of `on_s` that counts
    in_flight: int = 0  # a second ago
    ran: int = 0  # requests that ran at the begin of the block and have not ended
    waited: int = 0  # requests that waited then
    skip: int = 0  # requests that began behind the queue of the block before, and are left out
    queued: bool = False  # the block before left a queue
    blocks: tuple[Block, ...] = ()  # blocks without a result; the last one runs
    results: int = 0  # number of blocks with a result
    present: BadOf = (0, 0)  # by goodput, of these blocks
    candidate: BadOf = (0, 0)
    valid_s: float = 0.0
    held_s: float = 0.0  # inadmissible seconds without interruption until now
    alarms: int = 0  # blocks of the candidate in which nearly all requests were bad
    spared: bool = False  # a block of the present arm was good since the first of them
    wedged_s: float = 0.0  # for how long the servers have run requests of the candidate without a token


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSecond:
    """What one second shows of the servers whose knobs are tried."""

    counts: RequestCounts = field(default_factory=RequestCounts)  # of all of them
    engines: tuple[EngineLiveness, ...] = ()  # of each of them
    in_force: Arm | None = None  # on all of them; None: changing, or unknown
    blind: str = ""  # why requests cannot be counted; empty if they can
