"""The picture is well-formed, and its curves are those of the run."""

from xml.etree import ElementTree

import pytest

from serving.bench.load import Run
from serving.bench.picture import distribution, nice_ceiling, picture, throughput
from serving.bench.target import Measured

SVG = "{http://www.w3.org/2000/svg}"
RUN = Run([Measured(sent=10.0, chunks=[10.1, 10.2, 10.6, 10.9], ended=11.0, tokens=4)], 1.0, 0.1)


def test_a_distribution_rises_to_one() -> None:
    assert distribution([3.0, 1.0, 2.0, 2.0]) == [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]


def test_a_long_distribution_is_thinned_and_keeps_both_ends() -> None:
    points = distribution([float(v) for v in range(10000)])
    assert len(points) < 500
    assert (points[0][0], points[-1]) == (0.0, (9999.0, 1.0))


def test_throughput_adds_up_to_all_pieces() -> None:
    assert throughput(RUN) == [(0.0, 8.0), (0.25, 0.0), (0.5, 4.0), (0.75, 4.0), (1.0, 4.0)]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 4), (97, 100), (0.03, 0.04), (4200, 5000)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_ceiling(value) == pytest.approx(top)


def test_the_picture_is_well_formed_with_three_panels_and_an_escaped_title() -> None:
    root = ElementTree.fromstring(picture(RUN, "<m> & 3"))
    assert len(root.findall(f"{SVG}g")) == 3
    title = root.find(f"{SVG}text")
    assert title is not None
    assert title.text == "<m> & 3"


def test_an_empty_run_says_that_nothing_was_measured() -> None:
    drawn = picture(Run([], 0.0, 0.0), "none")
    assert drawn.count("nothing measured") == 3
    ElementTree.fromstring(drawn)
