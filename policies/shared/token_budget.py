"""What another token budget of a step would change: the rate of prompts, and the gap between tokens."""

from math import inf

from flettner.agent.domain.model import Objective
from flettner.agent.domain.ports import Context
from flettner.agent.domain.reading import Reading
from flettner.agent.domain.step_cost import RIDGE
from flettner.policies.shared.flags_in_force import find_step_budget, find_token_budget
from flettner.policies.shared.step_grid import LADDER

ENOUGH_BUDGET = 2048  # vLLM's own default on small GPUs; more adds less than a tenth to the rate of prompts
STEP = 4  # largest factor of one step towards vLLM's own default
LEAST_GAIN = 1.25  # of the rate of prompts
RESERVE = 3.0  # rate of prompts over their arrival: at a third, a prompt hardly waits for another
IN_TIME = 0.85  # of the objective, for a full step: the costs of a token and of a sequence are estimates
NEAR_BEST = 0.85  # of the gain of ENOUGH_BUDGET


def prefill_gain(now: float, then: float, decoding: float) -> float:
    """The rate of prompts with a budget of `then` over that with `now`, while `decoding` sequences decode.

    A step of n tokens takes about n + RIDGE units of time, and a decoding sequence takes one of its tokens.
    """
    rates = [max(1.0, budget - decoding) / (budget + RIDGE) for budget in (now, then)]
    return rates[1] / rates[0]


def size_budget(reading: Reading, context: Context, running: float | None = None) -> int | None:
    """A larger budget that the prompts need; None if no budget is allowed or the present is enough.

    The smallest doubling that serves prompts RESERVE times as fast as they arrive, or that comes near the
    best rate. `running`: expected sequences, if not as now.
    """
    knob, now, ceiling = find_step_budget(context.setting, reading)
    decoding = reading.running.mean if running is None else running
    doublings = [now << octave for octave in range(1, 12)]
    bound = context.bound(knob)
    allowed = [value for value in doublings if value <= min(ceiling, ENOUGH_BUDGET) and bound.allows(value)]
    if not allowed:
        return None
    best = prefill_gain(now, allowed[-1], decoding)
    if best < LEAST_GAIN:
        return None
    rate, wanted = prompt_rate(reading, now, decoding), arriving_prompt_tokens(reading)
    for value in allowed:
        gain = prefill_gain(now, value, decoding)
        fast_enough = rate is not None and wanted is not None and rate * gain >= RESERVE * wanted
        if gain >= LEAST_GAIN and (fast_enough or gain >= NEAR_BEST * best):
            return value
    return allowed[-1]


def approach_default(reading: Reading, context: Context) -> int | None:
    """A step towards vLLM's own budget on this GPU; None if the present budget is not below it.

    The gain may be small. It costs nothing while answers come in time, and queued prompts need all of it.
    """
    knob, now, ceiling = find_step_budget(context.setting, reading)
    limit = min(STEP * now, find_token_budget({}, reading), ceiling)
    bound = context.bound(knob)
    doublings = [now << octave for octave in range(1, STEP.bit_length())]
    return max((value for value in doublings if value <= limit and bound.allows(value)), default=None)


def is_budget_enough(reading: Reading, context: Context, running: float) -> bool:
    """True unless the present budget is too small for the arriving prompts beside these sequences."""
    _, now, _ = find_step_budget(context.setting, reading)
    rate, wanted = prompt_rate(reading, now, running), arriving_prompt_tokens(reading)
    return rate is None or wanted is None or rate >= RESERVE * wanted


def prompt_rate(reading: Reading, budget: float, decoding: float) -> float | None:
    """Prompt tokens/s that steps full to `budget` compute; None if the cost of a step is not known."""
    step_s, token_s = reading.work.decode_step_s, reading.work.token_s
    if step_s is None or token_s is None:
        return None
    return max(1.0, budget - decoding) / (step_s + token_s * budget)


def step_in_time(reading: Reading, objective: Objective) -> float | None:
    """The budget whose full step takes as long as the objective allows between tokens; None if unknown.

    0 if steps without any prompt take longer already.
    """
    step_s, token_s = reading.work.decode_step_s, reading.work.token_s
    if step_s is None or not token_s:
        return None
    return max(0.0, objective.under_s - step_s) / token_s


def least_budget(reading: Reading, *, reserve: float) -> int | None:
    """The smallest budget of the grid that serves prompts `reserve` times as fast as they arrive.

    The largest of the grid if none does; None if the cost of a step is not known.
    """
    step_s, token_s, wanted = (
        reading.work.decode_step_s,
        reading.work.token_s,
        arriving_prompt_tokens(reading),
    )
    if step_s is None or token_s is None or wanted is None:
        return None
    free = 1 - reserve * wanted * token_s
    if free <= 0:
        return LADDER[-1]
    tokens = (reserve * wanted * step_s + reading.running.mean) / free
    return next((rung for rung in LADDER if rung >= tokens), LADDER[-1])


def gap_between_tokens(reading: Reading) -> float:
    """The mean gap in seconds that no budget lowers: plain steps, in the time that prompts leave."""
    step_s, busy = reading.work.decode_step_s or 0.0, prompt_share(reading)
    return step_s / (1 - busy) if busy < 1 else inf


def prompt_share(reading: Reading) -> float:
    """The share of the GPU's time that the arriving prompts take; 0 if not known."""
    return (arriving_prompt_tokens(reading) or 0.0) * (reading.work.token_s or 0.0)


def arriving_prompt_tokens(reading: Reading) -> float | None:
    """Prompt tokens that arrive in a second, without cached tokens."""
    rate, tokens = reading.work.arrivals_per_s, reading.work.prompt_tokens
    return None if rate is None or tokens is None else rate * tokens
