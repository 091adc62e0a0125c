# Reduces a list of CPU levels to those that this machine supports.
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
  math(EXPR count "${index} + 1")
  list(SUBLIST ${levels} 0 ${count} left)
  set(${levels} "${left}" PARENT_SCOPE)
endfunction()
