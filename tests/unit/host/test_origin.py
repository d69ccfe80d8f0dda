"""The command line of a new server."""

from flettner.actuators.host.origin import Origin
from flettner.redaction import MASK

ORIGIN = Origin(
    argv=("vllm", "serve", "m", "--otlp-traces-endpoint", "http://u:pw@h", "--max-num-seqs", "2"),
    env={},
    cwd="/",
)


def test_a_masked_value_keeps_the_value_of_the_command() -> None:
    for hidden in (MASK, f"http://u:{MASK}@h"):
        words = ORIGIN.command({"otlp_traces_endpoint": hidden, "max_num_seqs": 4}, 8101)

        assert words == [*ORIGIN.argv[:-1], "4", "--port", "8101"]


def test_a_masked_value_missing_from_the_command_is_omitted() -> None:
    words = ORIGIN.command({"kv_transfer_config": MASK, "max_num_seqs": 2}, 8101)

    assert words == ["vllm", "serve", "m", "--max-num-seqs", "2", "--port", "8101"]
