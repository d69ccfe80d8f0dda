"""A real daemon notifies a real receiver despite receiver failures and daemon crashes."""

from functools import partial
from typing import Any

from tests.e2e.conftest import Start
from tests.support.config_builder import SiteConfig
from tests.support.rig import Rig, until
from tests.unit.notifiers.receiver import Receiver, receiving


def notifying(receiver: Receiver) -> SiteConfig:
    """With greens that fail."""
    table = f'[[notify]]\nkind = "webhook"\nurl = "{receiver.url}"\nsecret_file = "secret"\n'
    return SiteConfig(tables=table, faults=("max_num_seqs=16:errors=0.5",))


async def received_kinds(receiver: Receiver) -> list[str]:
    return [body["id"] for body in receiver.bodies]


async def wait_for_kinds(receiver: Receiver, *kinds: str) -> list[Any]:
    """Wait until the last messages are of these kinds."""

    def so_far(ids: list[str]) -> bool:
        return [id_.split("/")[0] for id_ in ids][-len(kinds) :] == list(kinds)

    return await until(partial(received_kinds, receiver), so_far, " ".join(kinds))


async def delivery_state(rig: Rig) -> str:
    file = rig.state_dir / "notify" / "webhook.json"
    return file.read_text() if file.exists() else ""


def secret(rig: Rig) -> None:
    (rig.home / "secret").write_text("a key")


async def test_delivers_each_notification_once_despite_a_daemon_kill(site: Start) -> None:
    async with receiving() as receiver:
        rig = await site(notifying(receiver))
        secret(rig)
        await rig.serving()
        made = await rig.propose(max_num_seqs=16)
        await until(
            partial(delivery_state, rig),
            lambda text: "suggestion.waiting" in text,
            "the delivery record",
        )
        await rig.kill()
        await rig.start()
        await wait_for_kinds(receiver, "daemon.restarted")
        await rig.serving()

        async with rig.clients():
            await rig.approve(made)
            ended = await rig.ended(made["id"])
        ids = await wait_for_kinds(
            receiver, "suggestion.decided", "rollout.started", "rollout.rolling_back", "rollout.rolled_back"
        )

    assert ended["outcome"] == "rolled_back", ended
    assert len(ids) == len(set(ids)) == 7, ids
    assert ids[1] == f"suggestion.waiting/{made['id']}"
    assert receiver.bodies[-1]["place"] == f"/rollouts/{ended['id']}"


async def test_an_unresponsive_receiver_delays_no_rollback(site: Start) -> None:
    async with receiving(*["hang"] * 1000) as receiver:
        rig = await site(notifying(receiver))
        secret(rig)
        await rig.serving()
        async with rig.clients():
            ended = await rig.switch(max_num_seqs=16)

    assert ended["outcome"] == "rolled_back", ended
    assert receiver.visited
