"""Errors in the log about the host: driver, links between GPUs, memory, toolchain. Rule F9."""

import re

from flettner.lint.known_error import KnownError, recognisers

_INSTALL = "https://docs.vllm.ai/en/latest/getting_started/installation/gpu/"
_TROUBLE = "https://docs.vllm.ai/en/latest/usage/troubleshooting/"

_NAMED = re.compile(r"ShmOpen|shared memory segment|insufficient shared memory|Duplicate GPU")

_ROWS = (
    KnownError(
        pattern=r"NCCL error:? ?(?P<what>[a-z ]*[a-z])",
        why="NCCL, which links the GPUs, failed ({what}): the host's shared memory, driver, network or "
        "GPU-to-GPU access, not a flag of the engine",
        expects="NCCL_DEBUG=INFO names the step that failed; in a container --ipc=host or a larger "
        "--shm-size; between GPUs without peer access NCCL_P2P_DISABLE=1",
        source=f"{_TROUBLE}; vllm-project/vllm#39774",
        applies=lambda config: not any(map(_NAMED.search, config.log)),  # by U2 or the next row
    ),
    KnownError(
        pattern=r"Duplicate GPU detected",
        why="two workers were put on the same GPU",
        expects="each worker has a GPU of its own: CUDA_VISIBLE_DEVICES, the container and the "
        "launcher show as many as tensor x pipeline x data take",
        source="huggingface/trl#3446",
    ),
    KnownError(
        pattern=r"RPC call to \w+ timed out|No available shared memory broadcast block found",
        why="a worker did not answer for a minute or more: it hangs, or it compiles",
        expects="once after a start it is compilation; else a GPU or link hangs: the worker's own "
        "last lines, py-spy dump, NCCL_DEBUG=INFO, and between GPUs without peer access "
        "NCCL_P2P_DISABLE=1",
        source="vLLM 0.32 vllm/distributed/device_communicators/shm_broadcast.py; vllm-project/vllm#27313",
        severity="warning",
    ),
    KnownError(
        pattern=r"No module named '(?P<name>[\w.]+)'|Please install (?P<extra>vllm\[\w+\])",
        why="a Python package is missing: {name}{extra}",
        expects="install it beside vLLM (audio and video: pip install 'vllm[audio]'), or leave the "
        "flag that needs it out",
        source="vLLM 0.32 vllm/utils/import_utils.py",
    ),
    KnownError(
        pattern=r"Cannot provide a placement group|No available node types can fulfill resource request",
        why="it did not start: the Ray cluster has fewer GPUs than the parallel sizes take",
        expects="it starts once `ray status` shows the GPUs of all hosts, or with smaller parallel sizes",
        source="vLLM 0.32 vllm/v1/executor/ray_utils.py",
    ),
    KnownError(
        pattern=r"No CUDA GPUs are available|invalid device ordinal",
        why="it did not start: a worker sees no GPU of its number",
        expects="CUDA_VISIBLE_DEVICES and the container show as many GPUs as tensor x pipeline x data take",
        source=_TROUBLE,
    ),
    KnownError(
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        why="it did not start: CUDA was in use before the workers were forked",
        expects="it starts with the workers spawned",
        source=_TROUBLE,
        env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ),
    KnownError(
        pattern=r"DistStoreError|TCPStore\b.*(?:timed out|timeout|failed)",
        why="it did not start: the hosts or workers did not find each other in time",
        expects="the address and port of the first host are open to all; with several networks "
        "VLLM_HOST_IP, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the one to use",
        source=_TROUBLE,
    ),
    KnownError(
        pattern=r"Failed to infer device type",
        why="it did not start: vLLM sees no GPU",
        expects="it starts once nvidia-smi works there: the driver, `docker run --gpus all`, or "
        "the image for the hardware at hand (CUDA, ROCm, CPU)",
        source=f"vLLM 0.32 vllm/config/device.py; {_INSTALL}",
    ),
    KnownError(
        pattern=r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|PTX was compiled with an unsupported toolchain",
        why="it did not start: the NVIDIA driver is older than the CUDA of this build",
        expects="a newer driver, or a build of vLLM for an older CUDA",
        source=_INSTALL,
    ),
    KnownError(
        pattern=r"(?:_C\w*(?:\.abi3)?\.so|libc10\w*\.so|flash_attn\S*\.so): undefined symbol"
        r"|operator torchvision::nms does not exist",
        why="it did not start: vLLM's kernels were built for another PyTorch than the installed one",
        expects="a fresh environment with the PyTorch that this vLLM pins, or its container image",
        source=_INSTALL,
    ),
    KnownError(
        pattern=r"Could not find nvcc|Ninja is required|CUDA_HOME environment variable is not set"
        r"|Python\.h: No such file",
        why="a kernel is compiled at start, and the compiler or its headers are missing",
        expects="the CUDA toolkit (nvcc), ninja and python3-dev, or vLLM's container image, which has them",
        source=f"{_INSTALL}; {_TROUBLE}",
    ),
    KnownError(
        pattern=r"Ninja build failed|ninja: build stopped",
        why="a kernel is compiled at start (FlashInfer, or a PyTorch extension), and the compiler failed",
        expects="a CUDA toolkit (CUDA_HOME, nvcc) that knows the GPU and is of the CUDA release of "
        "PyTorch, or vLLM's container image, which has one; VLLM_USE_FLASHINFER_SAMPLER=0 leaves "
        "FlashInfer's sampler out",
        source=f"{_INSTALL}; vllm-project/vllm#44985; vllm-project/vllm#50705",
    ),
    KnownError(
        pattern=r"VLLM_PORT '(?P<uri>\S+)' appears to be a URI",
        why="it did not start: Kubernetes set VLLM_PORT to {uri} for a service named vllm, where vLLM "
        "reads a port",
        expects="it starts with another name of the service, or with enableServiceLinks: false in the pod",
        source="vLLM 0.32 vllm/envs.py: get_vllm_port; vllm-project/vllm#34199",
    ),
    KnownError(
        pattern=r"(?:LLMatcher|llguidance)\b.*got (?:some|an unexpected)",
        why="structured output fails: the installed llguidance does not fit this vLLM",
        expects="the llguidance that this vLLM pins (pip check), or its container image",
        source="vllm-project/vllm#16339",
    ),
    KnownError(
        pattern=r"(?:worker|process|proc|died)\b.*\b(?:SIGKILL|exit ?code:? -9|signal 9)\b",
        why="the kernel of the host killed a process of vLLM (SIGKILL): most often the host's memory ran out",
        expects="more host memory for the container; less of it is used with smaller cpu_offload_gb and "
        "kv_offloading_size, and with checkpoints in safetensors",
        source=_TROUBLE,
    ),
    KnownError(
        pattern=r"\[Errno 98\]",
        why="it did not start: another process listens on its port",
        expects="it starts on another --port, or once that process has ended",
        source="vLLM 0.32 vllm/entrypoints/launchers/launcher.py: setup_server",
    ),
    KnownError(
        pattern=r"No space left on device",
        why="a disk or /dev/shm is full",
        expects="space for the weights and caches (HF_HOME, VLLM_CACHE_ROOT), or a larger --shm-size",
        source=_TROUBLE,
    ),
)
LINTS = recognisers(_ROWS)
