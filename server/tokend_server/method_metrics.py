"""What is counted of one method of a served gRPC service: its calls, and what they tokenized."""

from collections.abc import Callable
from typing import Protocol

from tokend_server.caller_metrics import CallerLabel, CallerMetrics
from tokend_server.caller_names import ANONYMOUS
from tokend_server.errors import Reason
from tokend_server.metric_cells import CellTable
from tokend_server.served_methods import CODES, ENCODING, SERVICE, Method

__all__ = ["Call", "CallerMetrics", "MethodMetrics", "WorkMetrics"]

_UNKNOWN = CODES.index("Unknown")
# A short text takes ten to fifty microseconds, a batch of 48 MiB tens of seconds.
_SECONDS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
# 1 to 16,777,216: a text of the default limit cannot have more tokens than bytes.
_TOKENS = tuple(float(2**exponent) for exponent in range(25))


class Amounts(Protocol):
    """What one request moved."""

    @property
    def n_tokens(self) -> int:
        """Ids given out or taken in."""

    @property
    def n_texts(self) -> int:
        """Texts taken or made."""

    @property
    def text_bytes(self) -> int:
        """Their bytes in UTF-8."""

    @property
    def characters(self) -> int:
        """Their code points."""

    @property
    def special_texts(self) -> int:
        """Control-token strings that were kept as text."""

    @property
    def unknown_ids(self) -> int:
        """Unknown ids that were skipped or replaced."""

    @property
    def replacement_characters(self) -> int:
        """U+FFFD in the texts made."""


class Call:
    """One call from its arrival to its end; ending it twice counts once, so no gauge can drift."""

    __slots__ = ("arrived_s", "begun_s", "ended", "method", "n_received", "n_sent")

    def __init__(self, method: "MethodMetrics", arrived_s: float) -> None:
        self.method, self.arrived_s, self.ended = method, arrived_s, False
        self.begun_s: float | None = None
        self.n_received = self.n_sent = 0

    def begun(self) -> None:
        """Say that a thread has taken the call up: what passed since its arrival was waiting."""
        self.method.call_begun(self)

    def received(self) -> None:
        """Count a message that the caller sent."""
        self.method.message_received(self)

    def sent(self) -> None:
        """Count a message that was answered."""
        self.method.message_sent(self)

    def handled(self, code: int, caller: str = ANONYMOUS, amounts: Amounts | None = None) -> float | None:
        """Say that the call has ended; calls after the first do nothing.

        Args:
            code: A gRPC status code, 0 to 16.
            caller: Who made it.
            amounts: What it moved, if it is a unary call of a method that tokenizes, and was answered.

        Returns:
            The seconds from its arrival; None if it had ended before.
        """
        return self.method.call_ended(self, code, caller, amounts)

    def age_s(self) -> float:
        """Return the seconds since its arrival."""
        return self.method.clock() - self.arrived_s


class MethodMetrics:
    """What is counted of every method: the grpc_server_* series, and for our own service waiting, life and refusals."""

    def __init__(
        self,
        table: CellTable,
        method: Method,
        clock: Callable[[], float],
        callers: CallerMetrics | None = None,
    ) -> None:
        self._callers = callers if method.service == SERVICE else None
        self._cells, self._lock, self.clock = table.cells, table.lock, clock
        grpc = {"grpc_type": method.type, "grpc_service": method.service, "grpc_method": method.name}
        self._started = table.counter("grpc_server_started", "Calls that arrived.", grpc)
        self._received = table.counter("grpc_server_msg_received", "Messages received.", grpc)
        self._sent = table.counter("grpc_server_msg_sent", "Messages sent.", grpc)
        self._handled = tuple(
            table.counter(
                "grpc_server_handled", "Calls that ended, by status code.", grpc | {"grpc_code": code}
            )
            for code in CODES
        )
        self._handling = table.histogram(
            "grpc_server_handling_seconds",
            "Time from a call's arrival to its end, waiting included.",
            _SECONDS,
            grpc,
        )
        self._live = self._queue = self._work = None
        self._refusals: dict[str, int] = {}
        if method.service == SERVICE:
            own = {"method": method.name}
            self._live = (
                table.gauge("tokend_live_streams", "Streams that are open.", own)
                if method.type == "bidi_stream"
                else table.gauge(
                    "tokend_in_flight_calls", "Calls that have arrived and not ended, streams apart.", own
                )
            )
            self._queue = table.histogram(
                "tokend_queue_seconds", "Time from a call's arrival until a thread took it up.", _SECONDS, own
            )
            if method.type == "unary":
                self._work = table.histogram(
                    "tokend_work_seconds",
                    "Time from a thread's taking a unary call up to its end.",
                    _SECONDS,
                    own,
                )
            self._refusals = {
                reason: table.counter(
                    "tokend_refusals",
                    "Calls, batches and sequences answered with an error.",
                    own | {"reason": reason},
                )
                for reason in Reason
            }

    def started(self) -> Call:
        """Say that a call has arrived; the returned object must be told of its end."""
        with self._lock:
            cells = self._cells
            cells[self._started] += 1
            if self._live is not None:
                cells[self._live] += 1
        return Call(self, self.clock())

    def call_begun(self, call: Call) -> None:
        """Do the work of `Call.begun`."""
        call.begun_s = now_s = self.clock()
        # The wait of a unary call is counted at its end, which takes the lock anyway; a stream may last for hours.
        if self._queue is not None and self._work is None:
            with self._lock:
                self._queue.observe(self._cells, now_s - call.arrived_s)

    def call_ended(
        self, call: Call, code: int, caller: str = ANONYMOUS, amounts: Amounts | None = None
    ) -> float | None:
        """Do the work of `Call.handled`."""
        code = code if 0 <= code < len(CODES) else _UNKNOWN
        now_s = self.clock()
        duration_s = now_s - call.arrived_s
        with self._lock:
            if call.ended:
                return None
            call.ended = True
            self._cells[self._handled[code]] += 1
            if self._callers is not None:
                self._cells[self._callers.cell(caller, code)] += 1
            self._handling.observe(self._cells, duration_s)
            if self._live is not None:
                self._cells[self._live] -= 1
            if self._work is not None and self._queue is not None and call.begun_s is not None:
                self._queue.observe(self._cells, call.begun_s - call.arrived_s)
                self._work.observe(self._cells, now_s - call.begun_s)
                self._cells[self._received] += call.n_received
                self._cells[self._sent] += call.n_sent
            if amounts is not None:
                self._count(amounts, caller)
        return duration_s

    def _count(self, amounts: Amounts, caller: str) -> None:
        """Count a request that was answered, under the lock; only methods that tokenize have amounts."""

    def message_received(self, call: Call) -> None:
        """Do the work of `Call.received`."""
        if self._work is not None:
            # A unary call's one is counted at its end too.
            call.n_received = 1
            return
        with self._lock:
            self._cells[self._received] += 1

    def message_sent(self, call: Call) -> None:
        """Do the work of `Call.sent`."""
        if self._work is not None:
            call.n_sent = 1
            return
        with self._lock:
            self._cells[self._sent] += 1

    def refused(self, reason: str) -> None:
        """Count a call, a batch or a sequence that ended in an error; unknown reasons count as INTERNAL."""
        if self._refusals:
            with self._lock:
                self._cells[self._refusals.get(reason, self._refusals[Reason.INTERNAL])] += 1


