"""Errors in the log about chats, tools, images, adapters and the model's files: rule F9."""

import re
from collections.abc import Mapping

from flettner.lint.known_error import KnownError, recognisers
from flettner.vllm_facts.serve_config import ServeConfig
from flettner.vllm_facts.sizing.effective_flags import text_of
from flettner.vllm_facts.values import Knob, Value

_TOOLS = "https://docs.vllm.ai/en/latest/features/tool_calling/"
_LORA = "https://docs.vllm.ai/en/latest/features/lora/"
_PARSERS = (
    ("llama-4", "llama4_pythonic"),
    ("llama-3", "llama3_json"),
    ("mistral", "mistral"),
    ("gpt-oss", "openai"),
    ("qwen2.5", "hermes"),
)
"""Words of a model's name, and the parser that vLLM's documentation names for it."""


def _enable_tools(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    return {"enable_auto_tool_choice": True} if config.setting.get("tool_call_parser") else {}


def _matching_parser(_: re.Match[str], config: ServeConfig) -> Mapping[Knob, Value]:
    model, present = text_of(config, "model").lower(), text_of(config, "tool_call_parser")
    meant = next((parser for word, parser in _PARSERS if word in model), present)
    return {} if meant == present else {"tool_call_parser": meant}


def _has_no_template(config: ServeConfig) -> bool:
    return not config.setting.get("chat_template")


_CHATS = (
    KnownError(
        pattern=r"default chat template is no longer allowed|tokenizer\.chat_template is not set",
        why="chat requests are refused: the model's files hold no chat template, and "
        "--chat-template names none",
        expects="a base model has none: serve its instruction-tuned sibling, give the model's own "
        "template with --chat-template FILE, or send /v1/completions; models with their own "
        "encoding need a tokenizer mode: --tokenizer-mode deepseek_v32 for DeepSeek-V3.2 (0.13 "
        "and later), mistral for Mistral's format",
        source=(
            "https://docs.vllm.ai/en/latest/serving/openai_compatible_server/ (chat template); "
            "vllm-project/vllm#29849"
        ),
        applies=_has_no_template,
    ),
    KnownError(
        pattern=r"tool choice requires --enable-auto-tool-choice",
        why="requests with tools are refused: they need --enable-auto-tool-choice and the "
        "--tool-call-parser of the model's family",
        expects="tools are called; the parsers by model: hermes (Qwen2.5, Hermes), llama3_json, mistral, "
        "openai (gpt-oss) and others",
        source=f"{_TOOLS}; vLLM 0.32 vllm/renderers/online_renderer.py",
        changes=_enable_tools,
        applies=lambda config: (
            not (config.setting.get("enable_auto_tool_choice") and config.setting.get("tool_call_parser"))
        ),
    ),
    KnownError(
        pattern=r"--enable-auto-tool-choice and --enable-reasoning cannot be enabled at the same time",
        why="it did not start: this release does not parse reasoning and tool calls together",
        expects="vLLM 0.8.3 and later do, and reasoning needs --reasoning-parser only",
        source="vllm-project/vllm#14429",
    ),
    KnownError(
        pattern=r"invalid tool call parser: (?P<name>[\w.-]+)",
        why="it did not start: this release has no --tool-call-parser {name}",
        expects="a release that lists it (openai for gpt-oss: 0.10.2), or another parser of the "
        "model's family",
        source=f"{_TOOLS}; vllm-project/recipes#51",
    ),
    KnownError(
        pattern=r"tool_parser:'(?P<name>[\w.-]+)' which has not been registered",
        why="it did not start: this release has no --tool-call-parser {name}",
        expects="a release that lists it, --tool-parser-plugin, or another parser of the model's family",
        source="vLLM 0.32 vllm/parser/parser_manager.py: get_tool_parser",
    ),
    KnownError(
        pattern=r"reasoning_parser_name='(?P<name>[\w.-]+)' has not been registered"
        r"|invalid reasoning parser: (?P<old>[\w.-]+)",
        why="it did not start: this release has no --reasoning-parser {name}{old}",
        expects="a release that lists it, or another parser of the model's family",
        source="vLLM 0.32 vllm/parser/parser_manager.py: get_reasoning_parser",
    ),
    KnownError(
        pattern=r"[Rr]eason\w* (?:parser|extractor) could not locate think",
        why="the --reasoning-parser is of another model: this model's tokenizer lacks its think tokens",
        expects="the parser of the model's own family, or none if the model does not reason; check "
        "--model, too",
        source="vLLM 0.32 vllm/reasoning/basic_parsers.py; vllm-project/recipes#515",
    ),
    KnownError(
        pattern=r"KeyError: '<tool_call>'|ool (?:\w+ )?parser could not locate",
        why="the --tool-call-parser is of another model: this model's tokenizer lacks its tool-call tokens",
        expects="tools are called; each family of models has its own parser",
        source=(
            f"{_TOOLS}; "
            f"vLLM 0.32 vllm/tool_parsers/llama_tool_parser.py: 'could not locate'; "
            f"vllm-project/vllm#8912"
        ),
        changes=_matching_parser,
    ),
    KnownError(
        pattern=r"cannot be used with the tokenizer of (?P<model>'[^']+')",
        why="it did not start: a parser is of another model than {model}",
        expects="the --tool-call-parser and --reasoning-parser of the model's own family",
        source="vLLM 0.32 vllm/parser/parser_manager.py: validate_parser_tokenizer",
    ),
    KnownError(
        pattern=r"error: argument (?P<flag>--[\w-]+)(?:/-\w+)*: invalid choice: (?P<value>'?[\w.-]+'?)",
        why="it did not start: this release does not know the value {value} of {flag}",
        expects="one of the values that the error lists, or a release that has this one",
        source=(
            "vLLM 0.32 vllm/utils/argparse_utils.py: FlexibleArgumentParser (exit code 2); "
            "vllm-project/vllm#9312"
        ),
    ),
)
_INPUTS = (
    KnownError(
        pattern=r"exceeds the pre-allocated encoder cache size (?P<size>\d+)",
        why="an image, video or audio is larger than the encoder cache of {size} tokens",
        expects="smaller inputs (--mm-processor-kwargs), or a --max-num-batched-tokens above the "
        "tokens of one",
        source="vLLM 0.32 vllm/v1/engine/input_processor.py",
        severity="warning",
    ),
    KnownError(
        pattern=r"multimodal tokens to \d+ placeholders|key and positions must have the same number",
        why="the images of one request take more tokens than a step of this release holds",
        expects="a --max-num-batched-tokens above the tokens of all images of a request, or a "
        "release from 0.9 on",
        source="vllm-project/vllm#7996; vllm-project/vllm#18266",
    ),
    KnownError(
        pattern=r"At most (?P<most>\d+) (?P<kind>\w+)\(s\) may be provided in one (?:prompt|request)",
        why="requests with more than {most} {kind} inputs are refused: --limit-mm-per-prompt allows no more",
        expects="""they are accepted with --limit-mm-per-prompt '{{"{kind}": N}}'; the start profiles N of """
        "the largest size, so a large N costs KV cache",
        source="vLLM 0.32 vllm/multimodal/processing/context.py; vllm-project/vllm#13513",
        severity="warning",
    ),
    KnownError(
        pattern=r"`?limit_mm_per_prompt`? is only supported for multimodal models",
        why="it did not start: this vLLM, with its transformers, does not know the model as multimodal",
        expects="if the model reads images, a newer vLLM and transformers; else leave "
        "--limit-mm-per-prompt out",
        source="zai-org/GLM-V#15; https://docs.vllm.ai/en/latest/models/supported_models/",
    ),
    KnownError(
        pattern=r"maximum context length is (?P<most>\d+) tokens.*requested (?P<asked>\d+)",
        why="requests of {asked} tokens are refused: max_model_len is {most}",
        expects="shorter prompts or a smaller max_tokens; or a higher --max-model-len, if the KV "
        "cache holds it",
        source="vLLM 0.32 vllm/renderers/params.py",
        severity="warning",
    ),
    KnownError(
        pattern=r"Expected a cached item for mm_hash",
        why="requests with images fail: the cache of preprocessed images lost an entry that the other "
        "process counts on, a bug",
        expects="a newer release; --mm-processor-cache-gb 0 works without that cache, at the price of "
        "preprocessing each image anew",
        source="vllm-project/vllm#31404; vllm-project/vllm#33865",
    ),
    KnownError(
        pattern=r"Encoder cache miss for",
        why="the engine ended: the embedding of an image left the encoder's cache before it was read, a bug "
        "seen with speculative decoding",
        expects="a newer release, or no draft model until then",
        source="vllm-project/vllm#32469; vllm-project/vllm#38551",
    ),
)
_MODELS = (
    KnownError(
        pattern=r"Expecting value: line 1 column 1 \(char 0\)",
        why="it did not start: a JSON file of the model's folder is empty or no JSON",
        expects="config.json, the tokenizer's and the processor's files are complete; Git LFS "
        "leaves text files of three lines in place of the content",
        source="vllm-project/vllm#26161",
    ),
    KnownError(
        pattern=r"the following arguments are required: model_tag",
        why="it did not start: this release takes the model as the first word, not as --model",
        expects="vllm serve MODEL …",
        source="vllm-project/vllm#13150",
    ),
    KnownError(
        pattern=r"OSError: (?P<name>\S+) is not a local folder and is not a valid model identifier"
        r"|Invalid repository ID or local directory specified: (?P<path>\S+)",
        why="it did not start: {name}{path} is neither a folder that the server sees nor a repository",
        expects="the name as on the hub, or the path inside the container (docker run -v HOST:PATH)",
        source="vLLM 0.32 vllm/transformers_utils/config.py",
    ),
    KnownError(
        pattern=r"We couldn't connect to 'https://huggingface\.co'|Max retries exceeded with url",
        why="it did not start: the model's files are not in the cache, and huggingface.co cannot be reached",
        expects="a local path or a filled HF_HOME, HF_ENDPOINT of a mirror, or access to the network",
        source="https://huggingface.co/docs/huggingface_hub/package_reference/utilities",
    ),
    KnownError(
        pattern=r"all_special_tokens_extended|cannot import name '\w+' from 'transformers",
        why="it did not start: the installed transformers does not fit this vLLM",
        expects="the transformers that this vLLM pins (4.x for vLLM before 0.19), or its container image",
        source="QwenLM/Qwen3-VL#2058",
    ),
    KnownError(
        pattern=r"(?P<name>[A-Z]\w+) does not support LoRA(?: yet|,)",
        why="it did not start: vLLM has no LoRA support for {name}",
        expects="merge the adapter into the weights and serve those without --enable-lora; a newer "
        "release may support the model",
        source=f"vLLM 0.32 vllm/v1/worker/lora_model_runner_mixin.py; {_LORA}; vllm-project/vllm#46459",
        applies=lambda config: config.setting.get("enable_lora") is True,
    ),
    KnownError(
        pattern=r"(?P<name>base_model[\w.]*) is unsupported LoRA weight",
        why="the adapter was refused: it holds {name}, a weight that vLLM does not load as LoRA",
        expects="an adapter trained without that module (modules_to_save, embeddings), or merged "
        "into the weights",
        source=f"vLLM 0.32 vllm/lora/utils.py; {_LORA}; vllm-project/vllm#32599",
    ),
    KnownError(
        pattern=r"vLLM (?P<what>only supports modules_to_save[^.\[]*|does not yet support DoRA"
        r"|does not support LoRA bias|does not support init_lora_weights)",
        why="the adapter was refused: vLLM {what}",
        expects="an adapter trained without it, or merged into the weights and served without --enable-lora",
        source="vLLM 0.32 vllm/lora/peft_helper.py: _validate_features; MeetKai/functionary#309",
    ),
    KnownError(
        pattern=r"When using LoRA, vocab size must be (?P<least>\d+) >= vocab_size <= (?P<most>\d+)",
        why="it did not start: this release takes LoRA only for vocabularies of {least} to {most} tokens",
        expects="a newer release, or the adapter merged into the weights",
        source="vllm-project/vllm#3000; vllm-project/vllm#3994",
    ),
    KnownError(
        pattern=r"The model should be a generative or pooling model",
        why="it did not start: this release serves none of the architectures in the folder's config.json",
        expects="config.json names the class of the model (the documentation lists those served), with the "
        "transformers that this vLLM pins",
        source="vllm-project/vllm#28564; https://docs.vllm.ai/en/latest/models/supported_models/",
    ),
    KnownError(
        pattern=r"Failed to load mistral '[\w.]+' config",
        why="it did not start: config_format mistral reads Mistral's own files, and this checkpoint has none",
        expects="it starts, with the checkpoint's Hugging Face files",
        source="vLLM 0.32 vllm/transformers_utils/config.py; vllm-project/vllm#17132",
        to={"config_format": None, "load_format": None, "tokenizer_mode": None},
    ),
    KnownError(
        pattern=r"trust_remote_code=True",
        why="it did not start: the model's repository brings Python code that transformers needs",
        expects="it starts; a vLLM that has the model built in needs no such code",
        source="vLLM 0.32 vllm/transformers_utils/config.py",
        to={"trust_remote_code": True},
        risks="Python files of the model's repository run with the server's rights: pin --revision",
    ),
    KnownError(
        pattern=r"Transformers does not recognize this architecture",
        why="it did not start: the installed transformers does not know the model",
        expects="a newer vLLM, which brings its transformers, or a newer transformers if vLLM allows it",
        source=(
            "https://huggingface.co/docs/transformers/model_doc/auto; "
            "https://docs.vllm.ai/en/latest/models/supported_models/"
        ),
    ),
    KnownError(
        pattern=r"Cannot access gated repo|Access to model \S+ is restricted|trying to access a gated repo",
        why="it did not start: the model's repository is gated, and no token with access is set",
        expects="it loads with HF_TOKEN of an account that accepted the model's terms",
        source="https://huggingface.co/docs/hub/models-gated",
    ),
)
LINTS = recognisers((*_CHATS, *_INPUTS, *_MODELS))
