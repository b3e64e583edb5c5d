"""Execute a notebook cell by cell, print its output, and save it filled in after every cell.

Run as a file by the project's own interpreter (3.6 or newer), which needs nbclient and ipykernel, not Headway:
`python notebook_entry.py NOTEBOOK SAVE_AS [NAME=VALUE ...]`. Parameters follow the cell tagged `parameters`, as with
papermill, or the first cell that assigns one of them. Exits with 1 at the first cell that fails, 2 for a parameter that
the notebook does not have, 143 after SIGTERM.
"""

import ast
import os
import re
import signal
import sys
from importlib import import_module
from typing import Any

_LITERAL = r"-?\d+(\.\d+)?([eE][-+]?\d+)?|True|False|None"


def main() -> int:
    path, save_as, parameters = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        nbformat: Any = import_module("nbformat")
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        sys.stderr.write(
            f"{error.name} is not installed for {sys.executable}, which executes the notebook\n"
            f"    fix: {sys.executable} -m pip install nbclient ipykernel\n"
        )
        return 2
    notebook = nbformat.read(path, as_version=4)
    _add_parameters(notebook, parameters, nbformat.v4.new_code_cell)
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": os.getcwd()}})
    _print_output(client)
    signal.signal(signal.SIGTERM, _stop)
    os.makedirs(os.path.dirname(os.path.abspath(save_as)), exist_ok=True)
    code_cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    done = 0
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type != "code":
                    continue
                done += 1
                _print(f"cell {done}/{code_cells}\n")
                cell.setdefault("outputs", [])
                try:
                    client.execute_cell(cell, index)
                except CellExecutionError:
                    _print_error(cell, path, done)
                    return 1
                finally:
                    _save(nbformat, notebook, save_as)
    except _Stopped:
        _save(nbformat, notebook, save_as)
        return 143
    return 0


class _Stopped(Exception):
    """SIGTERM arrived."""


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _stop(number: int, frame: Any) -> None:
    raise _Stopped


def _add_parameters(notebook: Any, parameters: Any, new_cell: Any) -> None:
    if not parameters:
        return
    values = {}
    for word in parameters:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            _refuse(f"a notebook's parameter is NAME=VALUE, not {word!r}")
        values[name] = value if re.fullmatch(_LITERAL, value) else repr(value)
    assigned = [_assigned_names(cell) for cell in notebook.cells]
    everywhere = sorted(set().union(*assigned))
    for name in values:
        if name not in everywhere:
            _refuse(f"no cell of the notebook assigns {name}; its variables: {', '.join(everywhere) or 'none'}")
    tagged = [i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", [])]
    after = tagged or [i for i, names in enumerate(assigned) if names & set(values)]
    lines = [f"{name} = {literal}" for name, literal in values.items()]
    notebook.cells.insert(after[0] + 1, new_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]}))


def _refuse(text: str) -> None:
    sys.stderr.write(f"{text}\n    fix: args: [NAME=VALUE] in the job file\n")
    raise SystemExit(2)


def _assigned_names(cell: Any) -> Any:
    """Return the variables that a cell assigns at its top level; none if it is not plain Python."""
    if cell.cell_type != "code":
        return set()
    try:
        tree = ast.parse(
            "\n".join(line for line in cell.source.split("\n") if not line.lstrip().startswith(("%", "!")))
        )
    except SyntaxError:
        return set()
    names = set()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def _print_output(client: Any) -> None:
    """Print stream output when it arrives, instead of after the cell."""
    original = client.process_message

    def process_message(message: Any, current: Any, index: int) -> Any:
        content = message.get("content", {})
        if message.get("msg_type") == "stream":
            _print(content.get("text", ""))
        elif message.get("msg_type") == "execute_result":
            _print(content.get("data", {}).get("text/plain", "") + "\n")
        return original(message, current, index)

    client.process_message = process_message


def _print_error(cell: Any, path: str, number: int) -> None:
    """Print the kernel's traceback, and in Python's own form in which cell it was raised."""
    for output in cell.get("outputs", []):
        if output.get("output_type") == "error":
            error = f"{output.get('ename')}: {output.get('evalue')}"
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.get("traceback", [])))
            where = f'Traceback (most recent call last):\n  File "{path}", line {number}, in cell {number}\n'
            sys.stderr.write(f"{text}\n{where}{error}\n")
    sys.stderr.flush()


def _save(nbformat: Any, notebook: Any, save_as: str) -> None:
    partial = f"{save_as}.part"
    nbformat.write(notebook, partial)
    os.replace(partial, save_as)


if __name__ == "__main__":
    sys.exit(main())
