"""A DNS server on loopback whose one name stands for the servers that a test says, as a headless Service does."""

from typing import Any, Self

from dnslib import QTYPE, RR, A
from dnslib.server import BaseResolver, DNSLogger, DNSServer

__all__ = ["NameServer"]

_NAME = "tokend.test"


class NameServer(BaseResolver):
    """Answers for `tokend.test` with the hosts that were last named."""

    def __init__(self, *hosts: str) -> None:
        self._hosts = hosts
        self.n_asked = 0
        self._server = DNSServer(
            self, port=0, address="127.0.0.1", logger=DNSLogger("-request,-reply", prefix=False)
        )
        self._server.start_thread()

    def name(self, *hosts: str) -> None:
        """From now on the name stands for these."""
        self._hosts = hosts

    def target(self, port: int) -> str:
        """What a client is given, to ask this server."""
        return f"dns://127.0.0.1:{self._server.server.server_address[1]}/{_NAME}:{port}"

    def resolve(self, request: Any, handler: Any) -> Any:
        del handler
        reply = request.reply()
        question = request.q
        if str(question.qname).rstrip(".") == _NAME and QTYPE[question.qtype] == "A":
            self.n_asked += 1
            for host in self._hosts:
                reply.add_answer(RR(question.qname, QTYPE.A, rdata=A(host), ttl=1))
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._server.server.server_close()
