"""The HTML report and the sweep: one file that needs nothing else, safe whatever names hold, equal for equal runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from headrace import cli
from headrace.core.errors import ConfigError
from headrace.simulate.asking import Asked
from headrace.simulate.result import Slo
from headrace.simulate.simulator import simulate
from headrace.simulate.sweep import read_multipliers, sweep
from headrace.simulate.watch import Watch

pytest.importorskip("matplotlib")

from headrace.simulate.report import render

FLEET = Asked("llama-3-8b", "h100").fleet()
SLO = Slo(ttft_ms=200, tpot_ms=30)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "use"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "path", "use"):
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report():
    load, watch = Asked("llama-3-8b", "h100", workload="rag", rate=3.0, requests=40), Watch()
    found = simulate(load.times(1)[0], FLEET, slo=SLO, watch=watch).to_dict()
    points = list(sweep(load, [1, 4], lambda demands, faster: simulate(demands, FLEET, slo=SLO)))
    return {**found, "wall_s": 0.0, "sweep": points}, watch


def test_one_file_that_needs_nothing_else(report):
    html = render({"model": "llama-3-8b", "gpu": None}, *report, "requests/s")
    tags = Tags()
    tags.feed(html)
    assert not tags.open and sum(tag == "svg" for tag, _ in tags.seen) == 4
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.seen}
    # What is fetched would be named by src, url() or href; those that are there point into the file itself.
    assert "src=" not in html and not re.search(r"href=\"[^#]", html) and not re.search(r"url\([^#]", html)
    for title in ("Latencies", "Load over time", "Where requests", "Goodput against load", "prefix_hit_rate"):
        assert title in html
    assert render({"model": "llama-3-8b"}, *report, "requests/s") == html


def test_names_are_escaped(report):
    html = render({"trace": "<script>alert(1)</script>", "model": "a&b\"'"}, *report, "requests/s")
    assert "<script" not in html and "&lt;script&gt;" in html and "a&amp;b" in html


def test_a_sweep_offers_more_and_more():
    def run(demands, faster):
        return simulate(demands, FLEET, slo=SLO, rate_multiplier=faster)

    rate = list(sweep(Asked("llama-3-8b", "h100", workload="code", rate=2.0, requests=60), [0.5, 2], run))
    assert [point["offered"] for point in rate] == [1.0, 4.0]
    assert rate[0]["requests_per_s"] < rate[1]["requests_per_s"]
    users = Asked("llama-3-8b", "h100", workload="code", users=2, requests=30)
    assert users.unit == "users" and [p["offered"] for p in sweep(users, [1, 3], run)] == [2, 6]


@pytest.mark.parametrize(("given", "found"), [("1", [1]), ("4,1,0.5", [0.5, 1, 4])])
def test_multipliers(given, found):
    assert read_multipliers(given) == found


@pytest.mark.parametrize("given", ["", "x", "1,,2", "0", "-1", "nan", "inf"])
def test_what_is_no_multiplier_is_refused(given):
    with pytest.raises(ConfigError, match="sweep must be"):
        read_multipliers(given)


def test_the_command_writes_it(tmp_path, capsys):
    trace, html, file = tmp_path / "t.csv", tmp_path / "r.html", tmp_path / "r.json"
    trace.write_text("at,input_len,output_len\n" + "".join(f"{k},{100 + k},5\n" for k in range(20)))
    flags = ["--model", "llama-3-8b", "--gpu", "h100", "--trace", str(trace), "--sweep", "1,2"]
    assert cli.run(["simulate", *flags, "--html", str(html), "--json", str(file)]) == 0
    assert "x2: 2 requests/s offered" in capsys.readouterr().out
    assert [point["offered"] for point in json.loads(file.read_text())["sweep"]] == [1.0, 2.0]
    assert html.read_text().startswith("<!DOCTYPE html>") and "Goodput against load" in html.read_text()
    assert cli.run(["simulate", *flags[:-1], "0"]) == 2
    assert "sweep must be" in capsys.readouterr().err


def test_of_pools_it_shows_the_busiest_link_and_not_all(tmp_path):
    page = tmp_path / "report.html"
    pools = ["--prefill-replicas", "1", "--decode-replicas", "2", "--transfer-min-tokens", "100"]
    asked = ["--workload", "rag", "--rate", "6", "--requests", "40", "--model", "llama-3-8b", "--gpu", "h100", *pools]
    assert cli.run(["simulate", *asked, "--html", str(page)]) == 0
    assert "transfer.busiest_link" in page.read_text() and "transfer.links" not in page.read_text()
