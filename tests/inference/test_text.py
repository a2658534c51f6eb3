"""Text comes out whole: characters complete, stop strings cut off, nothing taken back."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from zaya_jax.data.tokenizer import load_tokenizer
from zaya_jax.inference.text import TextStream

BYTES = load_tokenizer("bytes")


@hypothesis.given(text=st.text(max_size=30), stop=st.lists(st.text("ab€", min_size=1, max_size=4)))
@hypothesis.settings(deadline=None)
def test_settled_text_grows_and_ends_before_the_first_stop(text: str, stop: list[str]) -> None:
    stream = TextStream(BYTES, stop)
    settled = ""
    for token in BYTES.encode(text):
        stream.push(token)
        grown = stream.text[: stream.settled]
        assert grown.startswith(settled)
        settled = grown
    stream.finish()
    places = [place for place in map(text.find, stop) if place >= 0]
    assert stream.stopped == bool(places)
    if not places:
        assert stream.text == text
    else:
        assert settled == stream.text
        assert not any(own in stream.text for own in stop)
        assert text.startswith(stream.text)


def test_bytes_that_are_no_character_do_not_hold_up_the_rest() -> None:
    stream = TextStream(BYTES)
    broken = BYTES.encode("a")[0] - ord("a") + 0xFF
    for token in [*[broken] * 6, *BYTES.encode("ok")]:
        stream.push(token)
    assert stream.text.endswith("ok")
    assert "\N{REPLACEMENT CHARACTER}" in stream.text


def test_control_tokens_are_text() -> None:
    stream = TextStream(BYTES)
    for token in BYTES.encode("<think>x</think>", parse_special=True):
        stream.push(token)
    assert stream.text == "<think>x</think>"
