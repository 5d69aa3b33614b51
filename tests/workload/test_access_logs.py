"""Access logs: our own server's lines and OpenAI's usage become requests; lines that tell of no answer are counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.workload.access_logs import read_log

OURS = {
    "time": "2026-11-30T04:00:10.000+00:00",
    "tenant": "acme",
    "path": "/v1/chat/completions",
    "status": 200,
    "ms": 4000.0,
    "prompt_tokens": 12,
    "completion_tokens": 7,
}


@pytest.fixture
def read(tmp_path):
    def write_and_read(*lines):
        path = tmp_path / "access.log"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return read_log(path)

    return write_and_read


def test_our_own_lines_say_when_a_request_ended(read):
    later = {**OURS, "time": "2026-11-30T04:00:11.500+00:00", "ms": 1000.0, "tenant": "", "prompt_tokens": 3}
    demands, left_out = read(later, "INFO:     " + json.dumps(OURS))
    assert [(one.at, one.input_len, one.output_len, one.tenant) for one in demands] == [
        (0, 12, 7, "acme"),
        (4.5, 3, 7, ""),
    ]
    assert not left_out and demands[0].prompt[0][0] != demands[1].prompt[0][0]


@pytest.mark.parametrize("begin", [1_700_000_000, 1_700_000_000_000])
def test_openai_answers_have_usage(read, begin):
    second = 1 if begin < 1e11 else 1000
    answers = [
        {
            "created": begin + second * k,
            "usage": {"prompt_tokens": 5 + k, "completion_tokens": 2, "total_tokens": 7 + k},
        }
        for k in range(3)
    ]
    demands, _ = read(*answers)
    assert [(one.at, one.input_len) for one in demands] == [(0.0, 5), (1.0, 6), (2.0, 7)]


def test_what_tells_of_no_answer_is_counted(read):
    no_tokens = {name: value for name, value in OURS.items() if name != "prompt_tokens"}
    demands, left_out = read(
        OURS,
        "Started server",
        json.dumps(OURS)[:50],
        "",
        no_tokens,
        {**OURS, "status": 500},
        {**OURS, "completion_tokens": 0},
    )
    assert len(demands) == 1
    assert left_out == {
        "are no JSON objects": 2,
        "have no token counts": 1,
        "are no success": 1,
        "generated nothing": 1,
    }


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "it is empty"),
        (["no json"], "1 lines are no JSON objects.*prompt_tokens"),
        ([{**OURS, "prompt_tokens": -1}], "line 1: 'prompt_tokens' is -1"),
        ([OURS, {**OURS, "time": "noon"}], "line 2: 'time' is 'noon'"),
        ([{**OURS, "ms": "nan"}], "'ms' is 'nan'"),
    ],
)
def test_what_is_no_log_is_refused(read, lines, says):
    with pytest.raises(ConfigError, match=says):
        read(*lines)


@given(
    st.dictionaries(
        st.sampled_from([*OURS, "usage", "created"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    )
)
def test_no_line_raises_anything_else(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("logs") / "log"
    path.write_text(json.dumps(OURS) + "\n" + json.dumps({**OURS, **values}))
    try:
        demands, _ = read_log(path)
    except ConfigError as error:
        assert "line 2" in str(error)
    else:
        assert demands[0].at == 0
