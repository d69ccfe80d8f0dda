"""How an operator serves without flettner after its containers: steps, as sentences."""

import shlex
from collections.abc import Sequence

from flettner.actuators.docker.container import Container
from flettner.redaction import mask, masked
from flettner.vllm_facts.flag_parser import edit_flags


def describe_way_back(containers: Sequence[Container], adopted: str) -> list[str]:
    """The steps, if a container of flettner serves. `adopted`: the operator's own. Raises FlagError."""
    ours = sorted((each for each in containers if each.ours and each.active), key=lambda each: each.server)
    if not ours:
        return []
    setting = masked(ours[0].serve.setting)
    model = str(setting.pop("model", ""))
    command = mask(shlex.join(edit_flags(["vllm", "serve", *([model] if model else [])], setting)))
    former = next((each for each in containers if each.server == ours[0].like), None)
    ports = former.published if former and former.published else ()
    at = f", publishing {', '.join(ports)} again" if ports else ""
    return [
        f"start your container {adopted} of {ours[0].image_tag} with the flags in force{at}: {command}",
        "when it serves, point the clients at it, or delete the firewall rules of `flettner check`",
        *(f"then remove {each.server}: docker rm -f {each.name}" for each in ours),
    ]
