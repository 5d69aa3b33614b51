"""A form is compiled while others step, and stays with the request that asked for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from tests.letters import letters_compiler

from headrace.core.structured import StructuredOutputsParams
from headrace.models.grammar import GrammarCompiler
from headrace.worker.forms import FormsUnderWay

FORM = StructuredOutputsParams(regex="a+")


def test_a_form_is_ready_once_its_compilation_has_ended_well_or_badly() -> None:
    compiled: dict[str, Future[Any]] = {}

    def compile_grammar(wanted: StructuredOutputsParams) -> Future[Any]:
        return compiled.setdefault(str(wanted.regex), Future())

    forms = FormsUnderWay(compile_grammar)
    bad = StructuredOutputsParams(regex="(")
    assert not forms.ready("one", FORM)
    assert not forms.ready("two", bad)
    compiled["a+"].set_result("matcher")
    forms.wait(60.0)
    assert forms.ready("one", FORM)
    assert not forms.ready("two", bad)
    compiled["("].set_exception(ValueError())
    forms.wait(60.0)
    assert forms.ready("two", bad)


def test_what_a_request_holds_is_compiled_once_however_many_others_come_between() -> None:
    compiler = letters_compiler(150)
    forms = FormsUnderWay(compiler.compile)
    forms.ready("one", FORM)
    while not forms.ready("one", FORM):
        forms.wait(60.0)
    matcher = compiler.compile(FORM).result()
    churn(compiler)
    assert compiler.compile(FORM).result() is matcher
    forms.release("one")
    forms.release("one")
    churn(compiler)
    assert compiler.compile(FORM).result() is not matcher


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    compiler = letters_compiler(150)
    forms = FormsUnderWay(compiler.compile)
    go_on = threading.Event()
    compiler._submit(go_on.wait)
    for name in ("one", "two"):
        forms.ready(name, FORM)
    forms.ready("three", StructuredOutputsParams(regex="b"))
    first = compiler.compile(FORM)
    forms.release("one")
    forms.release("three")
    assert not first.cancelled(), "two waits for it still"
    forms.release("two")
    assert first.cancelled()
    again = compiler.compile(FORM)
    assert again is not first
    go_on.set()
    assert again.result().try_consume_tokens([65]) == 1


def churn(compiler: GrammarCompiler) -> None:
    """So many other forms that none is kept which nobody holds."""
    for length in range(2, 80):
        compiler.compile(StructuredOutputsParams(regex=f"b{{{length}}}")).result()
