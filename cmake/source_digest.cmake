# The digest of libfourfold's sources. A build that uses an existing library compares its own digest with the library's
# (cmake/built_library.cmake). The Python modules, and sources that only they compile, are not included.
cmake_minimum_required(VERSION 3.24)  # it also runs as a script, without a project's policies

function(fourfold_source_digest root digest)
  fourfold_library_sources("${root}" files)
  set(lines)
  foreach(file IN LISTS files)
    file(SHA256 "${root}/${file}" hash)
    string(APPEND lines "${hash} ${file}\n")
  endforeach()
  string(SHA256 hash "${lines}")
  set(${digest} "${hash}" PARENT_SCOPE)
endfunction()

# The sources' paths relative to `root`.
function(fourfold_library_sources root files)
  set(patterns CMakeLists.txt scripts/bitcode.py)
  foreach(folder IN ITEMS cmake cpp cuda hip metal)
    list(APPEND patterns "${folder}/*")
  endforeach()
  list(TRANSFORM patterns PREPEND "${root}/")
  file(GLOB_RECURSE found RELATIVE "${root}" ${patterns})
  list(FILTER found INCLUDE REGEX "^(CMakeLists\\.txt|scripts/bitcode\\.py|(cmake|cpp|cuda|hip|metal)/.*)$")
  list(FILTER found EXCLUDE REGEX "^cpp/(bindings|graph|model)/|/__pycache__/|/\\.")
  list(SORT found)
  set(${files} "${found}" PARENT_SCOPE)
endfunction()

# cmake -DROOT=... -DFACTS=... -DOUTPUT=... -P source_digest.cmake: writes the facts of a build, with the digest. It
# runs at build time, because sources may change after the configure step.
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  fourfold_source_digest("${ROOT}" digest)
  file(READ "${FACTS}" facts)
  file(WRITE "${OUTPUT}" "${facts}set(FOURFOLD_BUILT_SOURCES ${digest})\n")
endif()
