"""Flags of other servers and of requests in vLLM's command lines, and vLLM's flags of the same meaning.

Sources: the documentation of SGLang (server arguments), TGI (launcher) and llama.cpp (llama-server).
"""

from flettner.vllm_facts.values import Knob

COUNTERPARTS: dict[Knob, Knob] = {
    "chunked_prefill_size": "max_num_batched_tokens",
    "context_length": "max_model_len",
    "ctx_size": "max_model_len",
    "cuda_memory_fraction": "gpu_memory_utilization",
    "dp_size": "data_parallel_size",
    "lora_path": "lora_modules",
    "lora_paths": "lora_modules",
    "max_concurrent_requests": "max_num_seqs",
    "max_running_requests": "max_num_seqs",
    "max_total_tokens": "max_model_len",
    "mem_fraction_static": "gpu_memory_utilization",
    "model_id": "model",
    "model_path": "model",
    "num_shard": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "quantize": "quantization",
    **dict.fromkeys(
        ("min_p", "repetition_penalty", "temperature", "top_k", "top_p"), "override_generation_config"
    ),
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
}
