"""Machine code of texts, by LLVM; of much text by several processes at a time.

llvmlite lets one thread of a process into LLVM at a time. So other cores are used by processes that run this file, and know nothing of JAX
or of the rest of the package: they read texts, and write the code. Each says first which LLVM it has, and is asked for nothing if that is
another one.
"""

import contextlib
import functools
import os
import pickle
import struct
import subprocess
import sys
import threading

try:
    from llvmlite import binding
except ImportError:  # the extra `native`
    binding = None

#: Options of LLVM: its default for either takes more time than in proportion to the length of a function. Stores, one after the other, that
#: it looks at together when it chooses instructions, 2048 by default; the order of instructions before registers are chosen by the plain
#: list, since they are ordered again afterwards. The gradient of a hopper is compiled in 9 CPU s for 14, to code as fast. LLVM may
#: drop an option, and then it ends the process: up to the newest version that is known to have them.
OPTIONS, NEWEST = ("-combiner-tokenfactor-inline-limit=64", "-pre-RA-sched=fast"), 22

#: Characters of a text from which on LLVM does less to it, before it chooses instructions and then: a quadruped's step is compiled in 4.7
#: CPU s for 5.7, its gradient in 33 for 44, to code that is 5 to 10 % slower, or as fast. What is short gains by all that LLVM can do.
LONG = 400_000

#: Characters of text for each process, and how many processes there are at the most: one starts in 0.1 CPU s, and compiles so much in 0.5.
SHARE, PROCESSES = 400_000, 8


@functools.cache
def ready():
    """Make LLVM ready, and tell this LLVM and this machine from others."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if binding.llvm_version_info[0] <= NEWEST:
        for option in OPTIONS:
            binding.set_option("jaxnsd", option)
    said = binding.llvm_version_info, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), OPTIONS
    return " ".join(map(str, said))


def target(level):
    """This machine, for which as much is done to make code fast as ``level`` says, 0 to 2."""
    cpu, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return binding.Target.from_default_triple().create_target_machine(opt=level, cpu=cpu, features=features)


def code_of(text, level):
    """The object code of a module."""
    level = min(level, 1) if len(text) > LONG else level
    module, machine = binding.parse_assembly(text), target(level)
    module.verify()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = binding.create_pipeline_tuning_options(speed_level=level)
    tuning.slp_vectorization = False
    passes = binding.create_pass_builder(machine, tuning)
    manager = passes.getModulePassManager()
    manager.run(module, passes)
    _freed(manager)
    return machine.emit_object(module)


def _freed(manager):
    """Free a pass manager of LLVM's, with all that its passes have found of a function, ten times its text.

    `ModulePassManager` has `_dispose` of both its bases, and those of llvmlite up to 0.50 take the one that does nothing.
    """
    if type(manager)._dispose is binding.ffi.ObjectRef._dispose:
        binding.newpassmanagers.NewPassManager._dispose(manager)


def together(jobs, cores):
    """The object codes of ``[(text, level)]``, by so many cores; None for those of which no process has made any."""
    out, left, lock = [None] * len(jobs), sorted(range(len(jobs)), key=lambda k: len(jobs[k][0])), threading.Lock()
    others = min(cores - 1, PROCESSES, len(jobs) - 1, sum(len(text) for text, _ in jobs) // SHARE)
    if others < 1 or not (command := _command()):
        return out

    def share(compile):
        # The longest first. What fails, here or in another process, is left to whoever asks for it, and sees why.
        with contextlib.suppress(Exception):
            while True:
                with lock:
                    if not left:
                        return
                    k = left.pop()
                out[k] = compile(*jobs[k])

    started, said, greeting = [], [], ready().encode()

    def ask(process):
        with contextlib.suppress(Exception):
            if process.stdout.read(len(greeting)) == greeting:
                said.append(process)
                share(functools.partial(_asked, process))

    try:
        with contextlib.suppress(Exception):  # whatever the system, or a Python that is about to end, has no more of
            for _ in range(others):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                started.append((process, thread := threading.Thread(target=ask, args=[process], daemon=True)))
                thread.start()
        share(code_of)
        for process, thread in started:
            if process in said:
                thread.join()
    finally:
        # What has not said anything by now, be it a program of another kind, is not waited for.
        for process, _ in started:
            process.kill()
        for process, thread in started:
            _ended(process, thread)
    return out


def _command():
    """What starts another Python that runs this file; None where there is none.

    It is told where llvmlite is, and reads nothing else of what is installed, nor any settings: they may be others than those of this one.
    """
    python = sys.executable or ""
    if getattr(sys, "frozen", False) or not os.path.basename(python).lower().startswith("python"):
        return None  # this program itself, which would start once more
    installed = os.path.dirname(os.path.dirname(os.path.abspath(binding.__file__)))
    # The folder of this file is none of those in which it looks for modules: its neighbours have names of Python's own.
    return [python, "-I", "-S", "-B", "-c", _RUN, _FILE, os.path.dirname(installed)]


_RUN = "import runpy, sys; sys.path.append(sys.argv[2]); runpy.run_path(sys.argv[1], run_name='__main__')"
_FILE = os.path.abspath(__file__)


def _ended(process, thread):
    """Leave nothing of a process that has been killed, and of the thread that reads from it."""
    if thread.ident is not None:
        thread.join(1.0)
    process.wait()
    if not thread.is_alive():  # else something that it has started writes on
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()


def _asked(process, text, level):
    """The object code of a module, by another process."""
    _send(process.stdin, (text, level))
    return _received(process.stdout)


def _send(file, x):
    data = pickle.dumps(x)
    file.write(struct.pack("<q", len(data)) + data)
    file.flush()


def _received(file):
    (size,) = struct.unpack("<q", file.read(8))
    return pickle.loads(file.read(size))


def main():
    """Compile what is asked for, until nobody asks."""
    with contextlib.suppress(struct.error, BrokenPipeError, KeyboardInterrupt):
        sys.stdout.buffer.write(ready().encode())
        sys.stdout.buffer.flush()
        while True:
            _send(sys.stdout.buffer, code_of(*_received(sys.stdin.buffer)))


if __name__ == "__main__":
    main()
