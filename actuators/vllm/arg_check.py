"""Checks command lines with the vLLM of an image; no weights are read, no port is opened.

Its text is run by that image's own python (`python -c TEXT JSON`), so it imports nothing of this project and
keeps to old Python. Given a JSON list of lists of flags, it prints, after whatever vLLM prints, one line:
MARK and {"vllm": version or null, "cache": folder, "answers": [{"ok", "kind", "error", "resolved", "hash",
"compiles"}, ...]}. `kind` of an error: "usage" (argparse, exit 2), "value" (a value or combination), "other".
"""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import sys
from typing import Any, Dict, List  # noqa: UP035 - old images have Python 3.8

MARK = "FLETTNER-CHECK "
LONGEST = 600  # characters of an error
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
FLEXIBLE = ("vllm.utils.argparse_utils", "vllm.utils")
WANTED = {
    "scheduler_config": (
        "max_num_seqs max_num_batched_tokens max_num_active_seqs max_num_scheduled_tokens "
        "long_prefill_token_threshold enable_chunked_prefill async_scheduling policy"
    ),
    "cache_config": (
        "gpu_memory_utilization block_size enable_prefix_caching cache_dtype kv_cache_memory_bytes"
    ),
    "model_config": "model max_model_len dtype quantization enforce_eager",
    "parallel_config": "tensor_parallel_size pipeline_parallel_size data_parallel_size",
    "compilation_config": "mode level cudagraph_mode max_cudagraph_capture_size",
}


def main() -> None:
    lines = json.loads(sys.argv[1])
    result = {"vllm": None, "cache": "", "answers": []}  # type: Dict[str, Any]
    if importlib.util.find_spec("vllm") is not None:
        result["answers"] = [answer(words) for words in lines]
        result["vllm"] = str(getattr(sys.modules.get("vllm"), "__version__", "unknown"))
        result["cache"] = str(getattr(sys.modules.get("vllm.envs"), "VLLM_CACHE_ROOT", ""))
    sys.stderr.flush()
    print("\n" + MARK + json.dumps(result), flush=True)  # noqa: T201 - the answer
    os._exit(0)  # threads that libraries have started may be slow to end


def answer(words: List[str]) -> Dict[str, Any]:  # noqa: UP006
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            options = parsed(words)
    except SystemExit:
        return bad("usage", last_line(stderr.getvalue()))
    except Exception as error:  # noqa: BLE001 - whatever vLLM raises is the answer
        return bad(kind_of(error), words_of(error))
    try:
        config = configured(options)
        return {
            "ok": True,
            "resolved": resolved(config),
            "hash": hash_of(config),
            "compiles": compiles(config),
        }
    except SystemExit as error:
        return bad("other", "exit " + str(error.code))
    except Exception as error:  # noqa: BLE001
        return bad(kind_of(error), words_of(error))


def parsed(words: List[str]) -> Any:  # noqa: ANN401, UP006
    flexible = first_of(FLEXIBLE, "FlexibleArgumentParser")
    parser = first_of(PARSERS, "make_arg_parser")(flexible(prog="vllm serve"))
    options = parser.parse_args(words)
    if getattr(options, "model_tag", None):
        options.model = options.model_tag
    with contextlib.suppress(ImportError, AttributeError):
        first_of(PARSERS, "validate_parsed_serve_args")(options)
    return options


def configured(options: Any) -> Any:  # noqa: ANN401
    arguments = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(options)
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    return arguments.create_engine_config(usage_context=usage)


def first_of(modules: Any, name: str) -> Any:  # noqa: ANN401
    """Return the attribute from the first module that has it: it moves from version to version."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError("this vLLM has no " + name)


def resolved(config: Any) -> Dict[str, Any]:  # noqa: ANN401, UP006
    values = {}
    for part, names in WANTED.items():
        for name in names.split():
            value = getattr(getattr(config, part, None), name, None)
            if value is not None:
                values[name] = plain(value)
    return values


def plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, (bool, int, float, str)) and type(value).__module__ == "builtins":
        return value
    return str(getattr(value, "name", value))


def hash_of(config: Any) -> str:  # noqa: ANN401
    """Return the hash of all that the compiled graphs depend on; empty: this vLLM has none."""
    with contextlib.suppress(Exception):
        return str(config.compute_hash())
    return ""


def compiles(config: Any) -> bool:  # noqa: ANN401
    part = getattr(config, "compilation_config", None)
    level = getattr(part, "mode", None)
    level = getattr(part, "level", None) if level is None else level
    return plain(level) not in ("NONE", "NO_COMPILATION", "0", 0)


def bad(kind: str, error: str) -> Dict[str, Any]:  # noqa: UP006
    return {"ok": False, "kind": kind, "error": error[:LONGEST]}


def kind_of(error: Exception) -> str:
    """ValueError: pydantic's errors are such, too."""
    return "value" if isinstance(error, (ValueError, TypeError, NotImplementedError)) else "other"


def words_of(error: Any) -> str:  # noqa: ANN401
    """Return the error without the configuration that pydantic repeats."""
    with contextlib.suppress(Exception):
        return "; ".join(one_of(each) for each in error.errors())
    return type(error).__name__ + ": " + " ".join(str(error).split())


def one_of(error: Dict[str, Any]) -> str:  # noqa: UP006
    where = ".".join(str(part) for part in error.get("loc", ()))
    what = str(error["msg"])
    for start in ("Value error, ", "Assertion failed, "):
        what = what[len(start) :] if what.startswith(start) else what  # noqa: FURB188 - Python 3.8
    return where + ": " + what if where else what


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "exit 2"


if __name__ == "__main__":
    main()
