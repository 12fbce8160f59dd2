"""Machine code of texts, by LLVM; of much text by several processes at a time.

llvmlite lets one thread of a process into LLVM at a time. So other cores are used by processes that run this file, and know nothing of JAX
or of the rest of the package: they read texts, and write the code.
"""

import contextlib
import functools
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
    if others < 1:
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

    processes = []
    try:
        with contextlib.suppress(OSError):
            for _ in range(others):
                # The folder of this file is none of those in which it looks for modules: its neighbours have names of Python's own.
                processes.append(subprocess.Popen([sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        threads = [threading.Thread(target=share, args=[functools.partial(_asked, process)]) for process in processes]
        for thread in threads:
            thread.start()
        share(code_of)
        for thread in threads:
            thread.join()
    finally:
        for process in processes:
            process.kill()
            with contextlib.suppress(OSError):
                process.communicate()
    return out


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
    ready()
    with contextlib.suppress(struct.error, BrokenPipeError, KeyboardInterrupt):
        while True:
            _send(sys.stdout.buffer, code_of(*_received(sys.stdin.buffer)))


if __name__ == "__main__":
    main()
