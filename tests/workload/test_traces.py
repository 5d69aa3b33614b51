"""Traces: every format is known by what it holds, keeps times, lengths and shared beginnings, and is refused by file,
line and column where it is torn or hostile."""

from __future__ import annotations

import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.workload.demand import Demand
from headrace.workload.traces import read_trace, write_trace

MOONCAKE = '{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [4, 5]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SESSIONS = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def read(tmp_path):
    """The requests of a file with this content, whose name says nothing."""

    def write_and_read(content: str | bytes, limit: int | None = None) -> list[Demand]:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_trace(path, limit)

    return write_and_read


def lengths(demands):
    return [(one.at, one.input_len, one.output_len) for one in demands]


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())])
def test_mooncake_names_the_blocks_of_prompts(read, pack):
    rows = [
        {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [4, 5]},
        {"timestamp": 0, "input_length": 10, "output_length": 6, "hash_ids": [4]},
        {"timestamp": 3500, "input_length": 20, "output_length": 0},
    ]
    demands = read(pack("\n".join(map(json.dumps, rows))))
    assert [one.at for one in demands] == [0.0, 3.0, 3.5]
    assert [one.prompt for one in demands[:2]] == [((4, 10),), ((4, 512), (5, 188))]
    assert (demands[2].input_len, demands[2].output_len) == (20, 1)
    assert len(read(pack("\n".join(map(json.dumps, rows))), 1)) == 1


