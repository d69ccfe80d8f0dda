"""KNOB=VALUE on the command line."""

import argparse
import re

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.values import is_start


def parse_knob(text: str) -> tuple[str, object]:
    """`max_num_seqs=128`, or in vLLM's notation `--max-num-seqs=128`."""
    from flettner.vllm_facts.flag_parser import parse_setting  # noqa: PLC0415 - only `propose` needs the flag tables

    knob, equals, given = text.partition("=")
    if equals and is_start(knob):
        return knob, None if given == "null" else given
    knob = knob.strip().removeprefix("--").replace("-", "_")
    if not equals or re.fullmatch(r"[a-z][a-z0-9_]*", knob) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not KNOB=VALUE, such as max_num_seqs=128")
    constants = {"null": None, "true": True, "false": False}
    if given in constants:
        return knob, constants[given]
    try:  # parse as vLLM does: 64k is 64000 where the flag takes sizes
        flags = parse_setting(
            ["python", "-m", "vllm.entrypoints.openai.api_server", f"--{knob.replace('_', '-')}={given}"]
        )
    except FlagError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return knob, flags.get(knob, given)
