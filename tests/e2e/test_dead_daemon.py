"""Where no flettner process runs any more, the clean-up by systemd ends the share of a faulty green."""

import os

from flettner.actuators.envoy.split import carried_by
from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig, flettner, until

BAD_AT_25 = SiteConfig(
    faults=("max_num_seqs=16:errors=0.5",),
    steps=((25, 100_000, 50.0),),
    at_most_s=1000.0,
)


async def bad_green(rig: Rig) -> None:
    """A faulty green in the canary with a quarter of the traffic; its daemon is killed."""
    await rig.serving()
    await rig.change(max_num_seqs=16)
    await rig.in_phase("canary")


async def test_systemd_ends_the_canary_before_the_lease_expires(site: Start) -> None:
    rig = await site(BAD_AT_25)
    await bad_green(rig)
    words = ("revert", "-c", str(rig.config))

    running = await flettner(*words)
    held = await rig.rollout()
    await rig.kill()
    stopped_well = await _under("success", *words)
    still = await expires_ms(rig)
    badly = [await _under("signal", *words) for _ in range(2)]
    spent = await expires_ms(rig)
    seen = await rig.answered("chat-r2")
    async with rig.clients() as traffic:
        await until(lambda: rig.answered("chat-r1"), lambda count: count > 40, "answers by blue")
    green_got = await rig.answered("chat-r2") - seen
    await rig.start()
    await until(rig.rollout, lambda rollout: rollout and rollout["restarts"] == 1, "the next daemon")

    assert running[0] == 0
    assert "another flettner works here" in running[1]
    assert held["phase"] == "canary"
    assert stopped_well == (0, "")
    assert still
    assert [status for status, _ in badly] == [0, 0], badly
    assert "chat: lease ended" in badly[0][1]
    assert (spent, green_got) == (0, 0)
    assert {record.outcome for record in traffic.tally.records} == {"ok"}


async def expires_ms(rig: Rig) -> int:
    """The expiry of the lease in Envoy, in milliseconds."""
    return carried_by(await rig.reported.resources("rds")).lease_expires_ms


async def _under(result: str, *words: str) -> tuple[int, str]:
    """Run a command with the environment that systemd.exec(5) gives after a service's exit."""
    before = os.environ.get("SERVICE_RESULT")
    os.environ["SERVICE_RESULT"] = result
    try:
        return await flettner(*words)
    finally:
        del os.environ["SERVICE_RESULT"]
        if before is not None:
            os.environ["SERVICE_RESULT"] = before
