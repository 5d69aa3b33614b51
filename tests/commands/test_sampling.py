"""Sampling flags carry SamplingParams' own names, and only what was given."""

from __future__ import annotations

import click
import msgspec
from click.testing import CliRunner

from headrace.commands.sampling import takes_sampling
from headrace.core.request import SamplingParams


def parse(arguments: list[str]) -> dict:
    seen: list[dict] = []

    @click.command()
    @takes_sampling
    def command(sampling) -> None:
        seen.append(sampling)

    CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    return seen[0]


def test_nothing_given_is_nothing_passed_on():
    assert parse([]) == {}


def test_given_flags_are_sampling_parameters():
    arguments = ["--temperature", "0", "--max-tokens", "5", "--stop", "a", "--stop", "b", "--ignore-eos"]
    sampling = parse(arguments)
    assert sampling == {"temperature": 0.0, "max_tokens": 5, "stop": ["a", "b"], "ignore_eos": True}
    assert SamplingParams(**sampling).stop == ("a", "b")


def test_every_flag_is_a_field():
    @click.command()
    @takes_sampling
    def command(sampling) -> None:
        pass

    assert {p.name for p in command.params} <= {f.name for f in msgspec.structs.fields(SamplingParams)}
