"""What a graph of Dynamo's depends on before AOTAutograd has seen it, as one hash: the key of the cache of traced graphs.

The graph (functions, methods, arguments), the inputs (sizes, strides, types, whether they need gradients, which share memory), the
symbols of sizes with what is known of them so far, and all state of torch that tracing looks at: grad mode, autocast, determinism,
precision, defaults, AOTAutograd's configuration. Each function must be torch's own and found under its name; whatever is not understood
here raises Uncacheable, and the graph is traced."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._functorch import peek_interpreter_stack
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from ..options.options import Options
from .graph_key import Uncacheable, Writer, settings_key

_NAMESPACES = frozenset(("aten", "prims", "prim", "stepwell"))
"""Operators whose gradients and decompositions are torch's or ours; those of users may change from one process to the next."""

_C_MODULES = ("_operator", "builtins", "math", "torch")
_TORCH = os.path.dirname(torch.__file__) + os.sep

_SILENT = frozenset(
    "example_value grapharg tensor_dict nn_module_stack source_fn_stack stack_trace creation_timestamp from_node steal_arg "
    "fwd_nn_module_stack fwd_source_fn_stack seq_nr unbacked_bindings".split()
)
"""Metadata of nodes that says where they come from, or is looked at elsewhere; all other metadata counts."""

_KERNEL_KEYS = frozenset(("CPU", "CUDA", "HIP", "HPU", "Meta", "MPS", "MTIA", "XLA", "XPU"))
"""Dispatch keys of kernels, which tracing never runs, and of shape functions, which nobody can replace."""

_OWN = frozenset(("aten/to_dense/FuncTorchDynamicLayerFrontMode", "aten/to_dense/PythonTLSSnapshot"))
"""What torch 2.14 itself registers from Python."""

_SETTINGS = """
_get_deterministic_algorithms _get_deterministic_algorithms_warn_only _get_deterministic_fill_uninitialized_memory _get_cublas_allow_tf32
_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation
_get_cpu_allow_fp16_reduced_precision_reduction _get_cudnn_enabled _get_cudnn_allow_tf32 _get_cudnn_benchmark _get_cudnn_deterministic
_get_float32_matmul_precision _get_linalg_preferred_backend _get_mkldnn_enabled _get_mkldnn_deterministic _get_onednn_allow_tf32
_get_nnpack_enabled _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled _get_math_sdp_enabled _get_cudnn_sdp_enabled
_get_overrideable_sdp_enabled _get_math_sdp_allow_fp16_bf16_reduction _get_sdp_priority_order
""".split()


def trace_key(gm: GraphModule, inputs: Sequence[Any], options: Options) -> str:
    """The hexadecimal key of a graph that Dynamo hands over with its inputs. Raises Uncacheable."""
    tracing = TracingContext.try_get()
    if tracing is None or tracing.fake_mode is None or "dynamo_compile_id" not in gm.meta:
        raise Uncacheable("the graph does not come from Dynamo")
    _check_surroundings(gm, tracing)
    writer = _TraceWriter()
    writer.value((settings_key(options), _state()))
    writer.inputs(gm, inputs)
    writer.graph(gm)
    writer.sizes(tracing.fake_mode.shape_env)
    writer.extensions(options)
    return writer.digest()


def _check_surroundings(gm: GraphModule, tracing: TracingContext) -> None:
    """Raise Uncacheable where something around the graph takes part in tracing it."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo import config as dynamo_config
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if getattr(tracing, "fakify_first_call", False) or getattr(tracing, "ddp_optimizer_ctx", None) is not None:
        raise Uncacheable("the graph is a part of one that is split")
    if dynamo_config.compiled_autograd or compiled_autograd.in_compiled_autograd_region:
        raise Uncacheable("compiled autograd traces backward")
    if _get_current_dispatch_mode_stack() or peek_interpreter_stack() is not None:
        raise Uncacheable("a mode or a transform of the caller's is active")
    if _top_saved_tensors_default_hooks(False) is not None or hasattr(gm, "saved_tensors_hooks_pack_0"):
        raise Uncacheable("hooks for saved tensors are set")
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        raise Uncacheable("the graph holds tensors")
    for name in torch.library._impls - _OWN:
        namespace, _, rest = name.partition("/")
        if namespace in ("aten", "prim") and rest.rpartition("/")[2] not in _KERNEL_KEYS:
            raise Uncacheable(f"somebody has replaced {name}")


def _state() -> list[Any]:
    """What tracing sees of torch's state."""
    from torch._functorch import config as functorch_config
    from torch.fx.experimental import _config

    symbolic_config: Any = _config

    for name in getattr(functorch_config, "_save_config_ignore", ()):
        if callable(getattr(functorch_config, name, None)):
            raise Uncacheable(f"torch._functorch.config.{name} is a function")
    try:
        flags = [getattr(torch._C, name)() for name in _SETTINGS if hasattr(torch._C, name)]
    except RuntimeError as error:  # torch refuses to say where its old and new settings of precision were mixed
        raise Uncacheable(f"torch's settings cannot be read: {error}") from error
    return [
        repr(flags),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_autocast_cache_enabled(),
        [(d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)],
        torch.get_default_dtype(),
        torch.get_default_device(),
        functorch_config.get_hash().hex(),
        symbolic_config.get_hash().hex(),
    ]


