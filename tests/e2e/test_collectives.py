"""Functional collectives over gloo between two processes (K02, N33): the same answers as eager, the same order on both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo")
def test_k02_n33_two_processes(tmp_path):
    """D21, D22: in place too, and with work between the start and the wait."""
    script = Path(__file__).with_name("two_processes.py")
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path / "meeting")], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
