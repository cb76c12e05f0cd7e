"""Run models in the ONNX Runtime of a folder, for the process that started this one.

Requests and answers are pickled, one after the other, over standard input and output.
"""

import os
import pickle
import resource
import sys

sys.path.insert(0, sys.argv[1])
# What libraries print must not be mixed with the answers.
_ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
_REQUESTS = sys.stdin.buffer

import onnxruntime  # noqa: E402

_SESSIONS = []


def _open(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    _SESSIONS.append(session)
    sides = [
        [(value.name, value.shape) for value in side]
        for side in (session.get_inputs(), session.get_outputs())
    ]
    return len(_SESSIONS) - 1, *sides


def _run(number, names, feed):
    return _SESSIONS[number].run(names, feed)


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_CALLS = {"open": _open, "run": _run, "peak": _peak}


def _main():
    while True:
        try:
            name, *arguments = pickle.load(_REQUESTS)
        except EOFError:
            return
        try:
            answer = (True, _CALLS[name](*arguments))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        pickle.dump(answer, _ANSWERS)
        _ANSWERS.flush()


if __name__ == "__main__":
    assert onnxruntime.__file__.startswith(sys.argv[1]), onnxruntime.__file__
    _main()
