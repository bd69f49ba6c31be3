"""A stand-in for portal, relay and worker: a health page, a child in a session of its own, and nothing else.

It lets the supervisor be tested for what it does, apart from what it supervises.
"""

import http.server
import os
import signal
import subprocess
import sys
from pathlib import Path


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(name: str) -> None:
    """Serve until SIGTERM; append one line at start and one at end to $STANDIN_LOG."""
    port = int(os.environ.get("ONCOMMIT_PORT", "0")) if name == "portal" else 0
    log = Path(os.environ["STANDIN_LOG"])

    def note(what: str) -> None:
        with log.open("a", encoding="utf-8") as out:
            out.write(f"{name} {what} {os.environ['ONCOMMIT_DATABASE_URL']}\n")

    def end(*_: object) -> None:
        note("end")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    if os.environ.get("STANDIN_FAILS") == name:
        sys.exit(f"{name} was told to fail")
    # As `dramatiq` and its worker process: in the session, living on when only the parent is killed.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
    # Deaf to SIGTERM, in its own session, with a cleared memory of whose child it is: the worst case.
    subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(900)"],
        start_new_session=True,
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    if file := os.environ.get("ONCOMMIT_HEALTH_FILE"):
        Path(file).write_text(f"http://127.0.0.1:{server.server_port}", encoding="utf-8")
    note("start")
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
