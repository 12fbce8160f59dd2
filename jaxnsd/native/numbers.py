"""Operations on numbers: JAX's primitives, one entry at a time, known results folded."""

import functools

import numpy as np

from .code import UnknownError, Value, is_known, literal, type_of

_FLOAT = {"add": "fadd", "add_any": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_WHOLE = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul"}
_BITS = {"and": "and", "or": "or", "xor": "xor"}
_ORDER = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
#: The order in which `jnp.searchsorted` and `jnp.interp` compare: -0.0 before 0.0, NaN at the ends.
_TOTAL = {"lt_to": "lt", "le_to": "le"}
_INTRINSIC = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil"}
#: Functions of the C library, by their names there.
_LIBRARY = {
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "exp": "exp", "exp2": "exp2", "expm1": "expm1",
    "log": "log", "log1p": "log1p", "pow": "pow", "cbrt": "cbrt", "erf": "erf", "erfc": "erfc",
}  # fmt: skip
_NUMPY = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1,
    "floor": np.floor, "ceil": np.ceil, "sign": np.sign, "is_finite": np.isfinite, "square": np.square,
}  # fmt: skip
#: What leaves an array as it is.
SAME = {"stop_gradient", "copy", "copy_p", "name", "optimization_barrier", "real", "jaxnsd_largest", "device_put", "reduce_precision"}

#: Operations that have one result entry for each entry of the operands.
ELEMENTWISE = {
    *_FLOAT, *_WHOLE, *_BITS, *_ORDER, *_TOTAL, *_INTRINSIC, *_LIBRARY, *_NUMPY, *SAME, "integer_pow", "select_n", "clamp",
    "convert_element_type", "rsqrt", "logistic", "round", "shift_left", "shift_right_logical", "shift_right_arithmetic", "jaxnsd_undefined",
}  # fmt: skip


def operate(code, name, entries, dtypes, dtype, params):
    """One entry of the result of a primitive of `ELEMENTWISE`."""
    if code.lanes:
        with code.across(entries):
            return _operated(code, name, entries, dtypes, dtype, params)
    return _operated(code, name, entries, dtypes, dtype, params)


def _operated(code, name, entries, dtypes, dtype, params):
    if len(entries) == 2 and type(entries[0]) is Value and type(entries[1]) is Value and (start := _start(name, np.dtype(dtypes[1]))):
        # Most of a function, and what follows would lead to the same.
        return code.value(f"{start} {entries[0].name}, {entries[1].name}", bool if name in _ORDER else dtype)
    dtypes, dtype = [np.dtype(d) for d in dtypes], np.dtype(dtype)
    if name in SAME:
        return entries[0]
    if name == "select_n":
        return _select(code, *entries, dtype=dtype, of=dtypes[0])
    if name == "convert_element_type":
        return converted(code, entries[0], dtypes[0], dtype)
    if name == "clamp":
        low, x, high = entries
        return operate(code, "min", [operate(code, "max", [x, low], [dtype] * 2, dtype, {}), high], [dtype] * 2, dtype, {})
    if name == "integer_pow":
        return _power(code, entries[0], params["y"], dtype)
    if name == "square":
        return operate(code, "mul", [entries[0]] * 2, [dtype] * 2, dtype, {})
    if name == "rsqrt":
        return operate(code, "div", [dtype.type(1), operate(code, "sqrt", entries, [dtype], dtype, {})], [dtype] * 2, dtype, {})
    if name == "logistic":
        e = operate(code, "exp", [operate(code, "neg", entries, [dtype], dtype, {})], [dtype], dtype, {})
        one = dtype.type(1)
        return operate(code, "div", [one, operate(code, "add", [one, e], [dtype] * 2, dtype, {})], [dtype] * 2, dtype, {})
    if name in _TOTAL:
        keys, of = zip(*(_place(code, x, d) for x, d in zip(entries, dtypes, strict=True)), strict=True)
        return operate(code, _TOTAL[name], list(keys), list(of), bool, {})
    if name == "jaxnsd_undefined":
        zero = operate(code, "eq", [entries[0], dtype.type(0)], [dtype] * 2, bool, {})
        return _select(code, zero, dtype.type(np.nan), entries[0], dtype=dtype, of=np.dtype(bool))
    if all(map(is_known, entries)) and name in _NUMPY:
        with np.errstate(all="ignore"):
            return np.asarray(_NUMPY[name](*(np.asarray(x, d) for x, d in zip(entries, dtypes, strict=True))), dtype)[()]
    folded = _folded(name, entries, dtype, exact="exact" in params)
    if folded is not None:
        return folded
    make = code.operation if code.traced else functools.partial(_emitted, code)
    return make(name, entries, dtypes, dtype, params)


