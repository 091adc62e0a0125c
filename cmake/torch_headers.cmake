# Chooses the versions of torch that gradients are compiled for, besides this build's. Sets FOURFOLD_TORCH_INCLUDES,
# their include folders.

# Downloads the headers once; later builds of these sources find them in build/torch-headers.
function(fourfold_fetch_torch_headers)
  message(STATUS "Fetching the headers of all minor versions of torch, some megabytes each")
  execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/scripts/torch_headers.py"
    OUTPUT_VARIABLE includes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE said ECHO_ERROR_VARIABLE
    RESULT_VARIABLE failed)
  if(failed)
    string(REGEX MATCH "torch_headers.py: ([^\n]*)" _ "${said}")
    set(missing "scripts/torch_headers.py failed")
    if(CMAKE_MATCH_1)
      string(REGEX REPLACE "\\.$" "" missing "${CMAKE_MATCH_1}")
    endif()
    message(FATAL_ERROR "FOURFOLD_TORCH_HEADERS=ON asks for gradients for every minor version of torch, but their "
      "headers were not fetched: ${missing}. Or set FOURFOLD_TORCH_HEADERS to OFF.")
  endif()
  set(FOURFOLD_TORCH_INCLUDES "${includes}" PARENT_SCOPE)
endfunction()

# Sets result to the version, major.minor, of the torch with these headers; empty if there is none, or one without
# torch/headeronly.
function(fourfold_read_torch_version include result)
  set(version)
  if(EXISTS "${include}/torch/csrc/Dtype.h" AND EXISTS "${include}/torch/headeronly/version.h")
    file(STRINGS "${include}/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
    list(TRANSFORM lines REPLACE "[^0-9]*([0-9]+)$" "\\1")
    list(JOIN lines "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(FOURFOLD_TORCH_INCLUDES)
fourfold_read_switch(FOURFOLD_TORCH_HEADERS OFF _wanted)
if(_wanted STREQUAL "ON")
  fourfold_fetch_torch_headers()
elseif(NOT _wanted STREQUAL "OFF")
  set(FOURFOLD_TORCH_INCLUDES "${FOURFOLD_TORCH_HEADERS}")
  foreach(_include IN LISTS FOURFOLD_TORCH_INCLUDES)
    fourfold_read_torch_version("${_include}" _version)
    if(NOT _version VERSION_GREATER_EQUAL FOURFOLD_TORCH_MINIMUM)
      message(FATAL_ERROR "FOURFOLD_TORCH_HEADERS names ${_include}, which doesn't contain the headers of torch "
        "${FOURFOLD_TORCH_MINIMUM} or newer. Name the include folders of torch's Python packages, or set it to ON "
        "or OFF.")
    endif()
  endforeach()
endif()
