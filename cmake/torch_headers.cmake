# Chooses the versions of torch that gradients are compiled for, besides this build's. Sets FOURFOLD_TORCH_INCLUDES,
# their include folders, and FOURFOLD_TORCH_MISSING: why a wheel lacks some.

# Downloads the headers once; later builds of these sources find them in build/torch-headers.
function(fourfold_fetch_torch_headers required)
  message(STATUS "Fetching the headers of all minor versions of torch, some megabytes each")
  execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/scripts/torch_headers.py"
    OUTPUT_VARIABLE includes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE said ECHO_ERROR_VARIABLE
    RESULT_VARIABLE failed)
  set(missing)
  if(failed)
    string(REGEX MATCH "torch_headers.py: ([^\n]*)" _ "${said}")
    set(missing "scripts/torch_headers.py failed")
    if(CMAKE_MATCH_1)
      string(REGEX REPLACE "\\.$" "" missing "${CMAKE_MATCH_1}")
    endif()
    if(required)
      message(FATAL_ERROR "FOURFOLD_TORCH_HEADERS=ON asks for gradients for every minor version of torch, but their "
        "headers were not fetched: ${missing}. Or set FOURFOLD_TORCH_HEADERS to AUTO or OFF.")
    endif()
    file(GLOB marks "${PROJECT_SOURCE_DIR}/build/torch-headers/*/complete")
    list(TRANSFORM marks REPLACE "complete$" "torch/include" OUTPUT_VARIABLE includes)
    message(WARNING "The headers of other versions of torch were not fetched: ${missing}. For torch versions that "
      "this build has no gradients for, gradients run in Python, slower.")
  endif()
  set(FOURFOLD_TORCH_INCLUDES "${includes}" PARENT_SCOPE)
  set(FOURFOLD_TORCH_MISSING "${missing}" PARENT_SCOPE)
endfunction()

set(FOURFOLD_TORCH_INCLUDES)
set(FOURFOLD_TORCH_MISSING)
fourfold_read_switch(FOURFOLD_TORCH_HEADERS OFF _wanted)
if(_wanted STREQUAL "ON")
  fourfold_fetch_torch_headers(TRUE)
elseif(_wanted STREQUAL "AUTO")
  # Only for wheels (SKBUILD_STATE is scikit-build-core's): an editable install runs with the torch that it is built
  # for.
  if("${SKBUILD_STATE}" STREQUAL "wheel")
    fourfold_fetch_torch_headers(FALSE)
  endif()
elseif(NOT _wanted STREQUAL "OFF")
  set(FOURFOLD_TORCH_INCLUDES "${FOURFOLD_TORCH_HEADERS}")
  foreach(_include IN LISTS FOURFOLD_TORCH_INCLUDES)
    if(NOT EXISTS "${_include}/torch/csrc/Dtype.h")
      message(FATAL_ERROR "FOURFOLD_TORCH_HEADERS names ${_include}, which contains no torch/csrc/Dtype.h. Name the "
        "include folders of torch's Python packages, or set it to AUTO, ON or OFF.")
    endif()
  endforeach()
endif()