@functools.cache
def _start(name, dtype):
    """How the text of an operation on two numbers of a dtype starts, of floats; None of other operations."""
    if dtype.kind != "f" or name == "rem":
        return None
    if name in _FLOAT:
        return f"{_FLOAT[name]} contract {type_of(dtype)}"
    return f"fcmp {'une' if name == 'ne' else 'o' + name} {type_of(dtype)}" if name in _ORDER else None


def _folded(name, entries, dtype, exact):
    """What needs no operation, or None."""
    known = [x if is_known(x) else None for x in entries]
    if name in ("add", "add_any", "mul", "and", "or"):
        for k, other in ((0, 1), (1, 0)):
            if known[k] is None:
                continue
            if name in ("add", "add_any") and known[k] == 0:
                return entries[other]
            if name == "mul" and known[k] == 0 and not exact:
                return dtype.type(0)
            if name == "mul" and known[k] == 1:
                return entries[other]
            if dtype.kind == "b" and name in ("and", "or"):
                return entries[other] if bool(known[k]) == (name == "and") else np.bool_(name == "or")
    if name == "sub" and known[1] is not None and known[1] == 0:
        return entries[0]
    if name == "div" and known[1] is not None and known[1] == 1:
        return entries[0]
    if name in ("max", "min", "and", "or") and entries[0] is entries[1]:
        return entries[0]
    return None


def _place(code, x, dtype):
    """A whole number that stands for a float in the total order, and its dtype: its bits, those of a negative one turned over."""
    if dtype.kind != "f":
        return x, dtype
    whole, last = np.dtype(f"i{dtype.itemsize}"), 8 * dtype.itemsize - 1
    if is_known(x):
        bits = np.asarray(x, dtype).view(whole)[()]
        return bits ^ ((bits >> last) & np.iinfo(whole).max), whole
    if code.traced:
        raise UnknownError("the total order of floats")
    bits = code.value(f"bitcast {code.kind(dtype)} {code.text(x, dtype)} to {code.kind(whole)}", whole)
    sign = operate(code, "shift_right_arithmetic", [bits, whole.type(last)], [whole] * 2, whole, {})
    turned = operate(code, "and", [sign, whole.type(np.iinfo(whole).max)], [whole] * 2, whole, {})
    return operate(code, "xor", [bits, turned], [whole] * 2, whole, {}), whole


def _select(code, which, *cases, dtype, of):
    if is_known(which):
        return cases[int(which)]
    if all(case is cases[0] for case in cases):
        return cases[0]
    if all(map(is_known, cases)) and len({literal(case, dtype) for case in cases}) == 1:
        return cases[0]
    if of.kind != "b":
        if len(cases) != 2:
            out = cases[-1]
            for k, case in reversed(list(enumerate(cases[:-1]))):
                here = operate(code, "le", [which, of.type(k)], [of] * 2, bool, {})
                out = _select(code, here, out, case, dtype=dtype, of=np.dtype(bool))
            return out
        which = operate(code, "ne", [which, of.type(0)], [of] * 2, bool, {})
    if code.traced:
        return code.operation("select_n", [which, *cases], [bool, dtype, dtype], dtype, {})
    kind, (no, yes) = code.kind(dtype), (code.text(case, dtype) for case in cases)
    return code.value(f"select {code.kind(bool)} {code.text(which, bool)}, {kind} {yes}, {kind} {no}", dtype)


