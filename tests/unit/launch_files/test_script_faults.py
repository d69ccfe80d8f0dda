"""Scripts by whose own fault the server does not run, or not for long."""

import pytest

from flettner.vllm_facts.launch_files.recognise import read_launches

SERVE = "vllm serve org/model --port 9000"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"set -e\nexport DATA = /data\n{SERVE}\n", "line 3: with blanks around its = the value of DATA"),
        (f"set -euo pipefail\nDATA = /data\n{SERVE}\n", "the value of DATA is not set"),
        (f"DATA = /data\n{SERVE}\n", ""),
        (f"set -e\n{SERVE}\nDATA = /data\n", ""),
        (f"set -e\nfor ((i = 1; i < 3; i++)); do echo $i; done\n{SERVE}\n", ""),
        (f"set -e\n[ $A = b ] && A=c\ntest x = y || true\n{SERVE}\n", ""),
        (f"#SBATCH --mem=4G\n{SERVE} \\\n  > out.log 2>&1 &\n", "Slurm ends a job with its script"),
        (f"#SBATCH --mem=4G\n{SERVE} &\necho started\n", "Slurm ends a job with its script"),
        (f"#SBATCH --mem=4G\n{SERVE} &\nwait\n", ""),
        (f"#SBATCH --mem=4G\n{SERVE} &\npython client.py\n", ""),
        (f"#SBATCH --mem=4G\n{SERVE}\n", ""),
        (f"#SBATCH --mem=4G\n{SERVE} && echo done\n", ""),
        (f"{SERVE} &\n", ""),
    ],
)
def test_a_fault_of_the_script_is_told(text: str, fault: str) -> None:
    (launch,) = read_launches("job.sh", f"#!/bin/bash\n{text}")
    assert (fault in launch.entry_fault.why) if launch.entry_fault else not fault


def test_each_fault_of_a_script_is_told() -> None:
    text = f"set -e\nA = 1\nexport B = 2\nHF_HOME=/srv\n#SBATCH --mem=4G\n{SERVE} \\\n --seed 1 \\ \n --x &\n"
    (launch,) = read_launches("job.sh", f"#!/bin/bash\n{text}")

    assert launch.entry_fault is not None
    faults = (launch.entry_fault, *launch.entry_fault.also)
    assert [fault.of for fault in faults] == ["cut", "script", "script", "script", "variable"]
    assert "line 8 has a blank behind its \\" in faults[0].why
    assert "the server runs without --x" in faults[0].why


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"CUDA_VISIBLE_DEVICES=0\n{SERVE}\n", "line 2: CUDA_VISIBLE_DEVICES is set for the script alone"),
        (f"VLLM_USE_V1=0\n{SERVE}\n", "VLLM_USE_V1"),
        (f"VLLM_USE_V1=0\nexport VLLM_USE_V1\n{SERVE}\n", ""),
        (f"export VLLM_USE_V1=0\n{SERVE}\n", ""),
        (f"set -a\nVLLM_USE_V1=0\n{SERVE}\n", ""),
        (f"VLLM_USE_V1=0 {SERVE}\n", ""),
        (f"HF_TOKEN=x\nhf auth login --token $HF_TOKEN\n{SERVE}\n", ""),
        (f"MY_DIR=/srv\n{SERVE}\n", ""),
        ("HF_HOME=/srv\ndocker run vllm/vllm-openai org/model\n", ""),
        (f"NAME = x\n{SERVE} --served-model-name $NAME\n", "the server's command is put together without it"),
    ],
)
def test_a_variable_that_the_server_does_not_get_is_told(text: str, fault: str) -> None:
    (launch,) = read_launches("job.sh", f"#!/bin/bash\n{text}")
    assert (fault in launch.entry_fault.why) if launch.entry_fault else not fault


@pytest.mark.parametrize("begin", ["##!/bin/bash\n", "\n#!/bin/bash\n"])
def test_a_job_whose_first_line_names_no_interpreter_is_refused(begin: str) -> None:
    (launch,) = read_launches("job.sbatch", f"{begin}#SBATCH --gres=gpu:1\n{SERVE}\n")
    assert launch.entry_fault is not None
    assert "sbatch takes the file for no script" in launch.entry_fault.why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('RUN=(docker run --entrypoint vllm "$IMAGE" serve org/m)\nID=$("${RUN[@]}")\n', "serve org/m"),
        (
            "more() {\n  A+=(--dtype half)\n}\nA=(serve org/m)\nA+=(--seed 1)\nmore\nvllm ${A[@]}\n",
            "vllm serve org/m --seed 1",
        ),
        ("docker create --name a vllm/vllm-openai:v0.21.0 --model org/m\n", "--model org/m"),
        (
            'PY="$(command -v python)"\nenv A=$b $PY -m vllm.entrypoints.openai.api_server --model org/m\n',
            "org/m",
        ),
        ('env A=$b "$PY" -m vllm.entrypoints.openai.api_server --model org/m\n', "--model org/m"),
        ('env A=1 $MORE "$@" nohup vllm serve org/m\n', "nohup vllm serve org/m"),
        (
            'BIN="${BIN:-$HOME/bin/vllm}"\nA=(serve org/m --seed 1)\n"$BIN" "${A[@]}"\n',
            "vllm serve org/m --seed 1",
        ),
        ("vllm serve org/m ${KEY:+--api-key ${KEY}} --seed 1\n", "vllm serve org/m --seed 1"),
        ('vllm serve org/m ${MORE:-} --seed "${SEED:-1}"\n', "vllm serve org/m --seed 1"),
    ],
)
def test_a_command_of_the_script_is_read_in_each_form(text: str, expected: str) -> None:
    (launch,) = read_launches("run.sh", f"#!/bin/bash\n{text}")
    assert " ".join(word.text for word in launch.words).endswith(expected)


@pytest.mark.parametrize("option", ["--entrypoint python3", "--entrypoint=/usr/bin/python3"])
def test_another_program_in_the_image_is_no_server(option: str) -> None:
    command = f"docker run --rm {option} vllm/vllm-openai:v0.21.0 -c 'import torch'\n"
    assert read_launches("run.sh", command) == []


def test_a_program_that_names_vllm_as_its_engine_is_another_one() -> None:
    assert read_launches("run.sh", "ramalama --runtime vllm serve org/m --port 1\n") == []


def test_a_benchmark_of_the_command_line_program_starts_no_server() -> None:
    assert (
        read_launches("run.sh", "python -m vllm.entrypoints.cli.main bench throughput --model org/m\n") == []
    )


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ('[ -n "$X" ] && A+=(--dtype half)', False),
        ("[[ -z $X ]] || A+=(--dtype half)", False),
        ("cd /srv && A+=(--dtype half)", True),
        ("A+=(--dtype half)", True),
    ],
)
def test_what_a_test_decides_is_not_known(line: str, added: bool) -> None:
    (launch,) = read_launches("run.sh", f'A=(--seed 1)\n{line}\nvllm serve org/m "${{A[@]}}"\n')

    assert [word.text for word in launch.words[5:]] == (["--dtype", "half"] if added else [])
    assert bool(launch.unread) != added


def test_a_variable_that_only_mentions_vllm_is_no_command() -> None:
    script = "UP=$(docker ps | grep -c vllm_1)\nUP=$((UP + 1))\n$UP && echo\n"
    assert read_launches("run.sh", script) == []
