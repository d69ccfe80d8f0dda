"""The tables of flags agree with the parser and the configuration classes of the installed vLLM."""

import pytest

from flettner.vllm_facts import flag_table
from flettner.vllm_facts.deprecated_flags import RENAMED
from flettner.vllm_facts.flag_parser import edit_flags, parse_setting
from flettner.vllm_facts.json_flags import KEYS, STRICT
from flettner.vllm_facts.knobs import KNOBS
from flettner.vllm_facts.releases import FLAGS, RELEASE
from flettner.vllm_facts.releases.history import values_in
from tests.support.vllm_interpreter import Ask
from tests.unit.vllm_facts.test_config_file import FILE, read
from tests.unit.vllm_facts.test_knobs import example

pytestmark = pytest.mark.timeout(900)

DUMP_ACTIONS = """
parts = parser.parse_args(question).compilation_config
actions = [[action.option_strings, action.nargs] for action in parser._actions]
print(json.dumps([actions, int(parts.mode), str(parts.cudagraph_mode)]))
"""


def test_the_flag_table_agrees_with_the_parser(ask: Ask) -> None:
    serve = ["vllm", "serve", "org/model", "-cc.mode=3"]
    argv = edit_flags(serve, {"compilation_config.cudagraph_mode": "PIECEWISE"})

    actions, mode, graphs = ask(DUMP_ACTIONS, argv[3:])

    assert (mode, "PIECEWISE" in graphs) == (3, True)
    for names, nargs in actions:
        for name in names:
            if name in {"-h", "--help"}:
                continue
            word = [] if nargs == 0 else ["a", "b"] if nargs == "+" else ["a"]
            setting = parse_setting(["vllm", "serve", name, *word, "--end"])
            knob = names[0].removeprefix("--").replace("-", "_")
            knob = flag_table.ALIASES.get(knob, knob)
            if nargs == 0:
                assert setting[knob] is not name.startswith("--no-"), name
            elif knob not in {"port", "host", "uds", "api_key", "hf_token"}:
                assert setting[knob] == " ".join(word), name
            assert setting["end"] is True, name


PARSE_LINES = """
errors = {}
for name, argv in question.items():
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            parser.parse_args(argv)
        except BaseException as error:
            err.write(repr(error))
    errors[name] = err.getvalue()[-300:]
names = [name for action in parser._actions for name in action.option_strings]
print(json.dumps([errors, names]))
"""


def test_the_parser_accepts_every_flag_of_the_catalogue_and_no_removed_one(ask: Ask) -> None:
    lines = {name: edit_flags(["vllm", "serve"], {name: example(facts)})[2:] for name, facts in KNOBS.items()}
    lines |= {name: [f"--{name.replace('_', '-')}"] for name in RENAMED.keys() - KNOBS.keys()}

    errors, names = ask(PARSE_LINES, lines)

    long = {name for name in names if name.startswith("--") and not name.startswith("--no-")}
    assert {name[2:].replace("-", "_") for name in long - {"--help"}} == FLAGS
    assert {name: why for name, why in errors.items() if name in FLAGS and why} == {}
    refused = {name for name, why in errors.items() if "unrecognized arguments" in why or "ambiguous" in why}
    assert refused == errors.keys() - FLAGS
    assert refused >= RENAMED.keys()


LOAD_CONFIG_FILE = """
import argparse, tempfile
file_parser = FlexibleArgumentParser()
for flag in ("--enforce-eager", "--enable-prefix-caching", "--enable-chunked-prefill"):
    file_parser.add_argument(flag, action=argparse.BooleanOptionalAction)
file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
file.write(question)
file.flush()
print(json.dumps(file_parser.load_config_file(file.name)))
"""


def test_reads_the_same_flags_from_a_config_file_as_vllm(ask: Ask) -> None:
    words = ask(LOAD_CONFIG_FILE, FILE)

    assert parse_setting(["vllm", "serve", *words]) == read(FILE)


DUMP_JSON_KEYS = """
import vllm.config as config
from vllm.config.parallel import EPLBConfig
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

def refuses(knob):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(["--" + knob.replace("_", "-") + "={bad"])
    except SystemExit:
        return True
    return False

strict, classes = question
keys = {
    flag: [field.name for field in dataclasses.fields(getattr(config, name, EPLBConfig))]
    for flag, name in classes.items()
}
print(json.dumps([keys, QUANTIZATION_METHODS, [knob for knob in strict if not refuses(knob)]]))
"""
CLASSES = {
    "attention_config": "AttentionConfig",
    "compilation_config": "CompilationConfig",
    "eplb_config": "EPLBConfig",
    "kernel_config": "KernelConfig",
    "kv_events_config": "KVEventsConfig",
    "kv_transfer_config": "KVTransferConfig",
    "pooler_config": "PoolerConfig",
    "speculative_config": "SpeculativeConfig",
    "structured_outputs_config": "StructuredOutputsConfig",
}


def test_the_json_flags_agree_with_the_configuration_classes(ask: Ask) -> None:
    keys, methods, accepted = ask(DUMP_JSON_KEYS, [sorted(STRICT), CLASSES])

    assert CLASSES.keys() <= KEYS.keys()
    assert not [(flag, key) for flag in CLASSES for key in KEYS[flag] - set(keys[flag])]
    assert frozenset(methods) == values_in("quantization", f"{RELEASE[0]}.{RELEASE[1]}.0")
    assert not accepted
