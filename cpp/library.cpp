#include <fourfold/library.h>

#include "cpu/level.h"

int fourfold_abi_version() { return 1; }

const char* fourfold_build_facts() { return FOURFOLD_BUILD_FACTS; }

const char* fourfold_cpu_capability() { return fourfold::cpu::level_choice().name; }

const char* fourfold_cpu_capability_error() { return fourfold::cpu::level_choice().error.c_str(); }
