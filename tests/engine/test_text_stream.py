"""TextStream: no part of a stop string leaks, nothing before it is lost, and how the engine cuts its deltas changes
nothing. The detokenizer here gives each token id the text of a table, so a naive search is the reference."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import MAX_STOP_CHARACTERS, FinishReason, OutputDelta, SamplingParams, TokenLogprobs
from headrace.engine.text_stream import TextStream

PIECES = ("a", "b", "ab", "ba", "abc", "c", "", "cab")
END = 99


class TableDetokenizer:
    """Text may lag: a token's text comes out only with the next one if `lag`."""

    def __init__(self, lag: bool = False) -> None:
        self.lag, self.waiting = lag, ""

    def push(self, ids: list[int]) -> str:
        text = "".join(PIECES[i] for i in ids)
        if not self.lag:
            return text
        out, self.waiting = self.waiting + "".join(PIECES[i] for i in ids[:-1]), PIECES[ids[-1]] if ids else ""
        return out

    def flush(self) -> str:
        out, self.waiting = self.waiting, ""
        return out


def run(ids, cuts, params, *, finish=FinishReason.LENGTH, stop_token=None, lag=False, eos_ids=()):
    """Push ids in deltas that end at cuts; returns the stream's TextDeltas up to its stop."""
    stream = TextStream(TableDetokenizer(lag), params, eos_ids=eos_ids)
    bounds = [0, *sorted(c for c in cuts if 0 < c < len(ids)), len(ids)]
    out = []
    for begin, end in itertools.pairwise(bounds):
        last = end == len(ids)
        piece = ids[begin:end]
        out.append(
            stream.push(
                OutputDelta(
                    "r",
                    piece,
                    [TokenLogprobs(t, -1.0, 1, []) for t in piece],
                    finish_reason=finish if last else None,
                    stop_token=stop_token if last else None,
                )
            )
        )
        if stream.stopped:
            break
    return out


def first_stop(ids, stops, min_tokens):
    """Naive: the text and tokens at the first character at which some stop string is complete."""
    text = ""
    for n, token in enumerate(ids, 1):
        for char in PIECES[token]:
            text += char
            ending = [s for s in stops if text.endswith(s)]
            if ending and n >= min_tokens:
                longest = max(ending, key=len)
                return text, longest, n
    return text, None, len(ids)


token_lists = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=20)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


@given(token_lists, st.lists(st.integers(1, 19)), stop_lists, st.booleans(), st.integers(0, 8))
def test_text_is_cut_where_a_naive_search_cuts(ids, cuts, stops, include, min_tokens):
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens, max_tokens=None)
    deltas = run(ids, cuts, params)
    text, stop, used = first_stop(ids, stops, min_tokens)
    expected = text if stop is None or include else text[: len(text) - len(stop)]
    assert "".join(d.text for d in deltas) == expected
    assert [t for d in deltas for t in d.token_ids] == ids[:used]
    assert sum(len(d.logprobs) for d in deltas) == used
    assert deltas[-1].finish_reason == (FinishReason.LENGTH if stop is None else FinishReason.STOP)
    assert deltas[-1].stop_reason == stop
    assert all(d.finish_reason is None for d in deltas[:-1])


@given(token_lists, stop_lists)
def test_every_prefix_shown_is_a_prefix_of_the_answer(ids, stops):
    """Streamed text is never taken back: this is what "no part of a stop string leaks" means."""
    deltas = run(ids, range(1, 20), SamplingParams(stop=stops, max_tokens=None))
    whole = "".join(d.text for d in deltas)
    text, stop, _ = first_stop(ids, stops, 0)
    assert whole == (text if stop is None else text[: len(text) - len(stop)])


@given(token_lists, st.lists(st.integers(1, 19)), stop_lists)
def test_a_lagging_detokenizer_gives_the_same_text(ids, cuts, stops):
    params = SamplingParams(stop=stops, max_tokens=None)
    plain, lagging = run(ids, cuts, params), run(ids, cuts, params, lag=True)
    assert "".join(d.text for d in plain) == "".join(d.text for d in lagging)
    assert plain[-1].stop_reason == lagging[-1].stop_reason


def test_text_that_only_looked_like_a_stop_is_given_at_the_end():
    deltas = run([0, 1], [1], SamplingParams(stop="abc"))
    assert [d.text for d in deltas] == ["", "ab"]


def test_stop_inside_one_token_is_cut_there():
    (delta,) = run([4], [], SamplingParams(stop="b"))
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("a", [4], "b")


def test_eos_is_counted_but_not_shown():
    params = SamplingParams()
    (delta,) = run([0, 5], [], params, finish=FinishReason.STOP, stop_token=5, eos_ids=(5,))
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("a", [0, 5], None)


def test_a_stop_token_is_named_and_shown_only_if_asked():
    hidden = run([0, 5], [], SamplingParams(), finish=FinishReason.STOP, stop_token=5)
    shown = run([0, 5], [], SamplingParams(include_stop_str_in_output=True), finish=FinishReason.STOP, stop_token=5)
    assert (hidden[0].text, hidden[0].stop_reason) == ("a", 5)
    assert shown[0].text == "ac"


def test_nothing_comes_after_a_stop():
    stream = TextStream(TableDetokenizer(), SamplingParams(stop="a"))
    stream.push(OutputDelta("r", [0]))
    assert stream.stopped
    late = stream.push(OutputDelta("r", [1], finish_reason=FinishReason.ABORT))
    assert (late.text, late.token_ids, late.finish_reason) == ("", [], None)


def test_a_long_hostile_stop_string_costs_linear_time():
    stream = TextStream(TableDetokenizer(), SamplingParams(stop="a" * (MAX_STOP_CHARACTERS - 1) + "b"))
    shown = [stream.push(OutputDelta("r", [0] * 1000)).text for _ in range(3)]
    assert shown == ["", "", ""]
