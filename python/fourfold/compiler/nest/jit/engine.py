"""Compiles LLVM IR in this process with llvmlite."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm

from fourfold import _C
from fourfold.compiler.nest.jit import bitcode
from fourfold.compiler.nest.print.llvm_memory import TRANSPOSE

# By the library's CPU level: the features that nests may use, and the processor that they are compiled for.
FEATURES = {
    "avx2": "+avx2,+fma,+f16c,+bmi,+bmi2",
    "avx512": "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx2,+fma,+f16c,+bmi,+bmi2,-prefer-256-bit",
}
PROCESSORS = {"avx2": "haswell", "avx512": "skylake-avx512"}


def keep_for_good(owner: object) -> None:
    """Keeps an object alive that llvmlite would free at the interpreter's exit, when functions needed for that are
    gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Engine:
    """One per process. Code is never unloaded."""

    def __init__(self, level: str):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.Target.from_triple(llvm.get_process_triple())
        self.machine = triple.create_target_machine(
            cpu=PROCESSORS[level], features=FEATURES[level], opt=1, reloc="pic", codemodel="jitdefault"
        )
        self.jit = llvm.create_lljit_compiler(self.machine, use_jit_link=False)
        self.functions = bitcode.functions(level) or {}
        self.addresses: Mapping[str, int] = _C.vector_functions() | {TRANSPOSE: _C.transpose_tile()}
        self.count = itertools.count()
        self.lock = threading.Lock()
        keep_for_good(self.jit)

    def code(self, ir: str) -> bytes:
        """The machine code, an object file."""
        with self.lock:
            return self.machine.emit_object(self.optimized(ir))

    def load(self, code: bytes, names: Sequence[str]) -> list[int]:
        """The addresses of these functions."""
        with self.lock:
            library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for name, address in self.addresses.items():
                library.import_symbol(name, address)
            for name in names:
                library.export_symbol(name)
            tracker = library.link(self.jit, f"nest{next(self.count)}")
            keep_for_good(tracker)
            return [tracker[name] for name in names]

    def assembly(self, ir: str) -> str:
        with self.lock:
            return self.machine.emit_assembly(self.optimized(ir))

    def optimized(self, ir: str) -> llvm.ModuleRef:
        module = self.parsed(llvm.parse_assembly(ir))
        module.verify()  # the passes abort the process if a value doesn't dominate all of its uses
        self.link(module)
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(self.machine, options)
        manager = llvm.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.add_sroa_pass()
        manager.add_loop_rotate_pass()
        manager.add_instruction_combine_pass()
        manager.add_new_gvn_pass()
        manager.add_global_dead_code_eliminate_pass()
        manager.run(module, builder)
        return module

    def parsed(self, module: llvm.ModuleRef) -> llvm.ModuleRef:
        module.triple, module.data_layout = self.machine.triple, str(self.machine.target_data)
        return module

    def link(self, module: llvm.ModuleRef) -> None:
        """Inlines the vector functions that have bitcode."""
        own = {function.name for function in module.functions if not function.is_declaration}
        wanted = [function.name for function in module.functions if function.is_declaration]
        for name in filter(self.functions.__contains__, wanted):
            module.link_in(self.parsed(llvm.parse_bitcode(self.functions[name])))
        for function in module.functions:
            if not function.is_declaration and function.name not in own:
                function.linkage = "internal"
                if function.name in wanted:
                    function.add_function_attribute("alwaysinline")
