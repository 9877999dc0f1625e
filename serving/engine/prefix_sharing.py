"""Which pages a sequence may take from others, when its own may be offered, and when to wait for a page that somebody
else is about to compute.

Why a published page always holds what its digest says, although a step is in flight when it is published. Steps run on
the device in the order of their plans, and every plan that is made is run.

1. Publishing. A page is published when plans already issued write all its positions (`Sequence.num_full`) and the host
   knows all its tokens. Readers come in later plans (`publish` is called after a plan's last range is made, or at a
   commit), so they run after the writes.
2. No write comes later from its owner. A sequence writes each position once per admission, in order, from the first
   one that it did not share; `computed` counts every issued range, so what is still to come lies behind a full page.
   That includes the zombie: the range that was planned before the host learned that the stream had ended. Its write
   belongs to an issued plan and is counted in `computed`; and it writes the K and V of the token that ended the
   stream, which is what the page's digest says if the page is published at all.
3. No write comes later from a previous owner. A stream that ends while its zombie is in flight releases its pages at
   once. Whoever takes one writes it in a later plan, which runs after the zombie, and reads only positions that it has
   written itself. Preemption releases pages while a plan is being made; the victim has no range in that plan
   (`StepPlanner._take_page`), so there too all its writes run first.
4. No write comes from those who share. A sequence computes from behind its shared pages on, in pages of its own.
5. An abort does not unpublish: plans once issued are run, so the contents arrive even where nobody waits for them.
"""

from collections.abc import Iterable

from serving.engine.block_pool import BlockPool
from serving.engine.prefix_pins import PrefixPins
from serving.engine.sequence import Sequence


class PrefixSharing:
    """The prefix cache as sequences see it, over the pool's digests.

    A sequence waits while others compute its pages. Only running sequences are waited for, and those wait for nobody,
    so there is no cycle. Whoever waits is asked only where the plan has budget left, that is, where every running
    prompt has been planned to its end: so one plan later the pages are there. `max_waits` bounds the plans that one
    sequence spends waiting even where others keep coming and going before it.
    """

    def __init__(self, pool: BlockPool, pins: PrefixPins, *, max_waits: int) -> None:
        self._pool = pool
        self._pins = pins
        self._max_waits = max_waits
        # Who computes a page that is not published yet, by digest.
        self._computing: dict[bytes, Sequence] = {}

    def cached_pages(self, sequence: Sequence) -> list[int]:
        """The longest run of the sequence's leading pages that can be read by the plan being made."""
        pages: list[int] = []
        if self._pool.prefix_caching:
            for index in range(sequence.num_shareable):
                page = self._pool.lookup(sequence.digest(index))
                if page is None:
                    break
                pages.append(page)
        return pages

    def must_wait(self, sequence: Sequence, num_cached: int) -> bool:
        """Whether the sequence's first page that is not cached is about to be computed by another, so that it is
        better read by a later plan than computed twice. Counts the plan as one spent waiting."""
        if not self._computing or num_cached >= sequence.num_shareable or sequence.share_waits >= self._max_waits:
            return False
        if sequence.digest(num_cached) not in self._computing:
            return False
        sequence.share_waits += 1
        return True

    def announce(self, sequence: Sequence) -> None:
        """An admitted sequence will compute its pages behind the cached ones: others may wait for them."""
        if self._pool.prefix_caching:
            for index in range(sequence.num_published, len(sequence.tokens) // sequence.page_size):
                self._computing.setdefault(sequence.digest(index), sequence)

    def publish(self, sequence: Sequence) -> None:
        """Offers the sequence's full pages to plans after the last one issued."""
        if not self._pool.prefix_caching:
            return
        while sequence.num_published < sequence.num_full:
            digest = sequence.digest(sequence.num_published)
            if self._pool.register(sequence.page_table[sequence.num_published], digest):
                self._pins.published(digest)
            sequence.num_published += 1
            self._forget(digest, sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """The sequence stops running: those who wait for its pages go on by themselves."""
        for digest in sequence.digests[sequence.num_published :]:
            self._forget(digest, sequence)

    def check(self, running: Iterable[Sequence]) -> None:
        """Raises AssertionError where someone could wait for a sequence that is not going to compute."""
        owners = set(running)
        for digest, owner in self._computing.items():
            assert owner in owners, f"{owner.request_id} is waited for and does not run"
            assert digest in owner.digests[owner.num_published :], f"{owner.request_id} will not compute this page"

    def _forget(self, digest: bytes, sequence: Sequence) -> None:
        if self._computing.get(digest) is sequence:
            del self._computing[digest]
