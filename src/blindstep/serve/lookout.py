"""Whether a worker can serve: a thread that looks every second, so that asking it costs nothing.

It says what an operator has to know before anybody complains: the database answers, has a schema and a
key that belong to this worker, and *can be written to* (a full disk reads as well as an empty one);
the writer and the step closer are at work. One study that cannot be released takes no worker out of
service, since the others can: the answer counts it, and `blindstep_overdue_seconds` names it.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from blindstep.serve.access import Access
from blindstep.serve.closing import StepCloser
from blindstep.serve.database import Database
from blindstep.serve.keys import Secrets
from blindstep.serve.observe import ready
from blindstep.serve.voting import Writer

_log = logging.getLogger("blindstep.serve")
# Seconds between two looks, and between two writes that try whether there is room.
_EVERY, _TRY_EVERY = 1.0, 5.0
# Seconds after which a look, and a step closer that has not looked for due steps, count as stuck.
_STALE, _CLOSER_STALE = 15.0, 120.0


class Lookout(threading.Thread):
    """The thread, and what it saw last."""

    def __init__(
        self,
        database: Database,
        secrets: Secrets,
        access: Access,
        writer: Writer,
        closer: StepCloser,
    ) -> None:
        super().__init__(name="blindstep-lookout", daemon=True)
        self._database, self._secrets, self._access = database, secrets, access
        self._writer, self._closer = writer, closer
        self._ending = threading.Event()
        self._wrong, self._looked = "not looked yet", -math.inf
        self._tried = -math.inf

    def seen(self) -> tuple[bool, str]:
        """Whether this worker is ready, and what to say of it."""
        wrong = self._wrong
        if time.monotonic() - self._looked > _STALE:
            wrong = "the database has not answered for a while"
        if wrong:
            return False, f"not ready: {wrong}"
        stuck = len(self._closer.troubled)
        if stuck:
            return True, f"ready, but {stuck} studies cannot be released: see the log"
        return True, "ready"

    def run(self) -> None:
        """Look until the end."""
        while not self._ending.wait(_EVERY):
            self.look()

    def look(self) -> None:
        """Look once."""
        before = self._wrong
        self._wrong = self._look()
        self._looked = time.monotonic()
        ready.set(0 if self._wrong else 1)
        if self._wrong and self._wrong != before:
            _log.error("not ready", extra={"error": self._wrong})

    def _look(self) -> str:
        try:
            if wrong := self._database.belongs_to(self._secrets):
                return wrong
            self._access.refresh()
        except Exception as error:
            return f"the database cannot be read ({type(error).__name__})"
        now = time.monotonic()
        if now - self._tried > _TRY_EVERY or self._wrong:
            try:
                self._database.try_to_write()
            except Exception as error:
                return f"the database cannot be written to ({type(error).__name__})"
            self._tried = now
        if not self._writer.is_alive() or not self._closer.is_alive():
            return "a thread has ended"
        if time.monotonic() - self._closer.last_check > _CLOSER_STALE:
            return "due steps have not been looked for"
        return ""

    def end(self) -> None:
        """End after the look that is under way."""
        self._ending.set()
        if self.is_alive():
            self.join(timeout=10.0)
