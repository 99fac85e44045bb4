"""Worker processes: answers, crashes and hangs are told apart, and the next request gets a fresh process."""

from __future__ import annotations

import os
import sys
from time import sleep

from stepwell.tools.worker_pool import DIED, Pool


def answer(request: dict) -> dict:
    print("what a program prints is no answer")
    if request["do"] == "crash":
        os.kill(os.getpid(), 11)
    if request["do"] == "leave":
        sys.stderr.write("last words")
        sys.stderr.flush()
        os._exit(7)
    if request["do"] == "hang":
        sleep(60)
    return {"done": request["do"], "process": os.getpid()}


def ask(pool: Pool, *requests: str) -> list[dict]:
    found = []
    for request in requests:
        worker = pool.idle
        assert worker is not None
        worker.begin({"do": request}, pool.seconds)
        found += [reply for _, reply in pool.wait()]
    return found


def test_answers_crashes_and_hangs(monkeypatch, tmp_path):
    program = f"import sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    program += "import test_worker_pool as t\nfrom stepwell.tools.worker_pool import serve\nserve(t.answer)\n"
    (tmp_path / "pool_under_test.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with Pool(1, "pool_under_test", seconds=60) as pool:
        one, two, crash, leave, after = ask(pool, "one", "two", "crash", "leave", "after")
        assert one["done"] == "one" and two["process"] == one["process"] != after["process"]
        assert "SIGSEGV" in crash[DIED] and "exit code 7" in leave[DIED] and "last words" in leave[DIED]
        pool.seconds = 0.3
        assert "no answer" in ask(pool, "hang")[0][DIED]
