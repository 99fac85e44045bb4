"""An analysis of the memory level: the bytes of the buffers of each kind as statistics, and a remark for each buffer above a limit."""

from dataclasses import dataclass

import stepwell
from stepwell.dialects import mem
from stepwell.dialects.mem import buffer_bytes
from stepwell.passes.manager.pass_manager import Pass


@dataclass(frozen=True)
class BufferBytes(Pass):
    """Counts the bytes of buffers by kind."""

    name = "buffer-bytes"

    limit: int = 1 << 20
    """Bytes from which on a buffer is named."""

    def apply(self, ctx, op):
        for alloc in [nested for nested in op.walk() if isinstance(nested, mem.AllocOp)]:
            size = buffer_bytes(alloc.results[0].type)  # an expression of the size symbols
            if not size.is_const:
                self.remark(alloc, f"{size} bytes, kind {alloc.kind.data}")
                continue
            self.statistic(f"bytes-{alloc.kind.data}", int(size))
            if int(size) >= self.limit:
                self.remark(alloc, f"{int(size)} bytes, kind {alloc.kind.data}")


stepwell.register_pass("mem", BufferBytes)
