from types import ModuleType

import jax.numpy as jnp
import pytest

from models import qwen2, qwen3, qwen3_moe
from models.errors import CheckpointError
from models.fields import Fields
from models.windows import UNLIMITED, Windows, read_windows

NAMED = ["sliding_attention", "full_attention", "full_attention"]


def test_layers_slide_by_name_and_else_by_the_familys_rule() -> None:
    assert read_windows(Fields({"layer_types": NAMED}), 3, 5, lambda layer: True).sizes == (5, None, None)
    assert read_windows(Fields({}), 3, 5, lambda layer: layer > 0).sizes == (None, 5, 5)


@pytest.mark.parametrize(
    ("kinds", "size"), [(NAMED[:2], 5), ([*NAMED[:2], "chunked_attention"], 5), (NAMED, None), (NAMED * 2, 5)]
)
def test_a_list_of_layers_that_does_not_fit_is_named(kinds: list[str], size: int | None) -> None:
    with pytest.raises(CheckpointError, match="layer_types is"):
        read_windows(Fields({"layer_types": kinds}), 3, size, lambda layer: False)


def test_a_traced_layer_has_the_window_of_that_layer() -> None:
    windows = Windows((5, None, 7))
    assert [windows.of(layer) for layer in range(3)] == [5, None, 7]
    assert [int(windows.of(jnp.asarray(layer))) for layer in range(3)] == [5, UNLIMITED, 7]  # type: ignore[arg-type]


def test_layers_that_are_alike_need_no_operand() -> None:
    assert Windows((None, None)).of(jnp.asarray(1)) is None
    assert Windows((5, 5)).of(jnp.asarray(1)) == 5


SIZES = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 5, "num_hidden_layers": 2}
SWITCHED_ON = {**SIZES, "use_sliding_window": True, "max_window_layers": 1, "max_position_embeddings": 64}


@pytest.mark.parametrize("family", [qwen2, qwen3])
@pytest.mark.parametrize(("size", "expected"), [(7, (None, 7)), (None, (None, None))])
def test_a_window_that_is_null_is_none_whatever_the_switch_says(
    family: ModuleType, size: int | None, expected: tuple
) -> None:
    assert family.parse({**SWITCHED_ON, "sliding_window": size}).windows.sizes == expected


@pytest.mark.parametrize("window", [{}, {"sliding_window": 7}])
def test_a_family_whose_windows_are_not_offered_takes_the_switch_without_one(window: dict[str, int]) -> None:
    qwen3_moe.parse({**SWITCHED_ON, "sliding_window": None})
    with pytest.raises(CheckpointError, match="use_sliding_window is True"):
        qwen3_moe.parse({**SWITCHED_ON, **window})
