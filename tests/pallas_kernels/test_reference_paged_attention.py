"""The reference attention against its definition, over random ragged batches in poisoned pools."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from pallas_kernels.ragged import AttentionOptions
from pallas_kernels.reference.paged_attention import refusal, shared_pages
from tests.pallas_kernels.attention_trial import LONGEST, ROWS, SETTINGS, TOKENS, Setting, Trial


@pytest.fixture(params=SETTINGS.values(), ids=list(SETTINGS), scope="module")
def trial(request: pytest.FixtureRequest) -> Trial:
    return Trial("reference", request.param)


def test_random_mixes_of_decode_prefill_and_padding_attend_by_the_definition(trial: Trial) -> None:
    for _ in range(4):
        trial.run(*trial.random_batch())


def test_an_empty_batch_writes_nothing(trial: Trial) -> None:
    trial.run([], [], 0)


def test_the_longest_sequence_fills_its_page_table(trial: Trial) -> None:
    trial.run([LONGEST - 1], [1], 1)


def test_a_first_token_sees_itself_alone(trial: Trial) -> None:
    trial.run([0], [1], 1)


def test_a_bucket_full_of_prefill_from_an_empty_pool(trial: Trial) -> None:
    trial.run([0, 0], [TOKENS - 1, 1], 0)


def test_every_row_decodes(trial: Trial) -> None:
    trial.run([0, 1, 7, 8, 9, 63, 64, LONGEST - 1], [1] * ROWS, ROWS)


@pytest.mark.parametrize("shared", [47, 64, 200, 256])
def test_decoding_sequences_that_share_a_prefix_read_it_once(trial: Trial, shared: int) -> None:
    trial.run([shared, 299, shared + 1, 260, shared], [1] * 5, 5, shared)


def test_a_prefix_that_only_some_share(trial: Trial) -> None:
    trial.run([250, 299, 270, 256], [1, 1, 1, 17], 3, 240)  # the last one prefills
    trial.run([256], [1], 1, 256)  # a single one shares with nobody


def test_shared_pages_are_the_full_ones_that_all_live_rows_have_in_common() -> None:
    table = jnp.asarray([[4, 5, 6, 7], [4, 5, 6, 9], [4, 5, 8, 7], [1, 2, 3, 0]])

    def shared(rows: int, lens: list[int]) -> int:
        return int(shared_pages(table, jnp.arange(4) < rows, jnp.asarray(lens), page_size=8))

    assert shared(2, [30, 30, 30, 30]) == 3
    assert shared(3, [30, 30, 30, 30]) == 2
    assert shared(2, [30, 15, 30, 30]) == 1
    assert shared(4, [30, 30, 30, 30]) == 0
    assert shared(1, [30, 30, 30, 30]) == 0
    assert shared(0, [0, 0, 0, 0]) == 0


@pytest.mark.parametrize("prefix", [15, 16, 17, 63, 64, 65, 255])
def test_chunks_meet_page_and_tile_borders(trial: Trial, prefix: int) -> None:
    trial.run([prefix, 3], [33, 31], 0)


def test_a_bucket_of_one_token_decodes() -> None:
    Trial("reference", Setting(tokens=1)).run([70], [1], 1)


@pytest.mark.parametrize(
    ("options", "heads", "change", "reason"),
    [
        (AttentionOptions(scale=1.0), 5, {}, "5 query heads do not share 2 KV heads"),
        (AttentionOptions(scale=1.0, value_dim=8), 4, {}, "latent pages go with a value_dim"),
        (AttentionOptions(scale=1.0), 4, {"latent": True}, "latent pages go with a value_dim"),
        (AttentionOptions(scale=1.0, value_dim=8), 4, {"latent": True}, "one KV head, not 2"),
        (AttentionOptions(scale=1.0), 4, {"dtype": "int16"}, "not int16"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    options: AttentionOptions, heads: int, change: dict, reason: str
) -> None:
    assert reason in str(refusal(options, heads, replace(Setting().pool(4), **change)))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_what_is_tested_here_is_not_refused(setting: Setting) -> None:
    assert refusal(setting.options, setting.kv_heads * setting.group, setting.pool(4)) is None
