# Most of the time of a source that includes a header of torch goes into torch's headers.

# Precompiles ops/stable.h for the sources of these targets that include something of torch. The others compile without,
# so that a missing standard header is still an error. ccache needs -fpch-preprocess, and
# CCACHE_SLOPPINESS=pch_defines,time_macros.
function(fourfold_precompile_stable_headers first)
  target_precompile_headers(${first} PRIVATE "${PROJECT_SOURCE_DIR}/cpp/ops/stable.h")
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM ${first})
  endforeach()
  foreach(target IN ITEMS ${first} ${ARGN})
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE file)
      set(includes)
      if(EXISTS "${file}")
        file(STRINGS "${file}" includes REGEX "#include [\"<](ops|torch)/")
      endif()
      if(NOT includes)
        set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
endfunction()
