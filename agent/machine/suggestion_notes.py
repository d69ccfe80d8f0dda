"""What an operator is shown of a suggestion's rollout: strategy, duration, outage and checks. Pure."""

from flettner.agent.domain.effects import Preflight
from flettner.agent.domain.model import Forecast, Hold, Plan, PreflightResult, Proposal, StartForecast
from flettner.agent.domain.regimes import MOST_SWITCHES, RegimePlan
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.domain.upgrade import MODEL, upgrades_in
from flettner.agent.judge.wording import describe_duration
from flettner.vllm_facts.knobs import alters_outputs
from flettner.vllm_facts.models.lookup import find_model
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.gpus import find_gpu
from flettner.vllm_facts.sizing.kv_cache import estimate_fit
from flettner.vllm_facts.values import Knob

ALL = 100  # percent


def altering_knobs(proposal: Proposal) -> tuple[Knob, ...]:
    """The knobs of the proposal that may change the model's answers."""
    return tuple(knob for knob in proposal.to if alters_outputs(knob))


def describe_memory_fit(effect: Preflight, gpu: str) -> tuple[str, ...]:
    """How an upgrade fits the GPUs, by lint's estimate; nothing of other changes, or where it is unknown.

    `gpu`: their model. The start is the test: an estimate refuses nothing.
    """
    setting, present = effect.setting, effect.servers[-1].setting
    if not effect.start and setting.get(MODEL) == present.get(MODEL):
        return ()
    model = find_model(str(setting.get(MODEL) or ""))
    fit = estimate_fit(ServeConfig(setting=setting, model=model, card=find_gpu(gpu)))
    if fit is None:
        return ()
    verdict = {True: "it fits", False: "it does not fit", None: "it may fit"}[fit.fits]
    return (f"memory, by an estimate: {verdict}: {fit.why}",)


def notes_of_plan(suggestion: Suggestion, hold: Hold | None) -> tuple[str, ...]:
    plan = suggestion.plan
    if plan is None:
        return ()
    outage = _describe_outage(suggestion.preflight.outage_s, plan.drain_s, hold)
    rollout = _describe_rollout(suggestion, plan, outage)
    window = (suggestion.window,) if suggestion.window else ()
    return (*rollout, *_describe_examination(plan, altering_knobs(suggestion.proposal)), *window)


def _describe_rollout(suggestion: Suggestion, plan: Plan, outage: str) -> tuple[str, ...]:
    """Sentences on the strategy and the duration of the rollout."""
    upgrade = bool(upgrades_in(suggestion.proposal.to))
    preflight, forecast, servers = suggestion.preflight, suggestion.forecast, len(suggestion.servers)
    if suggestion.proposal.regimes is not None:
        return _describe_regimes(suggestion.proposal.regimes, preflight, plan)
    if preflight.strategy == "hot":
        return (f"hot: {preflight.why}", _describe_trial(plan), *preflight.notes)
    if preflight.strategy == "save":
        return (*_describe_saving(preflight, plan), *preflight.notes)
    start = ""
    if preflight.start_s is not None and not preflight.outage_s:  # the outage is told with its parts
        start = f"a start takes about {describe_duration(preflight.start_s)}; "
    if forecast is not None and forecast.start is not None:
        start = _describe_whole(forecast, forecast.start)
    notes = [f"{preflight.strategy}: {preflight.why}"] if preflight.why else []
    if preflight.outage_s:
        notes.append(outage)
    if servers > 1:
        notes.append(f"{servers} servers, one after the other")
    notes.append(
        start + (_describe_forecast(forecast, plan, upgrade) if forecast else _describe_minimum(plan))
    )
    if forecast is not None and forecast.start is not None and plan.shares_card:
        notes.append(_describe_shared_card(forecast.start))
    return (*notes, *preflight.notes)


def _describe_outage(outage_s: float, drain_s: float, hold: Hold | None) -> str:
    planned = f"a planned outage of about {describe_duration(outage_s)}"
    drained = f"after at most {describe_duration(drain_s)} in which open requests end"
    return f"{planned}, {drained}; {_clients_see(outage_s, hold)}"


def _clients_see(outage_s: float, hold: Hold | None) -> str:
    if hold is None:
        return "clients get 503 with Retry-After meanwhile"
    each = f" in each {hold.each}" if hold.each else ""
    waiting = (
        f"new requests wait in the proxy, at most {describe_duration(hold.wait_s)} each and {hold.requests} "
        f"in that time{each}"
    )
    if outage_s <= hold.wait_s:
        spare_s = hold.wait_s - outage_s
        return (
            f"{waiting}; more get 503 with Retry-After, or all if open ones take {describe_duration(spare_s)}"
        )
    late_s = outage_s - hold.wait_s
    return f"{waiting}; those of about the first {describe_duration(late_s)} get 503 with Retry-After"


