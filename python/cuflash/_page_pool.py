"""The library's page pool, which tracks the page of a KV cache that holds each token, with named results."""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

from . import _core
from ._values import LARGEST_EXTENT, shown, whole


class CachedSequence(NamedTuple):
    """A sequence of one pool. After its release, or in another pool, using it is an error; a handle is never reused."""

    serial: int
    slot: int


def _handle(sequence: Any, name: str = "sequence") -> CachedSequence:
    """A sequence as start and fork return it, or two numbers like it; the pool checks whether it is alive."""
    is_pair = isinstance(sequence, tuple) and len(sequence) == 2
    if not is_pair or not all(isinstance(n, int) and n >= 0 for n in sequence):
        raise TypeError(f"{name}: got {shown(sequence)}, must be a sequence that start or fork of this pool returned")
    return sequence


def _handles(sequences: Any) -> List[CachedSequence]:
    if isinstance(sequences, CachedSequence) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences: got {shown(sequences)}, must be a list of sequences")
    try:
        given = list(sequences)
    except TypeError:  # a zero-dimensional array
        raise TypeError(f"sequences: got {shown(sequences)}, must be a list of sequences") from None
    return [_handle(sequence, f"sequences[{n}]") for n, sequence in enumerate(given)]


class PageCopy(NamedTuple):
    """An order to copy the first `tokens` rows of page `source` to page `destination`."""

    source: int
    destination: int
    tokens: int


class Append(NamedTuple):
    """The result of PagePool.append: true if the tokens fit. Otherwise nothing has changed."""

    fit: str  # "fits", "pool_full" or "sequence_full"
    pages: int  # taken from the pool, or needed from it; 0 for "sequence_full"
    missing_pages: int  # "pool_full": how many to free first; "sequence_full": how many exceed max_pages_per_sequence
    copy: Optional[PageCopy]  # make it before writing the new tokens

    def __bool__(self) -> bool:
        return self.fit == "fits"


class Trim(NamedTuple):
    """The entries first_page .. first_page + pages - 1 were removed from the sequence's table."""

    first_page: int
    pages: int
    freed_pages: int  # those of them that no other sequence holds


class SequenceState(NamedTuple):
    """Cache index t is position t of the sequence if t < sinks, otherwise position t + dropped."""

    tokens: int  # tokens in the cache: its entry of cache_seqlens
    pages: int
    sinks: int  # tokens before the gap that trimming left
    dropped: int  # tokens in the gap
    position: int  # position of the next token: tokens + dropped


class PagePoolStats(NamedTuple):
    pages: int
    used_pages: int
    free_pages: int
    shared_pages: int  # held by more than one sequence
    table_entries: int  # the sum over all sequences of their pages; equals used_pages if nothing is shared
    sequences: int
    tokens: int  # the sum over all sequences
    wasted_tokens: int  # rows of used pages that no sequence reads


