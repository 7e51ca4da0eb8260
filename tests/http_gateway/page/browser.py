"""A headless Chromium, driven by its DevTools protocol over a pair of pipes: no port, no further program."""
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 120  # seconds, for a machine that is busy
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "Space": (32, " ")}


def find_chromium():
    """Returns the program, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


class Browser:
    """Ends with close(), with all its processes."""

    def __init__(self, program):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-browser-"))
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # Both ends of the browser above 4, so that none is in the way of the other's copy.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)]

        def place_pipes():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # it does not run for root
        self.process = subprocess.Popen(
            [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}/profile",
             "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-component-update",
             "--disable-background-networking", "--no-proxy-server", "--password-store=basic", *sandbox,
             "about:blank"],
            preexec_fn=place_pipes, close_fds=False, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(self.folder), "TMPDIR": str(self.folder)})
        for fd in (commands, answers, *ends):
            os.close(fd)
        self._input = b""
        self._next = 0
        self.events = []

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data):]
        while True:
            answer = self._read(PATIENCE)
            if answer is None:
                raise AssertionError(f"the browser did not answer {method}")
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\0" not in self._input:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                return None
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self._input += data
        message, self._input = self._input.split(b"\0", 1)
        return json.loads(message)

    def open(self, url, width=1280, height=800, dark=False):
        return Page(self, url, width, height, dark)


class Page:
    """A tab."""

    def __init__(self, browser, url, width, height, dark):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.set_dark(dark)
        self.go(url)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def show(self):
        """Of several tabs one is seen; the others have no frames."""
        self.call("Page.bringToFront")

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.await_true("document.readyState === 'complete' && location.protocol !== 'about:'")

    def resize(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)

    def set_dark(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def run(self, script):
        """Returns the value of a JavaScript expression, awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
                           userGesture=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def await_true(self, script, what=None):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.run(script):
                return
            time.sleep(0.1)
        raise AssertionError(f"not within {PATIENCE} s: {what or script}; the page says:\n"
                             f"{self.run('document.body.innerText')}")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector):
        place = self.run(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{block: 'nearest'}});
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left",
                      clickCount=1)

    def type(self, selector, text):
        """Replaces what a field holds."""
        self.run(f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
                 f" field.focus(); field.select(); }})()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", windowsVirtualKeyCode=46)

    def press(self, key):
        code, text = KEYS[key]
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=key,
                  windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self):
        """Returns a PNG, in base64."""
        return self.call("Page.captureScreenshot", format="png")["data"]

    def complaints(self):
        """What the page logged and threw, policies that it broke included."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["source"] != "network":
                found.append(event["params"]["entry"])
        return found

    def requested(self):
        """URLs that the page asked for."""
        return [event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"]
