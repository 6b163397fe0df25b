"""A server that says exactly the bytes that a test gives it: the hostile and the broken ones of this world."""

import socket
import threading
from collections.abc import Callable

Answer = bytes | Callable[[socket.socket], None]


class RawServer:
    """Answers the Nth request with the Nth answer (the last one for all that follow), then closes unless kept."""

    def __init__(self, *answers: Answer, keep: bool = False) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.keep = keep
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "RawServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            while request := self._read(connection):
                self.requests.append(request)
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)
                if not self.keep:
                    break
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            connection.close()

    def _read(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return data
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                while len(body) < int(line.split(b":")[1]):
                    body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


def ok(body: bytes, *headers: bytes) -> bytes:
    """Make a good answer."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes, whole: bool = True) -> bytes:
    """Make a chunked answer, with or without its end."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + (b"0\r\n\r\n" if whole else b"")
