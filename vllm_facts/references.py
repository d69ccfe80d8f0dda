"""Public pages that several rules refer to.

A `source` is a list of references, separated by "; ". Each is a file of vLLM, with a name or a text in it
(`vllm/config/model.py: _resolve_auto_dtype`), an issue or pull request (`vllm-project/vllm#10544`), a file of
`vllm-project/recipes`, or an https address. A remark may follow in parentheses. A file is that of the newest
release in vllm_facts/releases, which `cite` adds where the source is shown; only that of an older one names
its release (`vLLM 0.14 vllm/…`).
"""

DOCS = "https://docs.vllm.ai/en/latest"
OPTIMIZATION = f"{DOCS}/configuration/optimization/"
CONSERVING_MEMORY = f"{DOCS}/configuration/conserving_memory/"
SCALING = f"{DOCS}/serving/parallelism_scaling/"
DATA_PARALLEL = f"{DOCS}/serving/data_parallel_deployment/"
QUANTIZATION = f"{DOCS}/features/quantization/"
OPTIMIZATION_LEVELS = f"{DOCS}/design/optimization_levels/"
DOCKER = f"{DOCS}/deployment/docker/"
METRICS = f"{DOCS}/usage/metrics/"

AMD_MOE = "https://rocm.blogs.amd.com/software-tools-optimization/vllm-moe-guide/README.html"
KV_OFFLOADING = "https://blog.vllm.ai/2026/01/08/kv-offloading-connector.html"
LLAMA_4 = "https://blog.vllm.ai/2025/04/05/llama4.html"
V1_ENGINE = "https://blog.vllm.ai/2025/01/27/v1-alpha-release.html"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
RECIPES = "vllm-project/recipes"  # with a file

FASTER_GRAPHS = "reported: 1.7 times and more, most with small models; not promised"
GRAPHS_FOR = (
    "a token takes 13 instead of 22 ms (a 7B model on A800), a quarter of the time on an H200 with 3B "
    "(vllm-project/vllm-omni#7960)"
)
GRAPHS_AGAINST = (
    "little with large models (vllm-project/vllm#4449); 2.4 GiB more memory on an RTX 4090 "
    "(vllm-project/vllm#7553)"
)
