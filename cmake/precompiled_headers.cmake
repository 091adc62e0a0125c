# For builds whose objects only have to compile and link (scripts/backend_builds.py): most of their time goes into torch's
# headers. -DCMAKE_PROJECT_fourfold_INCLUDE=<this file> precompiles ops/stable.h for all sources that include something of
# torch; the others compile without, so that a missing standard header is still an error.
function(_fourfold_precompile_headers)
  target_precompile_headers(fourfold_ops PRIVATE "${PROJECT_SOURCE_DIR}/cpp/ops/stable.h")
  foreach(target IN ITEMS fourfold_cpu fourfold_programs)
    target_precompile_headers(${target} REUSE_FROM fourfold_ops)
  endforeach()
  set(targets fourfold_ops fourfold_cpu fourfold_programs)
  if(TARGET fourfold_metal)  # in another language
    target_precompile_headers(fourfold_metal PRIVATE "${PROJECT_SOURCE_DIR}/cpp/ops/stable.h")
    list(APPEND targets fourfold_metal)
  endif()
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" OUTPUT_VARIABLE file)
      set(includes)
      if(EXISTS "${file}")  # shaders are generated later
        file(STRINGS "${file}" includes REGEX "#include [\"<](ops|torch)/")
      endif()
      if(NOT includes)
        set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
endfunction()
cmake_language(DEFER CALL _fourfold_precompile_headers)
