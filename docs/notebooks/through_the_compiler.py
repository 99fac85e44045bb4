"""A walk through the compiler: a model's levels, why nests were fused, a pass of your own, a directive, times.

marimo edit docs/notebooks/through_the_compiler.py     read it, change it, run it again
python docs/notebooks/through_the_compiler.py          run all of it once
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="A walk through the compiler")


@app.cell
def _():
    from dataclasses import dataclass

    import marimo as mo
    import torch

    import stepwell

    return dataclass, mo, stepwell, torch


@app.cell
def _(mo):
    mo.md("""
    # A walk through the compiler

    stepwell lowers a graph of PyTorch through levels of IR: `nd` (tensors), `loop` (nests), `mem` (buffers), `cpu`
    (vectors) and `host` (the launch program). Each level is a text that runs.

    The program scales each row to length one, multiplies with a matrix, and takes a softmax.
    """)
    return


@app.cell
def _(torch):
    def scores(x, w):
        length = (x * x).sum(-1, keepdim=True).sqrt()
        unit = x / length
        return torch.softmax(unit @ w, -1)

    torch.manual_seed(0)
    inputs = torch.randn(256, 64), torch.randn(64, 512)
    return inputs, scores


@app.cell
def _(inputs, scores, torch):
    compiled = torch.compile(scores, backend="stepwell")
    torch.testing.assert_close(compiled(*inputs), scores(*inputs), rtol=1e-4, atol=1e-5)
    return


@app.cell
def _(inputs, scores, stepwell):
    from stepwell.passes.cost.machine.cpu import flat

    # a processor by its numbers: predictions are then the same wherever this runs; without it yours is measured
    machine = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=1)

    def explored(**options):
        """The document of the explorer (docs/reference/explorer-json.md); each kernel is measured by itself, too."""
        return stepwell.explore(scores, *inputs, options=options, machine=machine, measure=True)

    found = explored()
    return explored, found


@app.cell
def _(mo):
    mo.md("""
    ## Levels

    `stepwell.explore` keeps every level with its links to your lines. Everything below is read from its document.
    """)
    return


@app.cell
def _(found, mo):
    graph, texts = found.data["graphs"][0], found.data["texts"]
    levels = {level["name"]: texts[level["text"]] for level in graph["levels"]}
    mo.ui.table([{"level": name, "lines": len(text.splitlines())} for name, text in levels.items()], selection=None)
    return graph, levels


@app.cell
def _(levels, mo):
    chosen = mo.ui.dropdown(list(levels), value="loop", label="level")
    chosen  # noqa: B018
    return (chosen,)


@app.cell
def _(chosen, levels, mo):
    mo.md(f"```mlir\n{levels[chosen.value]}\n```")
    return


@app.cell
def _(mo):
    mo.md("""
    ## What became of a value

    Name an FX node or a line: you get the nests and kernels that compute it.
    """)
    return


@app.cell
def _(found, mo):
    (answer,) = found.about("sum_1")
    rows = [{"kernel": step["label"], "schedule": step["schedule"], "bytes": step["bytes"]} for step in answer["kernels"]]
    mo.ui.table(rows, selection=None)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Why

    Each pair of nests that could have become one, and the reason where it did not.
    """)
    return


@app.cell
def _(graph, mo):
    pairs = [
        {"first": pair["first"], "second": pair["second"], "fused": pair["fused"], "reason": pair["reason"]}
        for pair in graph["plan"]["pairs"]
    ]
    mo.ui.table(pairs, selection=None)
    return


@app.cell
def _(mo):
    mo.md("""
    ## A pass of your own

    `x / sqrt(y)` becomes `x * rsqrt(y)`. A pass is a frozen dataclass; `register_pass` hangs it into a stage.
    [Your first pass](../tutorial/your-first-pass.md) shows the same one with a test.
    """)
    return


@app.cell
def _(dataclass):
    from stepwell.dialects.nd.pointwise import OPS
    from stepwell.passes.manager.pass_manager import Pass

    @dataclass(frozen=True)
    class DivideByRoot(Pass):
        """Replace a division by a root with a product."""

        name = "divide-by-root"

        def apply(self, ctx, op):
            for div in [one for one in op.walk() if isinstance(one, OPS["div"])]:
                root = div.rhs.owner
                if not isinstance(root, OPS["sqrt"]):
                    self.remark(div, "the divisor is no root", "missed")
                    continue
                inverse = OPS["rsqrt"].create(operands=[root.input], result_types=[root.result.type], location=div.location)
                product = OPS["mul"].create(
                    operands=[div.lhs, inverse.result], result_types=[div.result.type], location=div.location
                )
                div.parent.insert_ops_before([inverse, product], div)
                div.result.replace_all_uses_with(product.result)
                div.parent.erase_op(div)
                self.statistic("num-replaced")

    return (DivideByRoot,)


@app.cell
def _(DivideByRoot, explored, mo, stepwell):
    stepwell.register_pass("nd", DivideByRoot, position="begin")
    try:
        with_pass = explored()
    finally:
        stepwell.unregister_pass("divide-by-root")
    run = next(one for one in with_pass.data["graphs"][0]["passes"] if one["name"] == "divide-by-root")
    diff = with_pass.data["texts"][run["diff"]]
    assert "+" in diff and "nd.rsqrt" in diff
    mo.md(f"What it changed:\n\n```diff\n{diff}\n```")
    return


@app.cell
def _(mo):
    mo.md("""
    ## A directive

    The planner decides by cost. `no_fuse` overrules it; `fuse`, `tile` and `loop_order` do so, too. What changes:
    """)
    return


@app.cell
def _(explored, found, mo):
    from stepwell.tools.explore.compare import compare

    apart = explored(no_fuse=["sum_1"])
    (change,) = compare(found.data, apart.data)
    kept = {name: change[name] for name in ("steps", "bytes", "predicted_us", "measured_us")}
    assert change["bytes"][1] > change["bytes"][0]
    mo.ui.table([{"what": name, "by cost": a, "no_fuse": b} for name, (a, b) in kept.items()], selection=None)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Times

    Predicted for the machine above, measured on this one.
    """)
    return


@app.cell
def _(graph, mo):
    times = [
        {
            "kernel": step["label"],
            "bound": step["bound"],
            "predicted us": round(step["predicted_us"], 2),
            "measured us": round(step["measured_us"], 2),
        }
        for step in graph["kernels"]
    ]
    mo.ui.table(times, selection=None)
    return


@app.cell
def _(mo):
    mo.md("""
    ## The same as a page

    `found.write_html("out.html")` writes all of this, linked, as one file; `stepwell explore --serve` also compiles
    again and runs what you edit.
    """)
    return


@app.cell
def _(found, mo):
    mo.iframe(found.html(), height=720)
    return


if __name__ == "__main__":
    app.run()