def _describe_trial(plan: Plan) -> str:
    limit_s = plan.steps[-1].at_most_s
    return (
        "the present and the new values take turns on the servers that run, in blocks of 10 to 60 s; a "
        f"verdict needs traffic, and without one within {describe_duration(limit_s)} it is rolled back"
    )


def _describe_regimes(two: RegimePlan, preflight: PreflightResult, plan: Plan) -> tuple[str, ...]:
    if two.cold:
        ends = (
            "one that fails, more late requests than predicted or `flettner abort` ends it, and the values "
            "that are in force stay"
        )
        return (
            f"{preflight.strategy}: {preflight.why}",
            "each switch is a rollout of its own, which starts servers with the other values",
            f"this approval covers each later switch, at most {two.most_switches} a day; {ends}",
        )
    ends = (
        "a switch that fails, more late requests than predicted or `flettner abort` ends it, and the values "
        "from before are back"
    )
    return (
        f"hot: no server starts; each switch is a trial of its own: {_describe_trial(plan)}",
        f"this approval covers each later switch, at most {MOST_SWITCHES} a day; {ends}",
    )


def _describe_saving(preflight: PreflightResult, plan: Plan) -> tuple[str, ...]:
    start = (
        ""
        if preflight.start_s is None
        else f", which takes about {describe_duration(preflight.start_s)} each"
    )
    trial = (
        "the spared servers get no traffic, and stop once the others have carried nearly the load of the peak"
    )
    return (
        f"save: {trial} for {describe_duration(plan.steps[-1].at_least_s)} within the SLO",
        f"when more load returns, or requests are late, they start again without another approval{start}",
    )


def _describe_minimum(plan: Plan) -> str:
    least = describe_duration(sum(step.at_least_s for step in plan.steps))
    return f"a rollout takes at least {least} after green is up, and needs traffic for a verdict"


IF = {
    "better": "if green is better than blue",
    "gain": "until a green without a gain is given up",
    "not_worse": "if green is not worse",
}


def _describe_forecast(forecast: Forecast, plan: Plan, upgrade: bool) -> str:
    """How long a verdict takes at the present traffic."""
    held = plan.steps[-1].weight
    share = "all traffic" if held >= ALL else f"{held} % of the traffic, one old server the rest,"
    expected = (
        f"at {forecast.rate_rps:.3g} requests/s the canary takes about {describe_duration(forecast.usual_s)} "
        f"(nine of ten take less than {describe_duration(forecast.likely_s)}) {IF[forecast.decided_by]}; "
        f"green then holds {share} for {describe_duration(forecast.hold_s)}"
    )
    if not forecast.too_long:
        return expected
    weights = " and ".join(f"{weight} %" for weight in forecast.too_long)
    if upgrade:
        return (
            f"{expected}; the time limit at {weights} is too short for a proof: one look decides then, and "
            "says what it cannot exclude"
        )
    fit = forecast.fitting_margin
    fix = f"; a margin of {fit:g} instead of {plan.margin:g} would fit" if fit else ""
    return f"{expected}; the time limit at {weights} is too short: it may be rolled back undecided{fix}"


def _describe_whole(forecast: Forecast, start: StartForecast) -> str:
    usual, likely = map(describe_duration, forecast.whole_s)
    return (
        f"start, canary and hold step take about {usual} (nine of ten less than {likely}): "
        f"green is up after about {describe_duration(start.usual_s)}; "
    )


def _describe_shared_card(start: StartForecast) -> str:
    """What green costs the servers in force."""
    rollouts = f"{start.measured} earlier rollouts" if start.measured > 1 else "an earlier rollout"
    source = f"in {rollouts} here" if start.measured else "as recorded on an H100"
    slower = (
        f"green shares the card of the server in force: there a token takes {start.starting:.2f} times as "
        f"long while green starts, and {start.beside:.2f} times while both serve ({source})"
    )
    if not start.queue:
        return slower
    return f"{slower}; about {start.queue} requests will wait when the hold step begins, if the load stays"


def _describe_examination(plan: Plan, altering: tuple[Knob, ...]) -> tuple[str, ...]:
    """The examination before the canary, where answers may change."""
    if not plan.examine_s:
        return ()
    if not plan.compare_answers:
        return ("the check command examines green before it gets traffic; answers are not compared",)
    may = f"{', '.join(altering)} may alter the answers: " if altering else ""
    return (f"{may}green's answers to the golden prompts are compared with blue's before it gets traffic",)
