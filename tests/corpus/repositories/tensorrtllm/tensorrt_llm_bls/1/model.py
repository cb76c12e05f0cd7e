import triton_python_backend_utils as pb_utils

STEPS = ("preprocessing", "postprocessing")


class TritonPythonModel:
    def execute(self, requests):
        raise pb_utils.TritonModelException("stands for code that calls the steps itself")
