import random

import pytest

from serving.generation.stop_strings import StopMatcher, StopStrings


def test_a_stop_string_across_chunks_is_found_and_nothing_of_it_leaks() -> None:
    matcher = StopMatcher(StopStrings(["STOP"]))
    assert [matcher.add(chunk) for chunk in ["ab", "cS", "T", "O", "Pxyz", "more"]] == ["ab", "c", "", "", "", ""]
    assert matcher.stopped is not None
    assert (matcher.stopped.stop, matcher.stopped.start) == ("STOP", 3)


def test_held_text_comes_out_as_soon_as_it_cannot_be_a_stop() -> None:
    matcher = StopMatcher(StopStrings(["STOP"]))
    assert matcher.add("aSTO") == "a"
    assert matcher.add("S") == "STO"
    assert matcher.add("x") == "Sx"
    assert matcher.finish() == ""


def test_text_held_at_the_end_is_given_by_finish() -> None:
    matcher = StopMatcher(StopStrings(["\n\n"]))
    assert matcher.add("line\n") == "line"
    assert matcher.finish() == "\n"


def test_with_include_stop_nothing_is_held_and_the_stop_is_shown() -> None:
    matcher = StopMatcher(StopStrings(["STOP"]), include_stop=True)
    assert [matcher.add(chunk) for chunk in ["aST", "OPx", "y"]] == ["aST", "OP", ""]
    assert matcher.stopped is not None
    assert matcher.stopped.start == 1


def test_of_stops_ending_together_the_longest_wins_and_the_first_complete_beats_a_longer_one() -> None:
    both = StopMatcher(StopStrings(["b", "ab"]))
    assert both.add("xab") == "x"
    assert both.stopped is not None
    assert both.stopped.stop == "ab"
    nested = StopMatcher(StopStrings(["bcd", "abcde"]))
    assert nested.add("xabcde") == "xa"
    assert nested.stopped is not None
    assert nested.stopped.stop == "bcd"


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopMatcher(StopStrings([]))
    assert matcher.add("anything") == "anything"
    assert matcher.stopped is None


def test_a_stop_string_that_may_not_stop_is_text_but_may_begin_one_that_does() -> None:
    matcher = StopMatcher(StopStrings(["aa"]))
    assert matcher.add("xaa", may_stop=False) + matcher.add("b") == "xaab"
    assert matcher.stopped is None
    assert matcher.add("a", may_stop=False) == ""
    assert matcher.add("a") == ""
    assert matcher.stopped is not None
    assert matcher.stopped.start == 4


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings([""])


@pytest.mark.parametrize("include", [False, True])
def test_every_chunking_gives_what_the_naive_search_gives_and_as_early(include: bool) -> None:
    draw = random.Random(11)
    for _ in range(3000):
        stops = ["".join(draw.choices("abc", k=draw.randrange(1, 5))) for _ in range(draw.randrange(0, 4))]
        text = "".join(draw.choices("abcd", k=draw.randrange(0, 20)))
        matcher = StopMatcher(StopStrings(stops), include_stop=include)
        seen, shown = "", ""
        while seen != text and matcher.stopped is None:
            chunk = text[len(seen) :][: draw.randrange(1, 5)]
            seen += chunk
            shown += matcher.add(chunk)
            expected, stop = _naive(seen, stops, include)
            assert shown == expected
            assert (matcher.stopped.stop if matcher.stopped else None) == stop
        if matcher.stopped is None:
            assert shown + matcher.finish() == text


def _naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """What may be shown of `text`, and the stop string in it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    if include:
        return text, None
    for start in range(len(text) + 1):
        if not text[start:] or any(stop.startswith(text[start:]) for stop in stops):
            return text[:start], None
    return text, None
