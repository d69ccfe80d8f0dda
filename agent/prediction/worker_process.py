"""The program of the worker process: calls functions by request until its standard input ends."""

import os
import pickle
import sys
import traceback
from typing import BinaryIO

from flettner.agent.domain.errors import WorkerError
from flettner.agent.prediction.worker import HEADER_BYTES
from flettner.performance_model.errors import PredictionInputError

NICENESS = 10


def serve(requests: BinaryIO, results: BinaryIO) -> None:
    while len(header := requests.read(HEADER_BYTES)) == HEADER_BYTES:
        result = _call(requests.read(int.from_bytes(header)))
        results.write(len(result).to_bytes(HEADER_BYTES) + result)
        results.flush()


def _call(request: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(request)  # noqa: S301 - of the daemon, our parent
        return pickle.dumps((True, function(*args, **kwargs)))
    except PredictionInputError as error:
        return pickle.dumps((False, error))
    except Exception:  # noqa: BLE001 - a defect ends the call, not the worker
        return pickle.dumps((False, WorkerError(traceback.format_exc(limit=-3))))


if __name__ == "__main__":
    os.nice(NICENESS)
    with os.fdopen(os.dup(1), "wb") as results:
        os.dup2(2, 1)  # what anything prints goes to the log
        serve(sys.stdin.buffer, results)
