"""Everything about the distribution is in pyproject.toml; this file keeps deleted modules out of wheels.

setuptools reuses `build/lib` of an earlier build in the same checkout, and what was deleted or renamed since then would
be shipped again.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build


class FreshBuild(build):
    """`build`, from an empty folder."""

    def run(self) -> None:
        shutil.rmtree(Path(self.build_lib) / "stepwell", ignore_errors=True)
        super().run()


# Named because pip runs it from elsewhere, and setuptools leaves out of the root package the script that it knows of.
setup(script_name="setup.py", cmdclass={"build": FreshBuild})
