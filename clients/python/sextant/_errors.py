"""What a failed call means: which kind of error, whether it may have been done, whether somebody else is to be asked."""

import grpc

KIND = "sextant-kind"

#: Kinds after which the same request may be sent again.
AGAIN = frozenset(["retry", "not-leader", "overloaded", "unavailable", "stopping", "outcome-unknown"])

#: Statuses of the gRPC layer that refuse a request before it is looked at. (Not RESOURCE_EXHAUSTED: gRPC makes it of an HTTP/2 stream
#: that was reset with ENHANCE_YOUR_CALM, whatever was done, and of an answer that is too long.)
_REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.OUT_OF_RANGE: "invalid",
    grpc.StatusCode.UNIMPLEMENTED: "internal",
}

#: How gRPC says that it has sent nothing, since nobody answers.
_NEVER_CONNECTED = "failed to connect to all addresses"


class Error(Exception):
    """A call that has failed.

    kind: one of the names in kv.proto ("invalid", "unavailable", "outcome-unknown", ..).
    perhaps_done: whether a write may have taken effect, or may yet. False: it certainly has not.
    """

    def __init__(self, kind, message, perhaps_done=False):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.perhaps_done = perhaps_done


class Failure:
    """One attempt that has failed."""

    def __init__(self, kind, message, perhaps_done, blames_server):
        self.kind = kind
        self.message = message
        self.perhaps_done = perhaps_done
        #: The p-node is out of reach, silent or stopping: another is asked.
        self.blames_server = blames_server


def failure_of(error):
    """Of a grpc.RpcError."""
    code, message = error.code(), error.details() or ""
    kinds = [value for key, value in (error.trailing_metadata() or ()) if key == KIND]
    if kinds:
        kind = kinds[0]
        return Failure(kind, message, kind in ("outcome-unknown", "internal"), kind in ("unavailable", "stopping"))
    if code in _REFUSED:
        return Failure(_REFUSED[code], message, False, False)
    # A lost connection has many codes.
    return Failure("unavailable", message, not message.startswith(_NEVER_CONNECTED), True)
