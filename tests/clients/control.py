"""How a process of checks tells the driver what is next, scripts the worker's answers, and reads what the worker heard."""
import http.server
import json
import threading


class Control:
    """POST /begin, a JSON text: what is tried now. POST /play, a JSON list: the worker's next answers. GET /heard: the
    requests that the worker got since then.

    Threads: one of its own; `begin` and `worker` are called there."""

    def __init__(self, worker, begin):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802
                value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/begin":
                    begin(value)
                else:
                    worker.play(value)
                self._answer(None)

            def do_GET(self):  # noqa: N802
                self._answer(worker.heard())

            def _answer(self, value):
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
