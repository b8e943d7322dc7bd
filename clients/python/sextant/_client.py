"""The client."""

import base64
import dataclasses
import pathlib
import random
import time
from typing import Optional

import grpc

from sextant._errors import AGAIN, Error, Failure, failure_of
from sextant._proto import kv_pb2 as kv
from sextant._proto import rows_pb2 as rows
from sextant._proto.kv_pb2_grpc import KvStub
from sextant._sessions import Sessions, span

#: First and longest wait before the p-nodes are asked again, in seconds; an election ends in well under a second.
BACKOFF_MIN, BACKOFF_MAX = 0.005, 0.25
OVERLOADED_BACKOFF_MIN = 0.02
#: How often one write opens a new session.
REOPENED_MAX = 3
#: As the servers have it.
MESSAGE_BYTES_MAX = 24 * 1024 * 1024
#: Of a write's session and number, which it gets last.
REQUEST_ID_BYTES_MAX = 64

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # What is sent again is decided here.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]

#: What Redis calls the objects of its protocol.
_KINDS = {0: "string", 1: "hash", 2: "set", 3: "zset", 4: "list"}

_MISFITS = {
    rows.MISFIT_NOT_AN_INTEGER: "the value is no integer",
    rows.MISFIT_NOT_A_NUMBER: "the value is no number",
    rows.MISFIT_OVERFLOW: "the sum is too large",
    rows.MISFIT_TOO_LONG: "the value would be too long",
}


