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


@pytest.mark.parametrize("begin", ["##!/bin/bash\n", "\n#!/bin/bash\n"])
def test_a_job_whose_first_line_names_no_interpreter_is_refused(begin: str) -> None:
    (launch,) = read_launches("job.sbatch", f"{begin}#SBATCH --gres=gpu:1\n{SERVE}\n")
    assert launch.entry_fault is not None
    assert "sbatch takes the file for no script" in launch.entry_fault.why
