"""The header of a C object: its functions, and its signature as comments. C11, and C++.

Types that all models share are defined once (STEPWELL_C_TYPES). Where DLPack's header was included before, its types are used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ....targets.host.c.signature import Signature, Value

_TYPES = """
#ifndef STEPWELL_C_TYPES
#define STEPWELL_C_TYPES
#ifdef DLPACK_DLPACK_H_
typedef DLDevice stepwell_device;
typedef DLDataType stepwell_dtype;
typedef DLTensor stepwell_tensor;
typedef DLManagedTensor stepwell_managed_tensor;
#else
typedef struct { int32_t device_type, device_id; } stepwell_device; /* 1: CPU, 2: a GPU */
typedef struct { uint8_t code, bits; uint16_t lanes; } stepwell_dtype; /* STEPWELL_FLOAT32 and the like */
/* A tensor: DLPack's DLTensor. Strides count elements; NULL: rows follow each other. */
typedef struct {
  void *data;
  stepwell_device device;
  int32_t ndim;
  stepwell_dtype dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} stepwell_tensor;
/* A tensor with its memory: DLPack's DLManagedTensor. Who is done with it calls its deleter. */
typedef struct stepwell_managed_tensor {
  stepwell_tensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct stepwell_managed_tensor *self);
} stepwell_managed_tensor;
#endif
#ifdef __cplusplus
#define STEPWELL_DTYPE(code, bits) stepwell_dtype{code, bits, 1}
#else
#define STEPWELL_DTYPE(code, bits) ((stepwell_dtype){code, bits, 1})
#endif
#define STEPWELL_INT8 STEPWELL_DTYPE(0, 8)
#define STEPWELL_INT16 STEPWELL_DTYPE(0, 16)
#define STEPWELL_INT32 STEPWELL_DTYPE(0, 32)
#define STEPWELL_INT64 STEPWELL_DTYPE(0, 64)
#define STEPWELL_UINT8 STEPWELL_DTYPE(1, 8)
#define STEPWELL_FLOAT16 STEPWELL_DTYPE(2, 16)
#define STEPWELL_FLOAT32 STEPWELL_DTYPE(2, 32)
#define STEPWELL_FLOAT64 STEPWELL_DTYPE(2, 64)
#define STEPWELL_BFLOAT16 STEPWELL_DTYPE(4, 16)
#define STEPWELL_BOOL STEPWELL_DTYPE(6, 8)

/* What an entry takes and gives. A size is one number (lowest == highest), or any in a range; sizes of one symbol are equal. */
typedef struct { int64_t lowest, highest; const char *symbol; } stepwell_size;
typedef struct {
  const char *name;
  stepwell_dtype dtype;
  int32_t device_type, ndim, reserved;
  const stepwell_size *shape;
} stepwell_value;
typedef struct {
  const char *name;
  int32_t inputs, results;
  const stepwell_value *input, *result;
} stepwell_entry;

/* A tensor of the CPU, rows that follow each other. */
static inline stepwell_tensor stepwell_cpu_tensor(void *data, stepwell_dtype dtype, int32_t ndim, int64_t *shape) {
  stepwell_tensor made;
  made.data = data;
  made.device.device_type = (decltype_device)1;
  made.device.device_id = 0;
  made.ndim = ndim;
  made.dtype = dtype;
  made.shape = shape;
  made.strides = 0;
  made.byte_offset = 0;
  return made;
}
#endif
"""

_FUNCTIONS = """
typedef struct NAME_model NAME_model;

/* A new model, or NULL where there is no memory. It has its own updated buffers and its own memory for intermediates; weights are shared,
   in pages of the program that the system maps. One thread at a time uses a model; threads that run at once open one each. Where no level
   of code runs on this processor, every call fails, and NAME_error says so. */