def _power(code, x, y, dtype):
    """``x**y`` by squares, as XLA has it."""
    total, square, n = None, x, abs(y)
    while n:
        if n & 1:
            total = square if total is None else operate(code, "mul", [total, square], [dtype] * 2, dtype, {})
        n >>= 1
        if n:
            square = operate(code, "mul", [square, square], [dtype] * 2, dtype, {})
    total = dtype.type(1) if total is None else total
    return operate(code, "div", [dtype.type(1), total], [dtype] * 2, dtype, {}) if y < 0 else total


def converted(code, x, source, to):
    """A number in another dtype; floats become whole numbers by cutting, at the ends of their range where they are beyond, as in XLA."""
    source, to = np.dtype(source), np.dtype(to)
    if source == to:
        return x
    if code.lanes:
        with code.across([x]):
            return _converted(code, x, source, to)
    return _converted(code, x, source, to)


def _converted(code, x, source, to):
    if is_known(x) and not (source.kind == "f" and to.kind in "iu"):
        with np.errstate(all="ignore"):
            return np.asarray(x, source).astype(to)[()]
    if to.kind == "b":
        return operate(code, "ne", [x, source.type(0)], [source] * 2, bool, {})
    if code.traced:
        return code.operation("convert_element_type", [x], [source], to, {})
    a, b, text = code.kind(source), code.kind(to), code.text(x, source)
    if source.kind == "f" and to.kind == "f":
        operation = "fpext" if to.itemsize > source.itemsize else "fptrunc"
    elif to.kind == "f":
        operation = "sitofp" if source.kind == "i" else "uitofp"
    elif source.kind == "f":
        sign = "s" if to.kind == "i" else "u"
        return code.value(code.called(f"llvm.fpto{sign}i.sat.{code.suffix(to)}.{code.suffix(source)}", b, (a, text)), to)
    elif to.itemsize == source.itemsize and source.kind != "b":
        return code.number(text, to)
    elif to.itemsize < source.itemsize:
        operation = "trunc"
    else:
        operation = "sext" if source.kind == "i" else "zext"
    return code.value(f"{operation} {a} {text} to {b}", to)


def _emitted(code, name, entries, dtypes, dtype, params):
    of = dtypes[-1]
    kind, a = code.kind(of), [code.text(x, d) for x, d in zip(entries, dtypes, strict=True)]
    floats, suffix = of.kind == "f", code.suffix(of)
    if floats and name in _FLOAT and name != "rem":
        return code.value(f"{_FLOAT[name]} contract {kind} {a[0]}, {a[1]}", dtype)
    if floats and name in _ORDER:
        return code.value(f"fcmp {'une' if name == 'ne' else 'o' + name} {kind} {a[0]}, {a[1]}", dtype)
    if floats and name == "rem":
        return code.value(f"frem {kind} {a[0]}, {a[1]}", dtype)
    if name in _WHOLE and of.kind != "b":
        return code.value(f"{_WHOLE[name]} {kind} {a[0]}, {a[1]}", dtype)
    if name in _BITS:
        return code.value(f"{_BITS[name]} {kind} {a[0]}, {a[1]}", dtype)
    if name == "not":
        return code.value(f"xor {kind} {a[0]}, {code.text(~of.type(0), of)}", dtype)
    if name == "neg":
        return code.value(f"fneg {kind} {a[0]}" if floats else f"sub {kind} {code.text(of.type(0), of)}, {a[0]}", dtype)
    if name in _ORDER:
        sign = "" if name in ("eq", "ne") else "s" if of.kind == "i" else "u"
        return code.value(f"icmp {sign}{name} {kind} {a[0]}, {a[1]}", bool)
    if name in ("max", "min"):
        if floats:
            return code.value(code.called(f"llvm.{name}imum.{suffix}", kind, (kind, a[0]), (kind, a[1])), dtype)
        sign = "s" if of.kind == "i" else "u"
        return code.value(code.called(f"llvm.{sign}{name}.{suffix}", kind, (kind, a[0]), (kind, a[1])), dtype)
    if floats:
        return _of_floats(code, name, entries, a, dtype, kind, suffix, params)
    return _of_whole_numbers(code, name, entries, a, dtype, kind, suffix)


