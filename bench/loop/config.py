"""The config file of an operator who gives engine, traffic and SLO, and leaves the rest to the defaults."""

import json

from bench.loop.world import World
from flettner.agent.config.plugin_tables import POLICIES


def server_names(world: World) -> list[str]:
    return [f"server-{number + 1}" for number in range(world.servers)]


def config_text(
    world: World, target: str, *, python: str = "python", listen: str = "127.0.0.1:8080", engine: str = ""
) -> str:
    """`engine`: further lines of its table."""
    promises = "\n".join(
        f'{name} = {{ under = "{under}", share = {share} }}'
        for name, (under, share) in world.promises.items()
    )
    others = [name for name in POLICIES if name != "health"] if world.model == "alone" else []
    policies = "\n".join(
        [*(f"{name} = false" for name in others), f"model = {str(world.model != 'off').lower()}"]
    )
    cost = "[targets.cost]\n        save = true" if world.saves else ""
    command = f'kind = "process"\n        command = {json.dumps([python, *world.command])}'
    if world.servers > 1:
        command = f'kind = "docker"\n        containers = {json.dumps(server_names(world))}'
    return f"""
        [agent]
        state_dir = "s"
        mode = "{world.mode}"
        [policies]
        {policies}
        [[targets]]
        name = "{target}"
        [targets.slo]
        {promises}
        {cost}
        [targets.engine]
        {command}
        strategy = "{"hot" if world.live_cap else "auto"}"
        {engine}
        [targets.traffic]
        listen = "{listen}"
        [targets.rollout]
        {world.rollout}
    """
