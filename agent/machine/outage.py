"""What clients see of a planned outage, in a sentence. Pure."""

from flettner.agent.domain.model import Hold


def describe_outage(outage_s: float, drain_s: float, hold: Hold | None) -> str:
    planned = f"a planned outage of about {outage_s:.0f} s"
    drained = f"after at most {drain_s:.0f} s in which open requests end"
    return f"{planned}, {drained}; {_clients_see(outage_s, hold)}"


def _clients_see(outage_s: float, hold: Hold | None) -> str:
    if hold is None:
        return "clients get 503 with Retry-After meanwhile"
    each = f" in each {hold.each}" if hold.each else ""
    waiting = (
        f"new requests wait in the proxy, at most {hold.wait_s:.0f} s each and {hold.requests} in that time"
        f"{each}"
    )
    if outage_s <= hold.wait_s:
        spare_s = hold.wait_s - outage_s
        return f"{waiting}; more get 503 with Retry-After, or all if open ones take {spare_s:.0f} s"
    late_s = outage_s - hold.wait_s
    return f"{waiting}; those of about the first {late_s:.0f} s get 503 with Retry-After"
