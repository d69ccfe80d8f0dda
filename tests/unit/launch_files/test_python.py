"""Python programs and notebooks: what they start, as far as it is literal."""

import json

import pytest

from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.launch import Launch, line_of
from flettner.vllm_facts.launch_files.recognise import read_launches
from flettner.vllm_facts.launch_files.verified_edits import change_flags
from flettner.vllm_facts.values import Value
from tests.unit.launch_files.files import words


def read(code: str, name: str = "app.py") -> Launch:
    (launch,) = read_launches(name, code)
    return launch


LIST = """\
import subprocess, sys
MODEL, COUNT = "org/m", 2
NAME = "org/model"

def start(args):
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", NAME,
        "--max-model-len", str(4 * 1024),
        "--port", args.port,
    ]
    command += ["--dtype", "half"]
    if args.fast:
        command.append("--enforce-eager")
    command.extend(args.more)
    return subprocess.Popen(command)
"""


def test_a_list_of_words_is_read_with_what_is_appended_to_it() -> None:
    launch = read(LIST)

    assert words(launch) == (
        "python3 -m vllm.entrypoints.openai.api_server --model org/model --max-model-len 4096 "
        "--port ${port} --dtype half"
    )
    assert launch.unread == (
        "line 14: whether --enforce-eager is added is unknown",
        "line 15: the flags in *args.more are unknown",
    )


