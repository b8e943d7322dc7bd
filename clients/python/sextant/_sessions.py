"""What makes a write that is sent again take effect once: a session, and a number in it for each write."""

import collections
import threading
import time

from sextant._errors import Error

#: Numbers in flight span at most this: the servers keep a bounded number of answers of a session ..
WINDOW = 256
#: .. and, of all of them, of so many operations: a large batch takes several numbers.
OPERATIONS = 128 * 1024


def span(operations, telling=0):
    """The numbers that a batch takes. A value that an operation tells weighs as much as 16, and those of a batch as 2,048."""
    weight = operations + min(16 * telling, 2048)
    return max(1, min(WINDOW, -(-weight * WINDOW // OPERATIONS)))


class Session:
    def __init__(self, session):
        self.id = session
        self.next = 1
        self.in_flight = set()

    def acked_below(self):
        """All answers below this number have arrived, or nobody asks for them again."""
        return min(self.in_flight, default=self.next)


class Sessions:
    """The session of a client; writes beyond its window wait."""

    def __init__(self):
        self._changed = threading.Condition()
        # Who waits for numbers, in the order of coming: a large batch is not passed by small writes for ever.
        self._line = collections.deque()
        self._opening = threading.Lock()
        self._session = None

    def take(self, end, open_session, numbers=1):
        """A session and a number in it (and the next `numbers` - 1, unused); to be given back by `done`."""
        me = object()
        with self._changed:
            self._line.append(me)
        try:
            while True:
                if self._session is None:
                    self._open(end, open_session)
                with self._changed:
                    ticket = self._try_take(numbers) if self._line[0] is me else None
                    if ticket is not None:
                        return ticket
                    if self._session is None:
                        # It was forgotten since.
                        continue
                    left = end - time.monotonic()
                    if left <= 0:
                        raise Error("overloaded", "too many writes of this client hang: its session is full")
                    self._changed.wait(left)
        finally:
            with self._changed:
                self._line.remove(me)
                if self._line:
                    self._changed.notify_all()

    def _open(self, end, open_session):
        if not self._opening.acquire(timeout=max(0.0, end - time.monotonic())):
            raise Error("unavailable", "no session could be opened in time")
        try:
            # Somebody else may have opened one meanwhile.
            if self._session is None:
                opened = Session(open_session())
                with self._changed:
                    self._session = opened
                    self._changed.notify_all()
        finally:
            self._opening.release()

    def _try_take(self, numbers):
        session = self._session
        if session is None or session.next - session.acked_below() + numbers > WINDOW:
            return None
        number = session.next
        session.next += numbers
        session.in_flight.add(number)
        return session, number

    def acked_below(self, session):
        with self._changed:
            return session.acked_below()

    def done(self, session, number):
        with self._changed:
            session.in_flight.discard(number)
            self._changed.notify_all()

    def forget(self, session):
        """The servers do not know it any more."""
        with self._changed:
            if self._session is session:
                self._session = None
            self._changed.notify_all()