NAME_model *NAME_open(void);
/* Ends a model; NULL is none. */
void NAME_close(NAME_model *model);
/* The text of the error of the last call, "" where it went well. It is the model's, until its next call. */
const char *NAME_error(const NAME_model *model);
/* The level of the code that runs here ("cpu-v4"), "" where none does. */
const char *NAME_level(const NAME_model *model);

/* How many entries there are, what one takes and gives (NULL for a number that is none), and its number by its name (-1: none). */
int32_t NAME_entries(void);
const stepwell_entry *NAME_signature(int32_t entry);
int32_t NAME_find(const char *name);

/* What results will be for these inputs: ndim, dtype, device, shape and, unless it is NULL, strides of each are written. `shape` (and
   `strides`) of a result must have room for as many numbers as the signature says (ndim). 0, or 1 and an error. */
int NAME_results(NAME_model *model, int32_t entry, stepwell_tensor *const *inputs, int32_t given, stepwell_tensor *const *results,
                 int32_t taken);
/* Computes the results into the caller's memory. Sizes, types and devices must be those of the signature. Inputs and results of other
   strides are copied; an input that the entry updates must have those that it was exported with. 0, or 1 and an error. */
int NAME_run(NAME_model *model, int32_t entry, stepwell_tensor *const *inputs, int32_t given, stepwell_tensor *const *results,
             int32_t taken);
/* The same with new tensors as results, which the caller deletes. Inputs stay the caller's. Where it fails, results are NULL. */
int NAME_run_dlpack(NAME_model *model, int32_t entry, stepwell_managed_tensor *const *inputs, int32_t given,
                    stepwell_managed_tensor **results, int32_t taken);
/* Gives updated buffers the values that they were exported with. 0, or 1. */
int NAME_reset(NAME_model *model);
/* How many threads a call may run on, in all models of this object; 0: as many as the process may use. */
void NAME_threads(int32_t count);
"""


_GPU_FUNCTIONS = """
/* A model on another device than 0, and a stream (CUstream, cudaStream_t) of its primary context; NAME_open takes the default stream.
   Calls return when their work is in the stream. Inputs and results lie on the device; their strides must be those of the signature. */
NAME_model *NAME_open_on(int32_t device, void *stream);
/* The stream of the calls that follow. */
void NAME_stream(NAME_model *model, void *stream);
"""


def c_header(name: str, signatures: Sequence[Signature], version: str, device: str = "cpu") -> str:
    """The text of `name`.h; device: "cpu" or "cuda"."""
    functions = _FUNCTIONS + (_GPU_FUNCTIONS if device == "cuda" else "")
    guard = f"{name.upper()}_H"
    entries = "".join(f"/* {line} */\n" for signature in signatures for line in signature_lines(signature))
    numbers = ", ".join(f"{name}_entry_{_identifier(s.name)} = {k}" for k, s in enumerate(signatures))
    types = _TYPES.replace("(decltype_device)1", "1")
    return (
        f"/* The C interface of the model {name}, written by stepwell {version}. docs/reference/c-interface.md explains it. */\n"
        f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n{types}\n"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\n'
        f"{functions.replace('NAME', name)}\n"
        f"/* Entries, what they take -> what they give. */\n{entries}enum {{ {numbers} }};\n"
        f"\n#ifdef __cplusplus\n}}\n#endif\n#endif\n"
    )


def signature_lines(signature: Signature) -> list[str]:
    """An entry as text: `forward(x: float32[batch, 16]) -> (y: float32[batch, 8])` and the ranges of its symbols."""
    taken, given = (", ".join(map(_value, values)) for values in (signature.inputs, signature.results))
    ranges = [
        f"  {symbol}: {low} to {'any' if high is None else high}"
        for symbol, (low, high) in sorted(signature.ranges.items())
        if any(symbol in str(size) for value in signature.inputs for size in value.sizes)
    ]
    return [f"{signature.name}({taken}) -> ({given})", *ranges]


def _value(value: Value) -> str:
    return f"{value.name}: {value.type.name}[{', '.join(map(str, value.sizes))}]"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
