"""The passes and what runs them: `manager` (pipelines), `pipelines` (those of the targets), `registry` (names)."""
