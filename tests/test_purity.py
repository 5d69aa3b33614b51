"""Policy is pure: what it imports, and what is loaded when a process uses the engine without a device."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
POLICY = sorted((PACKAGE / "policy").glob("*.py"))
CORE = sorted((PACKAGE / "core").glob("*.py"))
HEAVY = (
    "torch",
    "zmq",
    "asyncio",
    "starlette",
    "uvicorn",
    "tokenizers",
    "socket",
    "headrace._kernels",
    "headrace.worker",
)
IMPURE = {"asyncio", "concurrent", "datetime", "multiprocessing", "os", "pathlib", "random", "secrets", "socket"}
IMPURE |= {"subprocess", "sys", "threading", "time", "uuid"}


def test_core_policy_and_engine_load_nothing_heavy():
    modules = [f"headrace.{p.parent.name}.{p.stem}" for p in (*CORE, *POLICY) if p.stem != "__init__"]
    modules += ["headrace.engine.engine", "headrace.engine.null_executor"]
    code = f"import {', '.join(modules)}, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", POLICY, ids=lambda p: p.stem)
def test_policy_has_no_clock_no_chance_and_no_io(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported, called = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.Attribute):
            assert not (node.attr == "random" and isinstance(node.value, ast.Name) and node.value.id == "np")
    assert not {name.split(".")[0] for name in imported} & IMPURE
    assert not called & {"open", "print", "input", "exec", "eval"}
    assert all(name.startswith(("headrace.core", "headrace.policy")) for name in imported if "headrace" in name)
