"""Two threads of one test as the two processes of a run: no process is started, nothing is sent."""

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from blindstep.processes import jax_group

_LIMIT = 60  # seconds that a thread waits for the other one before the test fails


class Cluster:
    """Stands for `jax.distributed`: a store of words and collectives, both of which may be gone.

    Attributes:
        words: all that was ever written to the store, by address.
        kept: what has not been deleted.
        lost: whether process 0 is gone, and the store with it.
    """

    def __init__(self, monkeypatch):
        self.words, self.kept, self.lost = {}, {}, False
        self._news, self._own = threading.Condition(), threading.local()
        self._barrier, self._brought = threading.Barrier(2), {}
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(jax, "process_index", lambda: self._own.rank)
        monkeypatch.setattr(jax_group, "_store", lambda: self)
        monkeypatch.setattr(jax_group, "multihost_utils", self)
        monkeypatch.setattr(jax_group, "_groups", self)
        monkeypatch.setattr(jax_group.JaxGroup, "_swept", 0)

    def both(self, do):
        """What `do(rank)` gives, or raises, in each of two threads."""

        def one(rank):
            self._own.rank, self._own.turns = rank, itertools.count()
            with jax.enable_x64(True):
                try:
                    return do(rank)
                except Exception as error:
                    return error

        with ThreadPoolExecutor(2) as threads:
            return [each.result(_LIMIT) for each in [threads.submit(one, r) for r in range(2)]]

    def __next__(self):
        return next(self._own.turns)

    # -- the store -----------------------------------------------------------------------------

    def key_value_set(self, address, word):
        self._check()
        with self._news:
            assert address not in self.words
            self.words[address] = self.kept[address] = word
            self._news.notify_all()

    def key_value_delete(self, address):
        assert address.endswith("/")
        self.kept = {a: word for a, word in self.kept.items() if not a.startswith(address)}

    def blocking_key_value_get(self, address, milliseconds):
        with self._news:
            there = lambda: address in self.kept or self.lost  # noqa: E731
            found = self._news.wait_for(there, milliseconds / 1000)
        self._check()
        if not found:
            raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {address}")
        return self.kept[address]

    def lose(self):
        with self._news:
            self.lost = True
            self._news.notify_all()

    def _check(self):
        if self.lost:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")

    # -- collectives ---------------------------------------------------------------------------

    def process_allgather(self, content):
        self._brought[self._own.rank] = np.asarray(content)
        self._barrier.wait(_LIMIT)
        every = np.stack([self._brought[rank] for rank in range(2)])
        self._barrier.wait(_LIMIT)
        return every

    def broadcast_one_to_all(self, content):
        """As JAX does it: a sum with zeros."""
        own = content if self._own.rank == 0 else np.zeros_like(content)
        return np.sum(self.process_allgather(own), axis=0, dtype=content.dtype)


@contextlib.contextmanager
def alone(monkeypatch):
    """A single process again, for a while."""
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 1)
        patch.setattr(jax, "process_index", lambda: 0)
        patch.setattr(jax_group, "_groups", itertools.count())
        yield
