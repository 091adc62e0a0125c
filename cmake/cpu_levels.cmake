# Reduces the list of all CPU levels to those that this machine runs: its best level alone or, if that is avx512_bf16 or
# amx, the levels from avx512 on. avx512 has the kernels that are not for bfloat16, and where the system refuses a process
# AMX's tiles, avx512_bf16 runs.
function(fourfold_cpu_levels_of_this_machine levels)
  try_run(ran compiled "${PROJECT_BINARY_DIR}/CMakeFiles/fourfold_cpu_levels"
    "${PROJECT_SOURCE_DIR}/cmake/cpu_level.cpp"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/cpp"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    COMPILE_OUTPUT_VARIABLE why RUN_OUTPUT_VARIABLE best)
  list(FIND ${levels} "${best}" index)
  if(index EQUAL -1)
    message(FATAL_ERROR "cmake/cpu_level.cpp, which detects this machine's CPU, does not run (${best}${why}); choose "
      "the kernels to build with FOURFOLD_CPU_LEVELS=ON or OFF.")
  endif()
  unset(ran CACHE)
  unset(compiled CACHE)
  set(first ${index})
  if(index GREATER 2)
    set(first 2)
  endif()
  math(EXPR count "${index} - ${first} + 1")
  list(SUBLIST ${levels} ${first} ${count} left)
  set(${levels} "${left}" PARENT_SCOPE)
endfunction()
