"""The command `stepwell lsp`: how it ends, and what it says where pygls is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepwell.tools.lsp.main import main


def test_without_pygls_it_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pygls", None)
    assert main([]) == 2
    assert capsys.readouterr().err == "stepwell lsp: error: pygls is not installed: pip install 'stepwell[lsp]'\n"


def test_it_ends_when_the_editor_is_gone():
    pytest.importorskip("pygls", reason="pygls is not installed (the extra 'lsp')")
    done = subprocess.run([sys.executable, "-m", "stepwell.tools.lsp", "--stdio"], input=b"", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")
