"""Two targets of one daemon: a rollout, a crash and a killed Envoy of one do not touch the other."""

import asyncio
from dataclasses import dataclass

from flettner.simulator.traffic import Load, TrafficGenerator
from tests.e2e.conftest import Start
from tests.e2e.test_adopting import third_party_server
from tests.support.config_builder import SERVERS, SiteConfig
from tests.support.ports import free_port
from tests.support.rig import SHAPE, at_rest, lost, until


@dataclass(frozen=True, kw_only=True)
class TwoTargets(SiteConfig):
    """Besides the usual target one with an adopted server, whose clients ask `other_listen`."""

    other_serving: str
    other_listen: int

    def text(self, *, api: int, listen: int) -> str:
        return f"""
            {super().text(api=api, listen=listen)}
            [[targets]]
            name = "code"
            [targets.slo]
            ttft = {{ under = "{self.ttft}", share = 0.95 }}
            [targets.engine]
            kind = "process"
            serving = "{self.other_serving}"
            ports = [{SERVERS[0]}, {SERVERS[-1]}]
            [targets.traffic]
            listen = "127.0.0.1:{self.other_listen}"
        """


async def test_a_rollout_and_a_crash_of_the_daemon_touch_no_other_target(site: Start) -> None:
    async with third_party_server() as (url, _):
        listen = free_port()
        steps = ((50, 1000, 50.0),)
        rig = await site(TwoTargets(other_serving=url, other_listen=listen, steps=steps))

        async def other() -> dict[str, object]:
            status, document = await rig.ask("GET", "/v1/targets/code")
            return document if status == 200 else {}

        await rig.serving()
        await until(other, at_rest, "the other target to serve")
        envoy = rig.envoy.find()
        clients = TrafficGenerator(f"http://127.0.0.1:{listen}", "tiny", Load(rate=10.0), shape=SHAPE, seed=2)
        await clients.start()
        try:
            async with rig.clients() as traffic:
                change = await rig.change(max_num_seqs=16)
                await rig.in_phase("canary")
                await rig.kill()
                await asyncio.sleep(1.0)
                await rig.start()
                await rig.in_phase("canary")
                id_ = (await rig.rollout())["id"]
                status, answer = await rig.ask("POST", f"/v1/rollouts/{id_}/abort", {"reason": "enough"})
                assert status == 200, answer
                ended = await rig.ended(change)
                await until(other, at_rest, "the other target to serve on")
        finally:
            await clients.stop()

    assert (ended["outcome"], ended["lost"]) == ("rolled_back", 0), ended
    assert rig.envoy.find() == envoy
    assert lost(traffic) == []
    assert lost(clients) == []
