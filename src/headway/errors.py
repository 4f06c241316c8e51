"""The error tree. Each class says whose fault it is; HTTP knows them through one table in server/errors.

HeadwayError
├── CallerError               the request, or how we were called
│   ├── InvalidRequest        a field's value; `param` names it
│   │   ├── ContextLengthExceeded
│   │   ├── UnsupportedFeature   a field or flag that others have and Headway has not: says what to do instead
│   │   └── TemplateRefused   the chat template raised: its own words
│   ├── ModelNotFound
│   ├── ResponseNotFound      of /v1/responses
│   ├── PayloadTooLarge
│   ├── UnsupportedEncoding   a compressed body
│   ├── Unauthorized
│   ├── PermissionDenied      a key that may not do this
│   ├── HostNotAllowed        a name that this server is not called by
│   └── InvalidConfig         a flag, an environment variable or the YAML file
├── CapacityError             right request, wrong moment: try again (`retry_after_s`)
│   ├── ModelNotReady         loading, or restarting after a crash
│   ├── QueueFull
│   ├── ShuttingDown
│   ├── PreemptionLimit       taken off too often to be finished
│   ├── DeadlineExceeded      not answered within the request's time-out
│   ├── CatalogUnavailable    its database does not answer
│   └── OutOfMemory           what was needed and what there was
├── ModelError                the model's files
│   ├── UnsupportedModel      a format, type, architecture or tokenizer that we do not have, by name
│   ├── CorruptCheckpoint     the file is not what it says
│   ├── TensorMismatch        missing, unexpected or misshapen tensors, listed
│   ├── DownloadFailed
│   ├── InferenceFailed       the model's code raised on this input
│   └── NonFiniteLogits       the model computed NaN or infinity
├── UpstreamError             another server, which computes the model; the words name it
│   ├── UpstreamFailed        not reached, broke off, answered an error or what is no answer, or refuses our key
│   ├── UpstreamTimeout       said nothing for longer than it may
│   ├── UpstreamUnavailable   says that it can not now, or failed too often to be asked now (`retry_after_s`)
│   └── UpstreamLimited       says that we ask too much (`retry_after_s`)
└── InternalError             us
    ├── WorkerDied            the model's process ended while it had work
    ├── WorkerStalled         it made no progress within the stall time-out and was killed
    └── InvariantBroken       a check_*() found what can not be

Across processes an error travels as headway_wire.Error: the class's name, the words, the field.
"""

from copy import copy
from typing import Literal, Self

import headway_wire as wire


class HeadwayError(Exception):
    """Root of the tree.

    Args:
        message: names the value, the limit and what to do; shown to the caller as it is.
        param: the request's field at fault, if there is one.
    """

    fault: Literal["caller", "capacity", "model", "upstream", "us"] = "us"
    code: str | None = None
    """A machine-readable word, OpenAI's where OpenAI has one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def within(self, where: str) -> Self:
        """The same error, with `where` before its words."""
        same = copy(self)
        same.message = f"{where}: {self.message}"
        same.args = (same.message,)
        return same

    def to_wire(self) -> wire.Error:
        """This error as a message field."""
        return wire.Error(kind=type(self).__name__, message=self.message, param=self.param)


class CallerError(HeadwayError):
    """The caller can mend it."""

    fault = "caller"


class InvalidRequest(CallerError):
    """A field has a value that it must not have."""

    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt + max_tokens, is over the context; the message has both numbers."""

    code = "context_length_exceeded"


class UnsupportedFeature(InvalidRequest):
    """Known elsewhere, not here; the message says what to do instead."""

    code = "unsupported_feature"


class TemplateRefused(InvalidRequest):
    """The chat template raised on these messages; the message is the template's own."""

    code = "chat_template_error"


class ModelNotFound(CallerError):
    """No model of that name is served."""

    code = "model_not_found"


class ResponseNotFound(CallerError):
    """No response of that id is kept for this caller."""

    code = "response_not_found"


class PayloadTooLarge(CallerError):
    """The body is over the limit; both numbers are in the message."""

    code = "payload_too_large"


