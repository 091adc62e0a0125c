"""Compiles LLVM IR in this process with llvmlite."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm

from fourfold import _C
from fourfold.compiler.nest.ir.levels import Level
from fourfold.compiler.nest.jit import bitcode
from fourfold.compiler.nest.print.llvm_memory import TRANSPOSE


def keep_for_good(owner: object) -> None:
    """Keeps an object alive that llvmlite would free at the interpreter's exit, when functions needed for that are
    gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Compiler:
    """Compiles for a CPU level of this machine or another one. functions: the level's vector functions as bitcode."""

    def __init__(self, level: Level, triple: str, functions: Mapping[str, bytes]):
        # Constants are operands relative to the code: with the model for code anywhere in memory, LLVM's default here,
        # each took two instructions and a register.
        self.machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=level.processor, features=level.features, opt=1, reloc="pic", codemodel="small"
        )
        self.functions = functions
        self.lock = threading.Lock()

    def code(self, ir: str) -> bytes:
        """The machine code, an object file."""
        with self.lock:
            return self.machine.emit_object(self.optimized(ir))

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


class Engine(Compiler):
    """Also loads the code. One per process. Code is never unloaded."""

    def __init__(self, level: Level):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        super().__init__(level, llvm.get_process_triple(), bitcode.functions(level))
        # JITLink keeps an object's sections together, as the small model needs.
        self.jit = llvm.create_lljit_compiler(self.machine, use_jit_link=True)
        self.addresses: Mapping[str, int] = _C.vector_functions() | {TRANSPOSE: _C.transpose_tile()}
        self.count = itertools.count()
        keep_for_good(self.jit)

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