class _TraceWriter(Writer):
    """Writes a graph of Dynamo's."""

    def inputs(self, gm: GraphModule, inputs: Sequence[Any]) -> None:
        nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
        if len(nodes) != len(inputs):
            raise Uncacheable("the graph and its inputs do not match")
        storages: dict[int, int] = {}
        for k, (node, x) in enumerate(zip(nodes, inputs, strict=True)):
            if type(x) is torch.SymInt:
                self.number(x)
            elif type(x) in (torch.Tensor, torch.nn.Parameter):
                self.input(node, x)
                self.parts.append(f"memory {storages.setdefault(x.untyped_storage()._cdata, k)}")
            else:
                raise Uncacheable(f"an input is a {type(x).__module__}.{type(x).__qualname__}")

    def input(self, node: Node, x: torch.Tensor) -> None:
        """A tensor that goes in, with symbols for sizes as Dynamo found them."""
        if x.layout != torch.strided or x.is_quantized or any(getattr(x, "names", ())) or x._is_zerotensor():
            raise Uncacheable(f"an input is {x.layout}, quantised, or has names")
        traced = node.meta.get("example_value")
        if type(traced) is not FakeTensor:
            raise Uncacheable(f"node {node.name} has no metadata")
        self.devices.add(str(x.device))
        base = x._base
        self.parts.append(
            f"{type(x).__name__} {x.dtype} {x.device} {x.requires_grad} {x.is_leaf} {x.is_conj()} {x.is_neg()} {x.is_inference()} "
            f"{base is not None and (base.requires_grad, base.is_leaf)} "
            f"{bool(node.meta.get('tensor_dict', {}).get('_dynamo_static_input_type'))}"
        )
        seen = (*traced.shape, *traced.stride(), traced.storage_offset())
        real = (*x.shape, *x.stride(), x.storage_offset())
        if len(seen) != len(real) or any(not _same(a, b) for a, b in zip(seen, real, strict=True)):
            raise Uncacheable("the graph changes the sizes of an input")
        self.sequence("sizes", seen)
        if not any(isinstance(n, torch.SymInt) for n in seen):
            self.parts.append(str(x.untyped_storage().nbytes()))

    def meta(self, node: Node) -> None:
        for key, found in node.meta.items():
            if key not in _SILENT:
                self.parts.append(key)
                self.value(found)
        if any(str(key).startswith("stepwell.") for key in node.meta.get("custom") or ()):
            raise Uncacheable("directives for single nests are given")
        if node.meta.get("unbacked_bindings"):
            raise Uncacheable("a size is only known when the graph runs")
        value = node.meta.get("example_value")
        for v in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(v, torch.Tensor) and type(v) is not FakeTensor:
                raise Uncacheable(f"a value is a {type(v).__qualname__}")

    def node(self, gm: GraphModule, node: Node) -> None:
        if node.op == "call_method":
            self.parts.append(str(node.target))
            self.value(node.args)
            self.value(node.kwargs)
        elif node.op == "output":
            results = node.args[0]
            if not isinstance(results, (tuple, list)) or any(isinstance(v, (tuple, list, dict)) for v in results):
                raise Uncacheable("the results are nested")
            self.value(node.args)
        elif node.op in ("get_attr", "call_module"):
            raise Uncacheable("the graph holds a module")
        elif node.op != "placeholder":
            super().node(gm, node)

    def function(self, called: Any) -> None:
        if isinstance(called, torch._ops.OpOverloadPacket):
            self._namespace(called._qualified_op_name.partition("::")[0])
            self.parts.append(called._qualified_op_name)
        elif isinstance(called, torch._ops.OpOverload):
            self._namespace(called.namespace)
            super().function(called)
        elif isinstance(called, torch._ops.HigherOrderOperator):
            raise Uncacheable(f"{called.name()} is called")
        else:
            self.parts.append(_lasting_name(called))

    def _namespace(self, name: str) -> None:
        if name not in _NAMESPACES:
            raise Uncacheable(f"an operator of {name} is called")

    def value(self, v: Any) -> None:
        if v is Ellipsis:
            self.parts.append("...")
        elif isinstance(v, types.BuiltinFunctionType) or v in (int, float, bool, complex):
            self.parts.append(_lasting_name(v))
        else:
            super().value(v)

    def sizes(self, env: Any) -> None:
        """What is known of the symbols: tracing decides by it and need not say so again."""
        if env is None:
            return
        from ...lowering.sympy_bridge import example_values

        if env.deferred_runtime_asserts:
            raise Uncacheable("a size is only known when the graph runs")
        self.parts.append(repr(env.settings))
        for table in (example_values(env), env.var_to_range, env.replacements):
            self.parts.append(repr(sorted((str(k), str(v)) for k, v in table.items())))
        self.sequence("guards", [str(g.expr) for g in env.guards])


def _same(traced: Any, real: Any) -> bool:
    """Whether a size that Dynamo has is, for the input at hand, the one that the input has."""
    if isinstance(traced, int):
        return traced == real
    return traced.node.has_hint() and traced.node.hint == real


def _lasting_name(called: Any) -> str:
    """The name of a function of torch's, Python's or C's, under which any process finds the same. Raises Uncacheable."""
    module, name = getattr(called, "__module__", None) or "", getattr(called, "__name__", "")
    owner = module.partition(".")[0]
    if isinstance(called, types.BuiltinFunctionType) and owner in _C_MODULES:
        return f"{module}.{called.__qualname__}"
    if isinstance(called, type) and module in ("builtins", "torch"):
        return f"{module}.{called.__qualname__}"
    if isinstance(called, (types.MethodDescriptorType, types.WrapperDescriptorType)) and called.__objclass__.__module__ == "torch._C":
        return f"{called.__objclass__.__qualname__}.{name}"
    if isinstance(called, types.FunctionType) and owner == "torch" and called.__code__.co_filename.startswith(_TORCH):
        if getattr(sys.modules.get(module), name, None) is called:
            return f"{module}.{name}"
    raise Uncacheable(f"{module}.{getattr(called, '__qualname__', name or called)} is called")
