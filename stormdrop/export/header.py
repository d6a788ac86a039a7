"""The C header of a library: its three functions, and the description of its arrays.

Invariant: every string of the model's author is escaped, every name is a C identifier. The header is C99 and C++.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stormdrop.ir.dtypes import HALVES, ITEMSIZE, SIGNED, UNSIGNED, Dtype
from stormdrop.model.image import Image, Port

C_TYPES: dict[Dtype, str] = {
    "f32": "float",
    "f64": "double",
    "bool": "uint8_t",
    **dict.fromkeys(HALVES, "uint16_t"),
    **{dtype: f"int{8 * ITEMSIZE[dtype]}_t" for dtype in SIGNED},
    **{dtype: f"uint{8 * ITEMSIZE[dtype]}_t" for dtype in UNSIGNED},
}
MOST_ARGUMENTS = 100  # C99 promises 127 of a function
LONGEST_NAME = 60
_TAKEN = {"sem", "mq", "shm", "iconv"}  # sem_open and the like are libc's
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _.,:;/+-=()[]<>")


def identifier(name: str) -> str:
    """Returns a prefix for C names that resembles a name: `resnet50-v1.onnx` gives `resnet50_v1_onnx`."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:LONGEST_NAME].rstrip("_")
    if not plain or plain[0].isdigit() or plain in _TAKEN:
        return f"model_{plain}".rstrip("_")
    return plain


def c_string(text: str) -> str:
    """Returns a C string literal of the text in UTF-8.

    Octal escapes have three digits, so no escape absorbs the next character.
    """
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in data) + '"'


def c_header(images: Sequence[Image], prefix: str) -> str:
    """Returns the text of the header of a library that holds a model at one or more sizes."""
    upper, image = prefix.upper(), images[0]
    lines = [_HEAD.replace("$U$", upper)]
    lines += [f"#define {upper}_NAME {c_string(image.name)}", f"#define {upper}_THREADS {image.threads}", ""]
    is_one = len(images) == 1
    for kind, ports in (("INPUT", image.inputs), ("OUTPUT", image.outputs)):
        lines += [f"#define {upper}_{kind}S {len(ports)}"]
        for k, port in enumerate(ports):
            lines += _constants(f"{upper}_{kind}_{k}", port)
            lines += _extents(f"{upper}_{kind}_{k}", port) if is_one else []
        lines += [""]
    if not is_one:
        lines += [f"#define {upper}_SIZES {len(images)}"]
        for n, one in enumerate(images):
            for kind, ports in (("INPUT", one.inputs), ("OUTPUT", one.outputs)):
                for k, port in enumerate(ports):
                    lines += _extents(f"{upper}_SIZE_{n}_{kind}_{k}", port)
        lines += [""]
    lines += [
        _FUNCTIONS.replace("$RUN$", _RUN if is_one else _RUN_AT_SIZE).replace("$P$", prefix).replace("$U$", upper)
    ]
    if not is_one:
        lines += _found(images, prefix)
    elif 0 < len(image.inputs) + len(image.outputs) <= MOST_ARGUMENTS:
        lines += _typed(image.inputs, image.outputs, prefix)
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


def _constants(name: str, port: Port) -> list[str]:
    return [
        f"#define {name}_NAME {c_string(port.name)}",
        f"#define {name}_TYPE {C_TYPES[port.dtype]}",
        f"#define {name}_DTYPE {c_string(port.dtype)}",
        f"#define {name}_RANK {len(port.shape)}",
    ]


def _extents(name: str, port: Port) -> list[str]:
    shape = ", ".join(map(str, port.shape)) or "1"
    return [f"#define {name}_SHAPE {{{shape}}}", f"#define {name}_BYTES {port.nbytes}"]


def _found(images: Sequence[Image], prefix: str) -> list[str]:
    """Returns a function that finds the size of given input shapes."""
    lines = [
        "/* The number of the size whose inputs have these shapes, or -1. */",
        f"static inline int {prefix}_size(const int64_t *const shapes[])",
        "{",
    ]
    for n, image in enumerate(images):
        tests = [f"shapes[{k}][{d}] == {m}" for k, p in enumerate(image.inputs) for d, m in enumerate(p.shape)]
        lines.append(f"    if ({' && '.join(tests) or '1'}) return {n};")
    return [*lines, "    (void)shapes;", "    return -1;", "}", ""]


def _typed(inputs: Sequence[Port], outputs: Sequence[Port], prefix: str) -> list[str]:
    arguments = [f"const {C_TYPES[p.dtype]} *input_{k}" for k, p in enumerate(inputs)]
    arguments += [f"{C_TYPES[p.dtype]} *output_{k}" for k, p in enumerate(outputs)]
    given = "".join(f"input_{k}, " for k in range(len(inputs)))
    wanted = "".join(f"output_{k}, " for k in range(len(outputs)))
    return [
        "/* The same with arrays as arguments. */",
        f"static inline int {prefix}_call({prefix}_model *model, {', '.join(arguments)})",
        "{",
        f"    const void *const inputs[] = {{{given}NULL}};",
        f"    void *const outputs[] = {{{wanted}NULL}};",
        f"    return {prefix}_run(model, inputs, outputs);",
        "}",
        "",
    ]


_HEAD = """\
#ifndef $U$_H
#define $U$_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
"""

_FUNCTIONS = """\
typedef struct $P$_model $P$_model;

/* What run returns. */
#define $U$_OK 0
#define $U$_NULL 1       /* a null pointer */
#define $U$_MISALIGNED 2 /* an array that does not start at a multiple of its element's size */
#define $U$_BUSY 3       /* another thread is running this handle */

/* A handle with its own memory and threads; the caller of run is one of them. With threads <= 0 it has $U$_THREADS,
   or one for each CPU of the process if those are fewer. NULL: no memory, no threads, or a processor that lacks
   instructions which the model was compiled to use. */
$P$_model *$P$_open(int threads);

$RUN$

/* Frees a handle that no thread is using. NULL is allowed. */
void $P$_close($P$_model *model);
"""

_RUN = """\
/* Reads the inputs and writes the outputs, row-major arrays in the order of the constants above; a uint8_t is 0 or 1.
   An output may overlap neither an input nor another output. One thread at a time may use a handle; any number of
   handles may be used at once. In a forked child only handles opened there work. */
int $P$_run($P$_model *model, const void *const inputs[], void *const outputs[]);"""

_RUN_AT_SIZE = """\
#define $U$_UNKNOWN 4    /* run: there is no size of that number */

/* Runs the model at the size of that number, from 0 to $U$_SIZES - 1. Reads the inputs and writes the outputs,
   row-major arrays with the shapes of that size; a uint8_t is 0 or 1. An output may overlap neither an input nor
   another output. One thread at a time may use a handle; any number of handles may be used at once. In a forked child
   only handles opened there work. */
int $P$_run($P$_model *model, int size, const void *const inputs[], void *const outputs[]);"""