class WorkMetrics(MethodMetrics):
    """What is counted besides of a method that tokenizes: tokens and the text that they stand for.

    The text is what came in for the encoding methods, and what went out for the decoding ones. A caller is told by
    the name of its token.
    """

    def __init__(
        self, table: CellTable, method: Method, clock: Callable[[], float], callers: CallerMetrics
    ) -> None:
        super().__init__(table, method, clock, callers)
        own = {"method": method.name}
        names = callers.names
        self._place_of = names.place
        by_caller = [CallerLabel(names, place, own) for place in range(names.n_places)]
        self._request_tokens = tuple(
            table.histogram(
                "tokend_request_tokens",
                "Tokens of one request: a unary call, a batch of a StreamEncode, a sequence of a StreamDecode.",
                _TOKENS,
                labels,
            )
            for labels in by_caller
        )
        self._tokens = tuple(
            table.counter("tokend_tokens", "Tokens sent (encoding) or taken (decoding).", labels)
            for labels in by_caller
        )
        self._texts = table.counter(
            "tokend_texts", "Texts taken (encoding; a pair is two) or made (decoding).", own
        )
        self._text_bytes = table.counter("tokend_text_bytes", "UTF-8 bytes of those texts.", own)
        self._characters = table.counter("tokend_characters", "Code points of those texts.", own)
        self._special_text = self._unknown_ids = self._replacements = self._message = None
        if method.name in ENCODING:
            self._special_text = table.counter(
                "tokend_special_text", "Control-token strings found in a text and kept as text.", own
            )
        else:
            self._unknown_ids = table.counter(
                "tokend_unknown_ids", "Unknown ids that were skipped or replaced.", own
            )
            self._replacements = table.counter(
                "tokend_replacement_characters", "U+FFFD in the texts made: bytes that were no UTF-8.", own
            )
        if method.type == "bidi_stream":
            self._message = table.histogram(
                "tokend_message_seconds",
                "Time from taking a stream's message to having its answer.",
                _SECONDS,
                own,
            )

    def answered(self, amounts: Amounts, *, caller: str = ANONYMOUS) -> None:
        """Count a request that is complete in itself but is no call: one batch of a StreamEncode."""
        with self._lock:
            self._count(amounts, caller)

    def _count(self, amounts: Amounts, caller: str) -> None:
        place = self._place_of(caller)
        self._request_tokens[place].observe(self._cells, amounts.n_tokens)
        self._move(place, amounts)

    def moved(self, amounts: Amounts, *, caller: str = ANONYMOUS) -> None:
        """Count what one message of a StreamDecode moved; its texts are the sequences that ended in it."""
        with self._lock:
            self._move(self._place_of(caller), amounts)

    def sequence_ended(self, tokens: int, *, caller: str = ANONYMOUS) -> None:
        """Count a sequence of a StreamDecode as a request of that many tokens; one that failed is not told here."""
        with self._lock:
            self._request_tokens[self._place_of(caller)].observe(self._cells, tokens)

    def _move(self, place: int, amounts: Amounts) -> None:
        cells = self._cells
        cells[self._tokens[place]] += amounts.n_tokens
        cells[self._texts] += amounts.n_texts
        cells[self._text_bytes] += amounts.text_bytes
        cells[self._characters] += amounts.characters
        if amounts.special_texts and self._special_text is not None:
            cells[self._special_text] += amounts.special_texts
        if amounts.unknown_ids and self._unknown_ids is not None:
            cells[self._unknown_ids] += amounts.unknown_ids
        if amounts.replacement_characters and self._replacements is not None:
            cells[self._replacements] += amounts.replacement_characters

    def message_took(self, duration_s: float) -> None:
        """Count the time that one message of a stream took, from taking it to having its answer."""
        if self._message is not None:
            with self._lock:
                self._message.observe(self._cells, duration_s)
