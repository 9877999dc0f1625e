"""How a step is filled where policies meet; what each policy promises is in `policies/`."""

from tests.fakes.paged_device import VOCAB_SIZE, expected_stream
from tests.serving.engine.driven_scheduler import DrivenScheduler


def _prompt(length: int, first: int) -> tuple[int, ...]:
    return tuple((first + i * i + i // VOCAB_SIZE) % VOCAB_SIZE for i in range(length))


def test_the_first_in_precedence_is_not_the_victim_however_cheap_it_is() -> None:
    driven = DrivenScheduler(num_pages=19, page_size=4, max_num_seqs=2, max_num_batched_tokens=4)
    driven.add("warm", _prompt(33, 1), max_tokens=1)
    driven.finish()
    # The older one comes first, but the younger one's prompt is cached: so the older one is still being read, and cheap
    # to read again, when the younger one needs a page.
    requests = [driven.add("old", _prompt(36, 2), max_tokens=2), driven.add("young", _prompt(33, 1), max_tokens=20)]
    admissions = {36: 0, 33: 0}
    while driven.scheduler.has_requests or driven.in_flight:
        plan = driven.step()
        for admission in plan.admissions if plan is not None else ():
            admissions[len(admission.prompt_token_ids)] += 1
    assert admissions == {36: 1, 33: 2}
    for request in requests:
        assert driven.tokens(request.request_id) == expected_stream(request, 64).token_ids