RAY = """\
from ray.serve.llm import LLMConfig
LLMConfig(
    model_loading_config=dict(model_id="a", model_source="org/m"), engine_kwargs=dict(max_model_len=512)
)
"""
ENVIRONMENT = """\
import os
L = int(os.environ.get("LENGTH", "99"))
C = ["vllm", "serve", "org/m", "--max-model-len", f"{L}"] + EXTRA
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            'import os\nos.system("CUDA_VISIBLE_DEVICES=1 vllm serve org/m --port 1")',
            "vllm serve org/m --port 1",
        ),
        ('import os\nM = "org/m"\nos.system(f"vllm serve {M} -tp {n}")', "vllm serve org/m -tp ${n}"),
        ('import x\nx.run(["bash", "-c", "exec vllm serve org/m"])', "exec vllm serve org/m"),
        ('from vllm import LLM\nLLM("org/m", dtype="half", seed=None)', "vllm serve org/m --dtype half"),
        (
            "from vllm import LLM as E\nE(model='org/m', enforce_eager=False, hf_overrides={'a': 1})",
            'vllm serve --model org/m --no-enforce-eager --hf-overrides {"a": 1}',
        ),
        (
            'import vllm\nARGS = {"model": "org/m", "max_num_seqs": 8}\nvllm.AsyncEngineArgs(**ARGS)',
            "vllm serve --model org/m --max-num-seqs 8",
        ),
        (
            RAY,
            "vllm serve org/m --max-model-len 512",
        ),
        (
            ENVIRONMENT,
            "vllm serve org/m --max-model-len 99",
        ),
    ],
)
def test_each_way_to_start_an_engine_is_read(code: str, expected: str) -> None:
    launch = read(code)
    assert words(launch).removeprefix("CUDA_VISIBLE_DEVICES=1 ") == expected
    assert ("EXTRA" in code) == bool(launch.unread)
    assert ("environ" in code) == bool(launch.remarks)


@pytest.mark.parametrize(
    "code",
    [
        'import a\nprint("vllm serve org/m")',
        'import a\n"""vllm serve org/m"""',
        'import a\nHELP = "start it by vllm serve org/m"',
        'from other import LLM\nLLM("org/m")',
        'import a\nx = ["vllm", "bench", "serve"]',
    ],
)
def test_texts_about_a_server_start_none(code: str) -> None:
    assert read_launches("a.py", code) == []


def test_the_gpus_of_a_decorator_and_the_installed_release_are_those_of_the_server() -> None:
    code = (
        "import modal\nN = 2\nimage = modal.Image.debian_slim().pip_install('vllm==0.11.2')\n"
        "@app.function(gpu=f'H100:{N}')\ndef serve():\n    run(['vllm', 'serve', 'org/m'])\n"
    )
    launch = read(code)
    assert (launch.gpu, launch.gpus, launch.version) == ("H100", 2, "0.11.2")


def test_conditions_of_literals_are_followed() -> None:
    code = (
        "import a\nEAGER = False\nLONG = True\ncmd = ['vllm', 'serve', 'org/m']\n"
        "cmd += ['--enforce-eager' if EAGER else '--no-enforce-eager']\n"
        "if LONG:\n    cmd += ['--max-model-len', '9']\nelse:\n    cmd += ['--seed', '1']\n"
    )
    launch = read(code)
    assert words(launch) == "vllm serve org/m --no-enforce-eager --max-model-len 9"
    assert launch.unread == ()


def test_entries_that_a_program_adds_to_a_dictionary_are_not_known() -> None:
    code = (
        "from ray.serve.llm import LLMConfig\nkwargs = dict(seed=1)\nif slow:\n    kwargs['dtype'] = 'half'\n"
        "rest = dict(model_loading_config=dict(model_id='org/m'), engine_kwargs=kwargs)\nLLMConfig(**rest)\n"
    )
    launch = read(code)
    assert words(launch) == "vllm serve org/m --seed 1"
    assert launch.unread == ("line 4: whether --dtype half is added is unknown",)


def test_a_switch_of_unknown_value_may_be_on_or_off() -> None:
    launch = read("from vllm import LLM\nLLM('org/m', enable_lora=path is not None)\n")
    assert (words(launch), launch.unread) == (
        "vllm serve org/m",
        ("line 2: whether --enable-lora is added is unknown",),
    )


def test_variables_that_the_code_sets_are_those_of_the_server() -> None:
    code = 'import os\nos.environ["VLLM_USE_V1"] = "0"\nos.system("vllm serve org/m")\n'
    assert read(code).env["VLLM_USE_V1"].value == "0"


CALL = """\
from vllm import LLM
llm = LLM(
    model="org/m",
    tensor_parallel_size=3,  # all of them
    enforce_eager=True,
    swap_space=4,
)
"""


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ({"tensor_parallel_size": 2}, CALL.replace("=3", "=2")),
        ({"enforce_eager": False}, CALL.replace("True", "False")),
        ({"swap_space": None}, CALL.replace("    swap_space=4,\n", "")),
        (
            {"max_num_seqs": 8, "dtype": "half"},
            CALL.replace("=4,", '=4,\n    max_num_seqs=8,\n    dtype="half",'),
        ),
    ],
)
def test_arguments_are_changed_and_all_else_stays(changes: dict[str, Value], after: str) -> None:
    assert change_flags("a.py", CALL, "", changes) == after


def test_a_dictionary_and_a_list_are_changed_in_their_own_form() -> None:
    entries = 'import vllm\nK = {"model": "org/m", "seed": 1}\nvllm.LLM(**K)\n'
    items = "import a\na.run(['vllm', 'serve', 'org/m', '--port', str(8000)])\n"

    assert change_flags("a.py", entries, "", {"seed": None, "max_num_seqs": 4}) == entries.replace(
        '"seed": 1', '"max_num_seqs": 4'
    )
    assert change_flags("a.py", items, "", {"max_num_seqs": 4}) == items.replace(
        "str(8000)", "str(8000), '--max-num-seqs', '4'"
    )


def test_a_computed_value_is_left_to_its_author() -> None:
    code = "from vllm import LLM\nN = 3\nLLM('org/m', tensor_parallel_size=N)\n"
    with pytest.raises(FlagError, match="is computed"):
        change_flags("a.py", code, "", {"tensor_parallel_size": 2})


@pytest.mark.parametrize("joined", [", ", " + "])
def test_names_that_stand_for_ever_more_are_not_evaluated(joined: str) -> None:
    """Each name stands for four hundred of the next: evaluated whole, they would fill any memory."""
    values = [f"a{depth} = [{joined.join([f'a{depth + 1}'] * 400)}]" for depth in range(7)]
    run = "subprocess.run(['vllm', 'serve', 'm', str(a0)])"
    launch = read("\n".join(["import subprocess", *values, "a7 = 'x'", run]))

    assert words(launch) == "vllm serve m"
    assert launch.unread == ("line 10: the flags in str(a0) are unknown",)


def test_a_notebook_is_read_with_the_lines_of_its_cells() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["vllm serve org/none\n"]},
        {
            "cell_type": "code",
            "source": ["!pip install vllm==0.10.1\n", "!vllm serve org/m \\\n", "  --seed 1 &"],
        },
        {"cell_type": "code", "source": ["from vllm import LLM\n", "llm = LLM('org/n')"]},
        {"cell_type": "code", "source": ["%%bash\n", "vllm serve org/o\n"]},
        {"cell_type": "code", "source": ["not python at all"]},
    ]
    text = json.dumps({"cells": cells, "nbformat": 4}, indent=1)
    launches = read_launches("a.ipynb", text)

    assert list(map(words, launches)) == [
        "vllm serve org/m --seed 1",
        "vllm serve org/n",
        "vllm serve org/o",
    ]
    assert {launch.version for launch in launches} == {"0.10.1"}
    lines = text.splitlines()
    assert [lines[line_of(text, launch.start) - 1].strip()[1:9] for launch in launches] == [
        "!vllm se",
        "llm = LL",
        "vllm ser",
    ]


def test_the_lines_of_a_notebook_are_those_of_its_file() -> None:
    source = ["import os\n", "from vllm import LLM\n", "LLM('org/m', enable_lora=bool(path), **more())\n"]
    text = json.dumps({"cells": [{"cell_type": "code", "source": source}]}, indent=1)
    (launch,) = read_launches("a.ipynb", text)

    line = next(at for at, each in enumerate(text.splitlines(), 1) if "LLM(" in each)
    assert [each.partition(":")[0] for each in launch.unread] == [f"line {line}"] * 2


@pytest.mark.parametrize("text", ["def (", "x = [" * 300, "\0import a", "import a\nif"])
def test_what_is_no_python_is_refused(text: str) -> None:
    with pytest.raises(FlagError):
        read_launches("a.py", text)


def test_a_script_that_installs_a_release_starts_that_release() -> None:
    installs = "# pip install vllm==0.9.0\npip install 'vllm[audio]==0.21.0'\n"
    script = f"{installs}vllm serve org/m\ndocker run vllm/vllm-openai m\n"
    assert [launch.version for launch in read_launches("run.sh", script)] == ["0.21.0", ""]


ARGUMENTS = """\
import argparse
from vllm import LLM
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--base-model", default="org/m")
parser.add_argument("--length", type=int, dest="most", default=4096)
parser.add_argument("--eager", action="store_true")
parser.add_argument("--dtype")
args = parser.parse_args()
BASE = args.base_model

def main(args):
    return LLM(model=BASE, max_model_len=args.most, enforce_eager=args.eager, dtype=args.dtype)
"""


def test_an_argument_of_the_program_is_read_as_its_default() -> None:
    launch = read(ARGUMENTS)

    assert words(launch).startswith("vllm serve --model org/m --max-model-len 4096")
    assert "--enforce-eager" not in words(launch)
    assert "line 12: the argument --length is read as its default" in launch.remarks
    assert "${dtype}" in words(launch)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param('args.base_model = "org/other"', id="set later"),
        pytest.param("args = load()", id="replaced"),
        pytest.param("other = argparse.ArgumentParser()", id="a second parser"),
    ],
)
def test_an_argument_that_may_be_another_one_stays_unknown(more: str) -> None:
    assert "org/m" not in words(read(f"{ARGUMENTS}\n{more}\n"))