def _of_floats(code, name, entries, a, dtype, kind, suffix, params):
    if name in _INTRINSIC:
        return code.value(code.called(f"llvm.{_INTRINSIC[name]}.{suffix}", kind, (kind, a[0])), dtype)
    if name == "round":
        even = int(params["rounding_method"]) == 1
        return code.value(code.called(f"llvm.{'roundeven' if even else 'round'}.{suffix}", kind, (kind, a[0])), dtype)
    if name == "is_finite":
        of = entries[0].dtype
        size = code.value(code.called(f"llvm.fabs.{suffix}", kind, (kind, a[0])), of)
        return code.value(f"fcmp olt {kind} {size.name}, {code.text(of.type(np.inf), of)}", bool)
    if name == "sign":
        zero, number = code.text(dtype.type(0), dtype), code.value(f"fcmp ord {kind} {a[0]}, {a[0]}", bool)
        nonzero = code.value(f"fcmp one {kind} {a[0]}, {zero}", bool)
        one = code.called(f"llvm.copysign.{suffix}", kind, (kind, code.text(dtype.type(1), dtype)), (kind, a[0]))
        one = code.value(one, dtype)
        own = code.value(f"and {code.kind(bool)} {number.name}, {nonzero.name}", bool)
        return code.value(f"select {code.kind(bool)} {own.name}, {kind} {one.name}, {kind} {a[0]}", dtype)
    if name in _LIBRARY:
        # In single precision: rounded once, from double.
        wide = [converted(code, x, dtype, np.float64) for x in entries]
        return converted(code, code.library(_LIBRARY[name], wide), np.float64, dtype)
    raise UnknownError(f"{name} of floats")


def _of_whole_numbers(code, name, entries, a, dtype, kind, suffix):
    signed, bits, boolean = dtype.kind == "i", 8 * dtype.itemsize, code.kind(bool)

    def number(x):
        return code.text(np.asarray(x).astype(dtype)[()], dtype)

    def compared(how, x, y):
        return code.value(f"icmp {how} {kind} {x}, {y}", bool).name

    def select(which, yes, no):
        return code.value(f"select {boolean} {which}, {kind} {yes}, {kind} {no}", dtype)

    if name == "abs":
        return code.value(code.called(f"llvm.abs.{suffix}", kind, (kind, a[0]), ("i1", "false")), dtype) if signed else entries[0]
    if name == "sign" and not signed:
        return code.value(f"zext {boolean} {compared('ne', a[0], number(0))} to {kind}", dtype)
    if name == "sign":
        up, down = compared("sgt", a[0], number(0)), compared("slt", a[0], number(0))
        return select(down, number(-1), code.value(f"zext {boolean} {up} to {kind}", dtype).name)
    if name in ("div", "rem"):
        # XLA: x / 0 is -1, x rem 0 is x, and the smallest number divided by -1 is itself.
        nothing = unsafe = compared("eq", a[1], number(0))
        if signed:
            smallest, minus = compared("eq", a[0], number(np.iinfo(dtype).min)), compared("eq", a[1], number(-1))
            over = code.value(f"and {boolean} {smallest}, {minus}", bool).name
            unsafe = code.value(f"or {boolean} {nothing}, {over}", bool).name
        by = select(unsafe, number(1), a[1]).name
        out = code.value(f"{'s' if signed else 'u'}{name} {kind} {a[0]}, {by}", dtype).name
        return select(nothing, a[0] if name == "rem" else number(-1), out)
    if name.startswith("shift"):
        operation = {"shift_left": "shl", "shift_right_logical": "lshr", "shift_right_arithmetic": "ashr"}[name]
        inside = compared("ult", a[1], number(bits))
        out = code.value(f"{operation} {kind} {a[0]}, {select(inside, a[1], number(bits - 1)).name}", dtype).name
        return select(inside, out, out if operation == "ashr" else number(0))
    if name == "is_finite":
        return np.bool_(True)
    raise UnknownError(f"{name} of whole numbers")
