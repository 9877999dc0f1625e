"""Every dialogue that the generator makes can be trained on: form, answers, calls, and the held-out split."""

import json
import re

import pytest

from scripts.demo.chat_format import BOS, parts, render
from scripts.demo.dialogue import Episode
from scripts.demo.dialogues import arithmetic, dates, goods, mixture, passages, toolbox, tools
from scripts.demo.draw import Draw, is_held_out, normalized


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    draw = Draw(11)
    return [mixture.training_episode(draw, long_share=0.05) for _ in range(1500)]


def test_the_parts_that_are_trained_on_are_the_chat_templates_own_rendering(episodes: list[Episode]) -> None:
    for episode in episodes[:200]:
        dialogue = mixture.conversation(episode)
        assert BOS + "".join(part.text for part in parts(dialogue)) == render(dialogue.messages, dialogue.tools)


def test_what_is_learned_is_what_the_assistant_says_and_nothing_else(episodes: list[Episode]) -> None:
    for episode in episodes[:200]:
        dialogue = mixture.conversation(episode)
        learned = [part.text for part in parts(dialogue) if part.learned]
        assert len(learned) == sum(message["role"] == "assistant" for message in dialogue.messages)
        assert all(text.endswith("<|end|>") for text in learned)


def test_the_mixture_holds_every_skill(episodes: list[Episode]) -> None:
    skills = {episode.skill for episode in episodes}
    assert skills >= {"weft", "small talk", "off ground", "facts", "addition", "dates", "units", "memory", "json"}
    assert skills >= {
        "passages",
        "passages, absent",
        "tools",
        "tools, unseen",
        "built-in tools",
        "file search",
        "system styles",
        "persona",
        "conversation",
    }


def test_no_slot_or_choice_is_left_in_a_text(episodes: list[Episode]) -> None:
    for episode in episodes:
        for exchange in episode.exchanges:
            assert exchange.user
            assert exchange.answer
            assert not re.search(r"\{\w*\}", exchange.user + exchange.answer)


def test_training_never_sees_a_held_out_wording(episodes: list[Episode]) -> None:
    for episode in episodes:
        assert not any(exchange.held_out() for exchange in episode.exchanges)


def test_made_up_words_of_training_and_evaluation_are_disjoint() -> None:
    trained, kept = Draw(1), Draw(1, held_out=True)
    assert not any(is_held_out(trained.word()) for _ in range(500))
    assert all(is_held_out(kept.word()) for _ in range(50))


def test_case_and_punctuation_make_no_new_wording() -> None:
    assert normalized("What's THE capital, of Peru?") == normalized("whats the capital of peru")


def test_noise_leaves_the_value_of_a_slot_alone() -> None:
    draw = Draw(3)
    assert all("Xy-42 Zed" in draw.say("what is the number of {v}?", v="Xy-42 Zed") for _ in range(300))


def test_the_same_seed_makes_the_same_dialogues() -> None:
    first, second = Draw(5), Draw(5)
    assert [mixture.single(first) for _ in range(20)] == [mixture.single(second) for _ in range(20)]


def test_json_answers_parse_and_their_values_stand_in_the_text() -> None:
    draw = Draw(2)
    for _ in range(200):
        episode = mixture.made(draw, "json")
        fields = json.loads(episode.exchanges[-1].answer)
        assert all(value is None or str(value) in episode.exchanges[-1].user for value in fields.values())


def test_tool_calls_name_an_offered_tool_and_fill_its_required_parameters() -> None:
    draw = Draw(4)
    for _ in range(200):
        episode = mixture.made(draw, "tools")
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in episode.tools}  # pyright: ignore[reportIndexIssue]
        for exchange in episode.exchanges:
            for call in exchange.calls:
                assert set(offered[call.name].get("required", [])) <= set(call.arguments)
                assert set(call.arguments) <= set(offered[call.name]["properties"])


def test_tools_that_could_answer_the_same_question_are_not_offered_together() -> None:
    draw = Draw(8)
    for _ in range(300):
        groups = [toolbox.GROUPS[tool.name] for tool in tools.offered(draw, True, 4) if tool.name in toolbox.GROUPS]
        assert len(groups) == len(set(groups))


