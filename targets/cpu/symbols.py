"""The symbols by which an object tells of checks of kernels that failed."""

from __future__ import annotations

ERROR_SLOT = "stepwell_error"
"""An i32: the number of the first check that failed, 0 for none."""
ERROR_VALUES = "stepwell_error_values"
"""Two i64 that the message shows."""
MESSAGE_TABLE = "stepwell_messages"
MESSAGE_COUNT = "stepwell_message_count"