@dataclasses.dataclass(frozen=True)
class Record:
    """`expires_at`: in milliseconds since 1970; None: never.

    kind: "string", unless a scan has found an object of the Redis protocol ("hash", "set", "zset" or "list"), whose value is empty:
    its elements are not here.
    """

    key: bytes
    value: bytes
    version: int
    expires_at: Optional[int]
    kind: str = "string"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a write. `applied`: it took effect. `existed`: there was a record before (where that was looked at)."""

    applied: bool
    existed: bool
    version: int


class Operation:
    """One write of a batch."""

    def __init__(self, wire):
        self._wire = wire

    @staticmethod
    def put(key, value, table="", only_if_absent=False):
        condition = rows.CONDITION_ABSENT if only_if_absent else rows.CONDITION_NONE
        return Operation(
            kv.KvBatchOp(table=table, key=_bytes(key), kind=rows.WRITE_PUT, value=_bytes(value), condition=condition)
        )

    @staticmethod
    def delete(key, table=""):
        return Operation(kv.KvBatchOp(table=table, key=_bytes(key), kind=rows.WRITE_DELETE))

    @staticmethod
    def increment(key, by=1, table=""):
        return Operation(kv.KvBatchOp(table=table, key=_bytes(key), kind=rows.WRITE_INCREMENT, increment=by))

    @staticmethod
    def append(key, value, table=""):
        return Operation(kv.KvBatchOp(table=table, key=_bytes(key), kind=rows.WRITE_APPEND, value=_bytes(value)))


class Client:
    """A client of the p-nodes at these addresses (`host:port` or `unix:/path`). May be used by many threads.

    deadline: of each call, in seconds, retries and failover included.
    attempt_timeout: how long the first p-node that is asked may be silent before another is asked.
    ca, certificate, key: paths of PEM files; with `ca` connections are encrypted (not those over Unix sockets).
    """

    def __init__(
        self,
        *addresses,
        ca=None,
        certificate=None,
        key=None,
        user=None,
        password=None,
        deadline=5.0,
        attempt_timeout=1.0,
    ):
        if not addresses:
            raise ValueError("an address is needed")
        if (certificate is None) != (key is None):
            raise ValueError("certificate and key belong together")
        if certificate is not None and ca is None:
            raise ValueError("a certificate without ca: which authority is the servers'?")
        if deadline <= 0 or attempt_timeout <= 0:
            raise ValueError("deadline and attempt_timeout must be longer than 0")
        if (user is None) != (password is None):
            raise ValueError("user and password belong together")
        self._deadline = deadline
        self._attempt_timeout = attempt_timeout
        self._metadata = []
        if user is not None:
            if ":" in user:
                raise ValueError("a user's name has no colon")
            said = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._metadata.append(("authorization", f"Basic {said}"))
        credentials = None
        if ca is not None:
            read = lambda path: None if path is None else pathlib.Path(path).read_bytes()
            credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
        self._channels = [self._channel(address, credentials) for address in addresses]
        self._stubs = [KvStub(channel) for channel in self._channels]
        #: The one that is asked first.
        self._preferred = 0
        self._sessions = Sessions()

    @staticmethod
    def _channel(address, credentials):
        if address.startswith("unix:"):
            # By itself gRPC would say the path, which is no authority that a server has to take.
            return grpc.insecure_channel(address, options=[*_CHANNEL_OPTIONS, ("grpc.default_authority", "localhost")])
        if credentials is None:
            return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)

    def close(self):
        for channel in self._channels:
            channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Reads.

    def get(self, key, table="", deadline=None):
        """The record, or None. Linearizable."""
        request = kv.KvGetRequest(table=table, key=_bytes(key))
        return _record(request.key, self._read("Get", request, deadline))

    def multi_get(self, keys, table="", deadline=None):
        """The records of these keys, in their order; each is linearizable by itself."""
        request = kv.KvMultiGetRequest(table=table, keys=[_bytes(key) for key in keys])
        replies = self._read("MultiGet", request, deadline).replies
        if len(replies) != len(request.keys):
            raise Error("internal", f"{len(replies)} answers for {len(request.keys)} keys")
        return [_record(key, reply) for key, reply in zip(request.keys, replies)]

    def scan(self, start="", end="", prefix="", reverse=False, limit=0, table="", deadline=None):
        """The records in the order of their keys, also objects of the Redis protocol (`Record.kind`). The deadline is that of each page.

        Each page is of the table that has the name then. Those without records, of runs of deleted ones, have a deadline of their own.
        """
        start, end, prefix = _bytes(start), _bytes(end), _bytes(prefix)
        if prefix:
            start, end = prefix, _prefix_end(prefix)
        request = kv.KvScanRequest(table=table, start=start, end=end, reverse=reverse, limit=limit)
        while True:
            # Each page by a call of its own: so it has a deadline, and goes on through another p-node.
            page = self._read("Scan", request, deadline)
            if page is None:
                return
            for record in page.records:
                kind = _KINDS.get(record.kind, str(record.kind))
                yield Record(record.key, record.value, record.seq, record.expires_at or None, kind)
            # An older p-node does not say where it goes on.
            if reverse:
                request.end = page.goes_on_at or page.records[-1].key
            else:
                request.start = page.goes_on_at or page.records[-1].key + b"\0"
            if limit:
                request.limit -= min(len(page.records), request.limit)
                if request.limit == 0:
                    return
            # As a range from the last key down to nothing: an empty end would mean "to the last key".
            if (reverse and not request.end) or (request.end and request.start >= request.end):
                return

    # Writes.

    def put(self, key, value, table="", ttl=None, deadline=None):
        """Writes a record, whether it exists or not; its version. `ttl`: in seconds."""
        request = kv.KvPutRequest(table=table, key=_bytes(key), value=_bytes(value))
        if ttl is not None:
            request.lifetime.ttl_ms = max(1, int(ttl * 1000))
        return self._write("Put", request, deadline)[0].version

    def insert(self, key, value, table="", deadline=None):
        """Writes a record if there is none."""
        request = kv.KvPutRequest(table=table, key=_bytes(key), value=_bytes(value))
        return self._write("Insert", request, deadline)[0]

    def delete(self, key, table="", check_exists=False, deadline=None):
        """Deletes a record. Whether it existed is looked at if asked for."""
        request = kv.KvDeleteRequest(table=table, key=_bytes(key), check_exists=check_exists)
        return self._write("Delete", request, deadline)[0]

    def compare_and_set(self, key, new, expected=None, version=None, table="", deadline=None):
        """Writes `new` (None: deletes) if the value is `expected`, or the version is `version` (0: there is no record)."""
        if (expected is None) == (version is None):
            raise ValueError("either expected or version")
        request = kv.KvCompareAndSetRequest(table=table, key=_bytes(key))
        if version is None:
            request.value = _bytes(expected)
        else:
            request.seq = version
        if new is None:
            request.delete = True
        else:
            request.new_value = _bytes(new)
        return self._write("CompareAndSet", request, deadline)[0]

    def increment(self, key, by=1, table="", deadline=None):
        """Adds to an integer in decimal text (0 if there is no record); the sum."""
        op = Operation.increment(key, by, table)._wire
        op.returns = rows.RETURNS_AFTER
        return int(self._update(op, deadline).value)

    def append(self, key, value, table="", deadline=None):
        """Appends to a value (empty if there is no record); its length."""
        return self._update(Operation.append(key, value, table)._wire, deadline).length

    def batch(self, operations, deadline=None):
        """Several writes of one partition (keys with the same {tag}): atomic, and visible at once."""
        request = kv.KvBatchRequest(ops=[operation._wire for operation in operations])
        return self._write("Batch", request, deadline) if request.ops else []

    def _update(self, op, deadline):
        reply = self._send_once("Batch", kv.KvBatchRequest(ops=[op]), deadline)
        result = reply.results[0]
        if result.misfit:
            raise Error("invalid", _MISFITS.get(result.misfit, "the value does not go with that"))
        return result

    # How they are sent.

    def _read(self, method, request, deadline):
        _check_size(request)
        end = time.monotonic() + (self._deadline if deadline is None else deadline)
        return self._call(method, lambda: request, end, is_write=False)

    def _write(self, method, request, deadline):
        reply = self._send_once(method, request, deadline)
        for result in reply.results:
            if result.misfit:
                raise Error("invalid", _MISFITS.get(result.misfit, "a value does not go with that"))
        return [Outcome(reply.applied and result.applied, result.existed, result.seq) for result in reply.results]

    def _send_once(self, method, request, deadline):
        """Under one session and one number, as often as it takes."""
        _check_size(request)
        end = time.monotonic() + (self._deadline if deadline is None else deadline)
        ops = getattr(request, "ops", ())
        numbers = span(len(ops), sum(op.returns != 0 for op in ops))
        opened = lambda: self._call("OpenSession", kv.KvOpenSessionRequest, end, is_write=False).session
        for attempt in range(REOPENED_MAX + 1):
            session, number = self._sessions.take(end, opened, numbers)

            def numbered():
                request.request.session = session.id
                request.request.number = number
                request.request.acked_below = self._sessions.acked_below(session)
                return request

            try:
                return self._call(method, numbered, end, is_write=True)
            except Error as error:
                if error.kind != "unknown-session" or attempt == REOPENED_MAX:
                    raise
                # Certainly not done, and the servers do not know the session (any more).
                self._sessions.forget(session)
            finally:
                self._sessions.done(session, number)

    def _call(self, method, request, end, is_write):
        """`request`: makes it, for each attempt. A write has a session and a number: it is sent again, too."""
        count = len(self._stubs)
        at = self._preferred % count
        perhaps_done = False
        silences = failures = 0
        last = None
        while True:
            left = end - time.monotonic()
            if left <= 0:
                break
            patience = min(left, self._attempt_timeout * 2 ** min(silences, 10))
            try:
                answer = self._attempt(at, method, request(), patience)
                self._preferred = at
                return answer
            except grpc.RpcError as error:
                failure = failure_of(error)
                silences += error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            perhaps_done = perhaps_done or failure.perhaps_done
            last = failure
            if failure.kind == "unknown-session" and perhaps_done:
                # With the session the memory of earlier attempts is gone.
                raise self._unknown(failure)
            if failure.kind not in AGAIN:
                if is_write and perhaps_done and failure.kind != "internal":
                    raise self._unknown(failure)
                raise Error(failure.kind, failure.message, is_write and perhaps_done)
            failures += 1
            at = (at + 1) % count
            if failures % count == 0:
                wait = min(BACKOFF_MAX, BACKOFF_MIN * 2 ** min(failures // count, 10)) * random.uniform(0.5, 1.0)
                if failure.kind == "overloaded":
                    wait = max(wait, OVERLOADED_BACKOFF_MIN)
                time.sleep(max(0.0, min(wait, end - time.monotonic())))
        if is_write and perhaps_done:
            raise self._unknown(last)
        if last is None:
            raise Error("unavailable", "the deadline has passed before anybody was asked")
        raise Error(last.kind if last.kind != "outcome-unknown" else "unavailable", last.message)

    @staticmethod
    def _unknown(failure: Failure):
        return Error("outcome-unknown", f"the write may have taken effect, or may yet: {failure.message}", True)

    def _attempt(self, at, method, request, patience):
        call = getattr(self._stubs[at], method)
        if method != "Scan":
            return call(request, timeout=patience, metadata=self._metadata)
        pages = call(request, timeout=patience, metadata=self._metadata)
        try:
            return next((page for page in pages if page.records or page.goes_on_at), None)
        finally:
            pages.cancel()


def _bytes(value):
    if isinstance(value, str):
        return value.encode()
    # (Of a number `bytes` would make so many zeros.)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"keys and values are str or bytes, not {type(value).__name__}")


def _check_size(request):
    """gRPC itself refuses to send more, but with a status that tells nothing of that."""
    size = request.ByteSize()
    if size > MESSAGE_BYTES_MAX - REQUEST_ID_BYTES_MAX:
        raise Error("invalid", f"the request has {size} bytes: the limit is 24 MiB")


def _record(key, reply):
    return Record(key, reply.value, reply.seq, reply.expires_at or None) if reply.found else None


def _prefix_end(prefix):
    """The smallest key above all that begin so; empty: there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""
