"""A way to the server that writes down what clients send."""
import itertools
import socket
import threading


class Recorder:
    """Forwards connections to a port of this machine. `folder`: gets a file for each connection with the bytes that the
    client sent, all its requests one behind the other, named after what is running (`begin`)."""

    def __init__(self, folder, port):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._target = port
        self._label = "start"
        self._numbers = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def begin(self, label):
        self._label = label

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            path = self._folder / f"{self._label}-{next(self._numbers):03}.request"
            threading.Thread(target=self._copy, args=(client, server, path), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, None), daemon=True).start()

    @staticmethod
    def _copy(source, target, path):
        """Until the source ends; then the target learns of it, as it would without a recorder between them."""
        try:
            while data := source.recv(1 << 16):
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