def test_azure_has_dates(read):
    first, second = read(AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,9")
    assert (first.input_len, first.output_len, second.input_len) == (374, 44, 396)
    assert first.at == 0 and second.at == pytest.approx(4.314579)
    assert first.prompt[0][0] != second.prompt[0][0]


def test_burstgpt_has_seconds_and_failures_that_are_left_out(read):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n50,GPT-4,0,0,0,API log\n"
    assert lengths(read(BURSTGPT + rows + "118.5,GPT-4,417,276,693,API log\n")) == [(0.0, 472, 18), (113.5, 417, 276)]
    with pytest.raises(ConfigError, match="no requests"):
        read(BURSTGPT + "45,ChatGPT,1087,0,1087,API log\n")


def test_a_sessions_prompt_begins_with_the_one_before_and_its_answer(read):
    rows = "0,a,1,GPT-4,10,5,15,x\n1,b,1,GPT-4,30,5,35,x\n9,a,1,GPT-4,25,7,32,x\n20,a,1,GPT-4,20,7,27,x\n"
    rows += "21,,1,GPT-4,9,1,10,x\n"
    first, other, second, shorter, api = read(SESSIONS + rows)
    assert second.prompt[0] == first.prompt[0] and second.prompt[1][1] == 5 and second.input_len == 25
    # What does not hold what was said before is another text.
    names = {name for name, _ in first.prompt + other.prompt + second.prompt}
    assert shorter.input_len == 20 and not names & {name for name, _ in shorter.prompt + api.prompt}


@pytest.mark.parametrize(
    "header",
    ["at,input_len,output_len,tenant,priority", "timestamp,prompt_tokens,completion_tokens,tenant,priority"],
)
def test_times_and_lengths(read, header):
    first, second = read(f"\ufeff{header}\r\n4.5,10,2,acme,high\r\n\r\n6,1,1,,\r\n")
    assert lengths([first, second]) == [(0.0, 10, 2), (1.5, 1, 1)]
    assert (first.tenant, first.priority, second.tenant, second.priority) == ("acme", -1, "", 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**6), st.text("ab,\"' x", max_size=9)),
        min_size=1,
    )
)
def test_what_is_written_is_read(tmp_path_factory, rows):
    rows = sorted(rows, key=lambda row: row[0])
    begin = rows[0][0]
    written = [
        Demand((at - begin) / 1e3, ((-2 - i, length),), output, tenant=tenant.strip())
        for i, (at, length, output, tenant) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("traces") / "t.csv"
    with path.open("w") as file:
        write_trace(written, file)
    found = read_trace(path)
    assert [(o.input_len, o.output_len, o.tenant) for o in found] == [
        (o.input_len, o.output_len, o.tenant) for o in written
    ]
    assert [o.at for o in found] == pytest.approx([o.at for o in written])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no requests"),
        ("\n\n", "no requests"),
        (AZURE, "no requests"),
        ("{", "line 1 is no JSON"),
        ("[]\n", "must be a JSON object"),
        (MOONCAKE + MOONCAKE[:40], "line 2 is no JSON"),
        (MOONCAKE + "7\n", "line 2 is 7"),
        ("[" * 100_000, "line 1 is no JSON"),
        ('{"timestamp": 1}\n', "without input_length, output_length"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 5}\n', "line 2: 'output_length' is missing; .* 0 to 16777216"),
        (MOONCAKE.replace("3000", "NaN"), "line 1: 'timestamp' is nan"),
        (MOONCAKE.replace("3000", "-1"), "'timestamp' is -1"),
        (MOONCAKE.replace("3000", "true"), "'timestamp' is True"),
        (MOONCAKE.replace("3000", "1" + "0" * 400), "'timestamp' is"),
        (MOONCAKE.replace("3000", "1" + "0" * 5000), "line 1 is no JSON"),
        (MOONCAKE.replace("700", "0"), "'input_length' is 0"),
        (MOONCAKE.replace("700", "1e300"), "'input_length' is 1e\\+300"),
        (MOONCAKE.replace("700", "600.5"), "'input_length' is 600.5"),
        (MOONCAKE.replace("[4, 5]", "[4]"), "line 1: 1 hash_ids for 700 tokens"),
        (MOONCAKE.replace("[4, 5]", '[4, "x"]'), "'hash_ids' is"),
        (MOONCAKE.replace("[4, 5]", "[4, -1]"), "'hash_ids' is"),
        ("a,b,c\n1,2,3\n", "no format's.*Mooncake.*Azure.*BurstGPT"),
        (BURSTGPT.replace("Response", "Answer") + "5,a,4,1,5,x\n", "without Response tokens"),
        (AZURE + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:1", "line 3 has 1 columns; it must have 3"),
        (AZURE + "yesterday,374,44\n", "line 2: 'TIMESTAMP' is 'yesterday'; .* a date"),
        (AZURE + "2023-11-16 18:15:46,374,-4\n", "line 2: 'GeneratedTokens' is '-4'"),
        (AZURE + "2023-11-16 18:15:46,nan,4\n", "line 2: 'ContextTokens' is 'nan'"),
        (AZURE + '2023-11-16 18:15:46,"374,4\n', "line 2"),
        ("at,input_len,output_len\n1700000000000,5,5\n", "'at' is '1700000000000'"),
        ("at,input_len,output_len,priority\n1,5,5,urgent\n", "'priority' is 'urgent'; .*high, normal, batch"),
        ("at,input_len,output_len,tenant\n1,5,5," + "x" * 300, "at most 256 characters"),
        (b"\x00\xff\xfe\x80binary", "line 1: no text"),
        (gzip.compress(MOONCAKE.encode() * 100)[:-20], "cannot be read from line"),
        (b"\x1f\x8b\x08rubbish", "cannot be read from line 1"),
        (b"x" * (2**22 + 1), "longer than"),
    ],
)
def test_what_is_no_trace_is_refused(read, content, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read(content)
    assert "trace" in str(caught.value) and len(str(caught.value)) < 1000


@given(st.binary(max_size=300) | st.text(alphabet='{}[]",:0123456789.eE-NaN\n timestaplouh_g', max_size=300))
def test_no_content_raises_anything_else(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("traces") / "t"
    for start in (b"", MOONCAKE.encode(), AZURE.encode(), BURSTGPT.encode()):
        path.write_bytes(start + (content if isinstance(content, bytes) else content.encode()))
        try:
            demands = read_trace(path)
        except ConfigError:
            continue
        assert demands and all(one.output_len >= 1 and one.input_len >= 1 and one.at >= 0 for one in demands)


@pytest.mark.parametrize(
    ("name", "count"),
    [("azure_2023_code.csv", 8819), ("azure_2023_conv.csv", 19366), ("mooncake_synthetic.jsonl", 3993)],
)
def test_recorded_traces_are_read(data_folder, name, count):
    assert len(read_trace(data_folder / "traces" / f"{name}.gz")) == count


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path)


def test_a_trace_is_written_without_texts():
    file = io.StringIO()
    write_trace([Demand(0.25, ((7, 512), (8, 3)), 4, tenant="a")], file)
    assert file.getvalue() == "at,input_len,output_len,tenant,priority\n0.250000,515,4,a,0\n"