def test_a_question_that_a_passage_leaves_open_is_not_one_that_it_answers() -> None:
    source = goods.EVENT[0], goods.EVENT[4]
    wordings = passages.askable([("the Fair", attribute) for attribute in source])
    assert "when does the Fair start" in wordings
    draw = Draw(9)
    for _ in range(200):
        made = passages.passage(draw)
        assert not {fact.question for fact in made.facts} & {item.question for item in made.absent}
        assert not {fact.named for fact in made.facts} & {item.named for item in made.absent}


def test_an_answer_from_a_passage_stands_in_the_passage() -> None:
    draw = Draw(6)
    for _ in range(200):
        episode = mixture.made(draw, "passages")
        text = episode.system or episode.exchanges[0].user
        for exchange in episode.exchanges:
            named, value = re.split(" is | are ", exchange.answer.removesuffix("."), maxsplit=1)
            assert named.startswith("The ")
            assert value == passages.NOT_THERE or value.lower() in text.lower()


@pytest.mark.parametrize(("a", "b"), [(0, 0), (8, 7), (99, 1), (347, 586), (5, 995), (1000, 24)])
def test_every_step_of_a_written_sum_is_right(a: int, b: int) -> None:
    for text, result in ((arithmetic.added(a, b), a + b), (arithmetic.subtracted(a, b), a - b)):
        assert text.endswith(f"= {result}.")
        for step in text.split(": ", 1)[1].split(". ")[0].split(", "):
            terms, value = step.split("=")
            assert sum(int(term) for term in re.findall(r"[+-]?\d+", terms)) == int(value)


@pytest.mark.parametrize(("a", "b"), [(84, 7), (95, 4), (7, 8), (999, 9), (12, 12)])
def test_written_products_and_quotients_are_right(a: int, b: int) -> None:
    assert arithmetic.multiplied(a, b).endswith(f"= {a * b}.")
    rest = f" remainder {a % b}" if a % b else ""
    assert arithmetic.divided(a, b).endswith(f"= {a // b}{rest}.")


def test_leap_years_follow_the_calendar() -> None:
    assert [dates.leap(year) for year in (1900, 2000, 2023, 2024)] == [False, True, False, True]
    assert dates.is_leap(1900).startswith("19/4: ")
    assert "remainder 3. 1900 is not a leap year" in dates.is_leap(1900)
    assert dates.is_leap(2024).endswith("So 24 / 4 = 6. 2024 is a leap year: it has 366 days.")


@pytest.mark.parametrize(("a", "b"), [(308, 17), (7, 8), (81, 88), (5, 5), (120, 1200)])
def test_a_written_comparison_ends_with_the_smaller_number_before_the_larger(a: int, b: int) -> None:
    steps = arithmetic.compared(a, b)
    left, sign, right = steps.removesuffix(".").split()[-3:]
    assert (int(left), int(right)) == (min(a, b), max(a, b))
    assert sign == ("<" if a != b else "=")


def test_months_are_counted_in_written_steps_that_are_right() -> None:
    draw, counted = Draw(12), 0
    for _ in range(300):
        (exchange,) = dates.month(draw).exchanges
        if "=" not in exchange.answer:
            continue
        counted += 1
        first, steps, last = exchange.answer.removesuffix(".").split(". ")
        for step in steps.split(", "):
            terms, value = step.split("=")
            assert sum(int(term) for term in re.findall(r"[+-]?\d+", terms)) == int(value)
        at = dates.MONTHS.index(first.split()[0]) + 1
        assert first.endswith(f"month {at}")
        assert steps.startswith(str(at))
        assert dates.MONTHS[int(steps.split("=")[-1]) - 1] == last.split()[-1]
    assert counted


def test_a_slip_of_the_finger_is_one_and_touches_no_value_and_no_word_that_stands_alone() -> None:
    draw, slips = Draw(13), 0
    for _ in range(300):
        said = draw.say("what is the capital of {x} in europe", x="Brelia")
        assert "Brelia" in said
        words = "what is the capital of Brelia in europe".split()
        slips += said.lower().split() != [word.lower() for word in words]
        assert sum(a != b.lower() for a, b in zip(said.lower().split(), words, strict=True)) <= 1
        assert draw.say("time").lower() == "time"
    assert slips
