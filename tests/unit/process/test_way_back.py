"""The steps back to a server without flettner."""

from flettner.actuators.host.origin import Origin
from flettner.actuators.host.ownership_env import MarkedProcess
from flettner.actuators.host.procfs import Process
from flettner.actuators.process.way_back import describe_way_back
from flettner.primitives.address import Address


def test_the_command_in_force_comes_with_the_variables_that_the_server_reads() -> None:
    argv = ("vllm", "serve", "m", "--max-num-seqs", "16", "--port", "8101")
    env = {"VLLM_USE_V1": "1", "CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "hf_secretsecret", "HOME": "/root"}
    process = Process(pid=7, started=1, parent=1, group=7, session=7, zombie=False)
    running = {"chat-r1": MarkedProcess(name="chat-r1", process=process, argv=argv, epoch=1)}

    start, *_ = describe_way_back(running, Origin(argv=argv, env=env, cwd="/srv"), Address("127.0.0.1", 8000))

    assert "CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN=*** VLLM_USE_V1=1 vllm serve m" in start
    assert "--port 8000" in start
    assert "HOME" not in start
