"""A way to the server that writes down what clients send, and what they get."""
import itertools
import socket
import threading


class Exchange:
    """A request and its answer, as far as both came. Bodies are without the framing of chunks."""

    def __init__(self, request, answer):
        self.method, self.path = (request.start.split(" ") + [""])[:2]
        self.headers, self.body = request.headers, request.body
        self.status = int(answer.start.split(" ")[1]) if answer is not None else None
        self.answer = answer.body if answer is not None else b""


class _Message:
    def __init__(self, start, headers, body):
        self.start, self.headers, self.body = start, headers, body


def _dechunked(data, at):
    """What the chunks from `at` on hold, and where they end (the end of the data if they do not)."""
    body = b""
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0], 16)
        body += data[end + 2:end + 2 + size]
        at = end + 2 + size + 2
        if size == 0:
            return body, at
    return body, len(data)


def _messages(data):
    """The messages of one direction of a connection, the last one maybe cut short."""
    found, at = [], 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        start, *lines = data[at:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        at = end + 4
        if start.startswith("HTTP/1.1 100"):
            continue
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, at = _dechunked(data, at)
        else:
            size = int(headers.get("content-length", 0 if " HTTP/" in start else len(data) - at))
            body, at = data[at:at + size], min(len(data), at + size)
        found.append(_Message(start, headers, body))
    return found


class Recorder:
    """Forwards connections to a port of this machine. `folder`: gets a file for each connection with the bytes that the
    client sent, all its requests one behind the other, named after what is running (`begin`); None: none.

    Threads: any; two of its own for each connection."""

    def __init__(self, folder, port):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._target = port
        self._label = "start"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._connections = []  # of each: what the client sent, what the server did, and how many exchanges are old
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, label):
        """Names what is running now, and forgets what came before."""
        self._label = label
        with self._lock:
            for connection in self._connections:
                connection[2] = len(_messages(connection[0]))

    def exchanges(self):
        """Those since the last `begin`, in the order of their connections."""
        with self._lock:
            connections = [(bytes(sent), bytes(got), old) for sent, got, old in self._connections]
        found = []
        for sent, got, old in connections:
            requests, answers = _messages(sent), _messages(got)
            found += [Exchange(request, answers[index] if index < len(answers) else None)
                      for index, request in enumerate(requests) if index >= old]
        return found

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            path = None
            if self._folder is not None:
                path = self._folder / f"{self._label}-{next(self._numbers):03}.request"
            connection = [bytearray(), bytearray(), 0]
            with self._lock:
                self._connections.append(connection)
            threading.Thread(target=self._copy, args=(client, server, connection[0], path), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, connection[1], None), daemon=True).start()

    def _copy(self, source, target, copy, path):
        """Until the source ends; then the target learns of it, as it would without a recorder between them."""
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    copy += data
                if path is not None:
                    with open(path, "ab") as file:
                        file.write(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            # The other thread may still use it: the last reference closes it.