class PagePool:
    """Divides a fixed number of pages among sequences that grow, share prefixes, are trimmed and released.

    Token t of a sequence's cache is row t % page_size of page pages(sequence)[t // page_size]. The pool is bookkeeping in
    host memory and never sees K or V: make the copy that append returns, then write the new tokens, before the next
    fork, truncate, trim or release. docs/cache.md has the order of the steps, and what trimming keeps.

    A full pool is a result, not an exception, and changes nothing. Wrong arguments raise ValueError. Not thread-safe.

    pages                     the budget
    page_size                 tokens per page, at least 1
    max_sequences             alive at one time
    max_pages_per_sequence    None: as many as there are
    """

    def __init__(
        self, pages: int, page_size: int, max_sequences: int, max_pages_per_sequence: Optional[int] = None
    ) -> None:
        if max_pages_per_sequence is not None and whole(max_pages_per_sequence, "max_pages_per_sequence") == 0:
            raise ValueError("max_pages_per_sequence: got 0, must be at least 1, or None for as many as there are")
        self._pool = _core.PagePool(whole(pages, "pages"), whole(page_size, "page_size"),
                                    whole(max_sequences, "max_sequences"),
                                    0 if max_pages_per_sequence is None else int(max_pages_per_sequence))

    def start(self) -> Optional[CachedSequence]:
        """An empty sequence; None if max_sequences are alive."""
        handle = self._pool.start()
        return None if handle is None else CachedSequence(*handle)

    def fork(self, parent: CachedSequence, tokens: Optional[int] = None) -> Optional[CachedSequence]:
        """A sequence with the first tokens (None: all) of parent, on the same pages; None as in start."""
        if tokens is not None and whole(tokens, "tokens") < 0:
            raise ValueError(f"tokens: got {tokens}, must be 0 or more, or None for all")
        handle = self._pool.fork(_handle(parent, "parent"), -1 if tokens is None else int(tokens))
        return None if handle is None else CachedSequence(*handle)

    def append(self, sequence: CachedSequence, tokens: int) -> Append:
        """Makes room for this many tokens at the end, for all or for none."""
        fit, pages, missing, copy = self._pool.append(_handle(sequence), whole(tokens, "tokens"))
        return Append(fit, pages, missing, None if copy is None else PageCopy(*copy))

    def truncate(self, sequence: CachedSequence, tokens: int) -> None:
        """Keeps only the first tokens of the cached ones."""
        self._pool.truncate(_handle(sequence), whole(tokens, "tokens"))

    def trim(self, sequence: CachedSequence, sinks: int, window: int) -> Trim:
        """Drops the whole pages that hold neither one of the first sinks nor one of the last window tokens."""
        return Trim(*self._pool.trim(_handle(sequence), whole(sinks, "sinks"), whole(window, "window")))

    def release(self, sequence: CachedSequence) -> None:
        """Ends the sequence and frees the pages that no other one holds."""
        self._pool.release(_handle(sequence))

    def state(self, sequence: CachedSequence) -> SequenceState:
        return SequenceState(*self._pool.state(_handle(sequence)))

    def statistics(self) -> PagePoolStats:
        return PagePoolStats(*self._pool.statistics())

    def pages(self, sequence: CachedSequence) -> Any:
        """The pages of a sequence in order: int32 [pages]."""
        return self.block_table([_handle(sequence)])[0]

    def block_table(
        self,
        sequences: Sequence[CachedSequence],
        max_pages: Optional[int] = None,
        *,
        out: Any = None,
        unused: int = -1,
    ) -> Any:
        """int32 [sequences, max_pages]: each row holds a sequence's pages, then `unused`.

        max_pages None: as many columns as the longest sequence needs. out: an int32 array in host memory to write into
        and return, of NumPy or of PyTorch (pinned, for a copy to a GPU); it determines the number of columns.
        """
        sequences = _handles(sequences)
        if out is None:
            import numpy

            if max_pages is None:
                max_pages = max((self.state(s).pages for s in sequences), default=0)
            out = numpy.empty((len(sequences), whole(max_pages, "max_pages", 0, LARGEST_EXTENT)), numpy.int32)
        elif max_pages is not None:
            raise ValueError(f"max_pages: got {max_pages}, but out sets the number of columns; give one of the two")
        self._pool.write_block_table(sequences, out, whole(unused, "unused", -(2**31), 2**31 - 1))
        return out

    def lengths(self, sequences: Sequence[CachedSequence], *, out: Any = None) -> Any:
        """int32 [sequences], the number of cached tokens of each, for cache_seqlens. out as in block_table."""
        sequences = _handles(sequences)
        if out is None:
            import numpy

            out = numpy.empty(len(sequences), numpy.int32)
        self._pool.write_lengths(sequences, out)
        return out

    def check(self) -> None:
        """Raises RuntimeError if the pool's state is inconsistent, which would be a bug in cuflash. For tests."""
        self._pool.check()
