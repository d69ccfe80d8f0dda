"""Files of Python and notebooks, imported only for these: other files need not wait for `ast`."""

from flettner.vllm_facts.launch_files.launch import Launch
from flettner.vllm_facts.launch_files.notebook import read_notebook
from flettner.vllm_facts.launch_files.python_source import read_python
from flettner.vllm_facts.launch_files.python_values import parse_source


def read_code(name: str, text: str) -> list[Launch]:
    """Raises FlagError."""
    if name.endswith(".ipynb"):
        return read_notebook(text)
    return read_python(parse_source(text))
