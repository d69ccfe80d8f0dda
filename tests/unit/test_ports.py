"""Test processes that run at the same time get different ports."""

import subprocess
import sys

from tests.support.ports import free_port, port_block

SAY = "from tests.support.ports import *; print(free_port(), *port_block(), flush=True); input()"


def test_processes_get_no_port_of_each_other() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    printed = [process.stdout.readline().split() for process in processes if process.stdout]
    own = [free_port(), *port_block()]  # while the others run: their blocks are free once they end
    for process in processes:
        process.communicate("\n")

    ports = [int(port) for line in printed for port in line] + own
    assert len(ports) == 5 * 101
    assert len(set(ports)) == len(ports)


def test_a_port_is_not_chosen_again_soon() -> None:
    assert len({free_port() for _ in range(50)}) == 50
