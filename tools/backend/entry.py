"""What torch's entry point `stepwell` loads: it registers the backend, once, and leaves nothing for torch to register.

Of threads that ask at the same time for a backend of an entry point, torch registers it for each, and refuses all but the first one. An
import is done once, by one thread while the others wait; and for an entry point that is None torch registers nothing."""

from __future__ import annotations

from torch._dynamo.backends import registry

from .torch_backend import stepwell

stepwell._tags = ()  # pyright: ignore[reportFunctionMemberAccess]
registry._COMPILER_FNS.setdefault("stepwell", stepwell)  # register_backend takes the entry point away before the function is there

nothing = None
