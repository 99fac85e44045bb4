"""The page of dialects: what it says of some operations, and that it is current."""

import re
import subprocess
import sys
from importlib import import_module

from stepwell.tools.docs import dialects


def test_fields_and_builders():
    sections = dict(re.findall(r"^### (\S+).*\n((?:(?!^##).*\n)*)", dialects.page(), re.MULTILINE))
    nest = sections["loop.nest"]
    assert "- Operands: `outs`*" in nest and "`schedule`?" in nest and "- Regions: `body`" in nest
    assert "`NestOp.build_nest(sizes, outs, location=..., label=...)`" in nest
    assert "- Operands: `lhs`: TensorType, `rhs`: TensorType" in sections["nd.matmul"]
    assert 'stepwell.dialects.nd.pointwise.OPS["exp"]' in sections["nd.exp"]


def test_every_operation_has_a_docstring_and_a_class_that_is_there():
    for name, dialect in dialects.dialects().items():
        for op in dialect.operations:
            assert op.__doc__, op.name
            path = re.findall(r"- Class: `([\w.]+)(?:\[\"(\w+)\"\])?`", dialects.operation(op, name))
            module, _, attribute = path[0][0].rpartition(".")
            found = getattr(import_module(module), attribute)
            assert (found[path[0][1]] if path[0][1] else found) is op


def test_the_page_is_current():
    """In a process of its own: tests define operations."""
    done = subprocess.run([sys.executable, "-m", "stepwell.tools.docs.dialects", "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, "python -m stepwell.tools.docs.dialects writes it\n" + done.stderr
