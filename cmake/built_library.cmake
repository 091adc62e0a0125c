# Uses the libfourfold that scripts/build_library.py installed in FOURFOLD_LIBRARY instead of compiling it, so that a
# wheel for another Python compiles only the modules. Sets the same as the build of the library: the target fourfold,
# and the variables of the summary.
include(source_digest)

function(_fourfold_refuse_library)
  list(JOIN ARGN "" why)
  message(FATAL_ERROR "FOURFOLD_LIBRARY names ${FOURFOLD_LIBRARY}, ${why} Build it again with `python scripts/build_library.py "
    "${FOURFOLD_LIBRARY}`, or unset FOURFOLD_LIBRARY to compile the library here.")
endfunction()

# built: whether the library was built with the option.
function(_fourfold_expect_option option built)
  fourfold_require_switch(${option} AUTO wanted)
  if(wanted STREQUAL "ON" AND NOT built)
    _fourfold_refuse_library("which was built without what ${option}=${wanted} asks for: ${ARGN}.")
  elseif(wanted STREQUAL "OFF" AND built)
    _fourfold_refuse_library("which was built with what ${option}=${wanted} leaves out: ${ARGN}.")
  endif()
endfunction()

if(NOT FOURFOLD_PYTHON)
  message(FATAL_ERROR "FOURFOLD_LIBRARY names a library to build the Python modules with, but FOURFOLD_PYTHON=OFF builds none. "
    "Unset one of them.")
endif()
cmake_path(ABSOLUTE_PATH FOURFOLD_LIBRARY NORMALIZE)
set(_facts "${FOURFOLD_LIBRARY}/share/fourfold/build.cmake")
if(NOT EXISTS "${_facts}")
  _fourfold_refuse_library("which has no share/fourfold/build.cmake.")
endif()
include("${_facts}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_facts}")

if(NOT FOURFOLD_BUILT_VERSION STREQUAL FOURFOLD_VERSION)
  _fourfold_refuse_library("which is fourfold ${FOURFOLD_BUILT_VERSION}, but ${PROJECT_SOURCE_DIR} is ${FOURFOLD_VERSION}.")
endif()
fourfold_source_digest("${PROJECT_SOURCE_DIR}" _digest)
if(NOT FOURFOLD_BUILT_SOURCES STREQUAL _digest)
  _fourfold_refuse_library("which was not built from the sources in ${PROJECT_SOURCE_DIR}: its sources have the "
    "digest ${FOURFOLD_BUILT_SOURCES}, these have ${_digest}.")
endif()
if(NOT FOURFOLD_BUILT_SYSTEM STREQUAL FOURFOLD_SYSTEM)
  _fourfold_refuse_library("which was built for ${FOURFOLD_BUILT_SYSTEM}, but this build is for ${FOURFOLD_SYSTEM}.")
endif()
if(NOT FOURFOLD_BUILT_SANITIZE STREQUAL FOURFOLD_SANITIZE)
  _fourfold_refuse_library("which was built with FOURFOLD_SANITIZE=${FOURFOLD_BUILT_SANITIZE}, but this build has "
    "FOURFOLD_SANITIZE=${FOURFOLD_SANITIZE}.")
endif()
if(NOT FOURFOLD_CPU_LEVELS STREQUAL "AUTO" AND NOT FOURFOLD_CPU_LEVELS STREQUAL FOURFOLD_BUILT_CPU_LEVELS)
  _fourfold_refuse_library("which was built with FOURFOLD_CPU_LEVELS=${FOURFOLD_BUILT_CPU_LEVELS}, but this build has "
    "FOURFOLD_CPU_LEVELS=${FOURFOLD_CPU_LEVELS}.")
endif()

set(FOURFOLD_BACKENDS_ON)
foreach(_backend IN ITEMS CUDA HIP METAL)
  _fourfold_expect_option(FOURFOLD_${_backend} ${FOURFOLD_BUILT_${_backend}} "${FOURFOLD_BUILT_${_backend}_REASON}")
  set(FOURFOLD_${_backend}_BUILT ${FOURFOLD_BUILT_${_backend}})
  set(FOURFOLD_${_backend}_REASON "${FOURFOLD_BUILT_${_backend}_REASON}")
  set(FOURFOLD_${_backend}_TOOL "     in the library")
endforeach()
set(_has_bitcode FALSE)
if(FOURFOLD_BUILT_BITCODE_LEVELS)
  set(_has_bitcode TRUE)
endif()
_fourfold_expect_option(FOURFOLD_BITCODE ${_has_bitcode} "${FOURFOLD_BUILT_BITCODE_REASON}")
set(FOURFOLD_CPU_LEVEL_NAMES "${FOURFOLD_BUILT_CPU_LEVEL_NAMES}")
set(FOURFOLD_BITCODE_LEVELS "${FOURFOLD_BUILT_BITCODE_LEVELS}")
set(FOURFOLD_BITCODE_REASON "${FOURFOLD_BUILT_BITCODE_REASON}")
set(FOURFOLD_BITCODE_COMPILER "in the library")

if(NOT EXISTS "${FOURFOLD_LIBRARY}/${FOURFOLD_BUILT_FILE}")
  _fourfold_refuse_library("which lacks ${FOURFOLD_BUILT_FILE}.")
endif()
add_library(fourfold SHARED IMPORTED)
set_target_properties(fourfold PROPERTIES IMPORTED_LOCATION "${FOURFOLD_LIBRARY}/${FOURFOLD_BUILT_FILE}")
foreach(_level IN LISTS FOURFOLD_BITCODE_LEVELS)
  install(FILES "${FOURFOLD_LIBRARY}/share/fourfold/bitcode/${_level}.zip" DESTINATION bitcode COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