class UnsupportedEncoding(CallerError):
    """The body is compressed; the message says how it is to be sent."""

    code = "unsupported_encoding"


class Unauthorized(CallerError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"


class PermissionDenied(CallerError):
    """A right API key, that may not do this; the message says which may."""

    code = "permission_denied"


class HostNotAllowed(CallerError):
    """The Host header names another server; the message has the names that are taken, and the flag."""

    code = "host_not_allowed"


class InvalidConfig(CallerError):
    """A flag, environment variable or YAML entry cannot be used."""

    code = "invalid_config"


class CapacityError(HeadwayError):
    """Not now: the same request can work later."""

    fault = "capacity"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class ModelNotReady(CapacityError):
    """The model is loading, or is being restarted."""

    code = "model_not_ready"


class QueueFull(CapacityError):
    """As many requests wait as may wait."""

    code = "queue_full"


class ShuttingDown(CapacityError):
    """The server is about to end and takes nothing new."""

    code = "shutting_down"


class PreemptionLimit(CapacityError):
    """The sequence lost its cache to others more often than the limit."""

    code = "preemption_limit"


class DeadlineExceeded(CapacityError):
    """The request's time-out was over before its answer was there."""

    code = "deadline_exceeded"


class CatalogUnavailable(CapacityError):
    """The catalog's database failed; the message names it, and has its words."""

    code = "catalog_unavailable"


class OutOfMemory(CapacityError):
    """The bytes needed and the bytes there are, in the message."""

    code = "out_of_memory"


class ModelError(HeadwayError):
    """The fault is in the model's files."""

    fault = "model"


class UnsupportedModel(ModelError):
    """A format, tensor type, architecture or tokenizer that Headway does not have, named."""

    code = "unsupported_model"


class CorruptCheckpoint(ModelError):
    """A file whose sizes, offsets, types or names contradict each other."""

    code = "corrupt_checkpoint"


class TensorMismatch(ModelError):
    """Tensors are missing, unexpected or of a wrong shape; the message lists them."""

    code = "tensor_mismatch"


class DownloadFailed(ModelError):
    """A download did not end, or ended with other bytes than it should."""

    code = "download_failed"


class InferenceFailed(ModelError):
    """The model, or the code that runs it, raised on this input: its class and words."""

    code = "inference_failed"


class NonFiniteLogits(ModelError):
    """The model computed NaN or infinity for this sequence."""

    code = "non_finite_logits"


class UpstreamError(HeadwayError):
    """Another server is at fault, which a model is served by; the message names its address."""

    fault = "upstream"
    code = "upstream_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s
        self.status = status
        """Of its answer, if there was one."""


class UpstreamFailed(UpstreamError):
    """It was not reached, broke off, answered an error or what is no answer, or does not take our key."""

    code = "upstream_failed"


class UpstreamTimeout(UpstreamError):
    """It said nothing for longer than it may; the message has the limit and its name."""

    code = "upstream_timeout"


class UpstreamUnavailable(UpstreamError):
    """It said that it can not now, or it failed so often that it is left alone for a while."""

    code = "upstream_unavailable"


class UpstreamLimited(UpstreamError):
    """It said that we ask too much of it."""

    code = "upstream_limited"


class InternalError(HeadwayError):
    """A fault of Headway."""

    code = "internal_error"


class WorkerDied(InternalError):
    """The model's process ended while the request was open; it is restarted."""

    code = "worker_died"


class WorkerStalled(InternalError):
    """The model's process made no progress within the stall time-out; it was killed and is restarted."""

    code = "worker_stalled"


class InvariantBroken(InternalError):
    """A check of our own found a state that must not exist."""

    code = "invariant_broken"


def _tree(root: type[HeadwayError]) -> dict[str, type[HeadwayError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def from_wire(error: wire.Error) -> HeadwayError:
    """The error that a message carries; of a kind that this process does not know, an InternalError."""
    kind = _tree(HeadwayError).get(error.kind)
    if kind is None:
        return InternalError(f"{error.kind}: {error.message}", param=error.param)
    return kind(error.message, param=error.param)
